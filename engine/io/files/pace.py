"""Limits the rate at which a source is read. Time comes from a given clock; nothing waits here.

Tokens, for records or for bytes, are added as time passes and taken as records are read, up to the amount for a tenth
of a second, so that a task that was delayed does not catch up in a flood. Fast sources are read in bunches worth a
hundredth of a second, because reading single records would be inefficient.

How many bytes records have is known only after they were read, and one may have more than there are tokens. What was
read beyond them is owed, and nothing is read until time has made up for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from backedge.engine.batches.batch import Batch, encode
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.io.reader import SourceReader
from backedge.graphs.io import Source
from backedge.graphs.rate import Rate

BURST_S = 0.1
BUNCH_S = 0.01
SAMPLED_RECORDS = 16
_ROUNDING = 1e-6


class Bucket:
    """The tokens of one task. `size`: how many a record takes; of bytes, the mean of the records that were read last.

    >>> now = [0.0]
    >>> bucket = Bucket(20.0, lambda: now[0])
    >>> bucket.take(bucket.available()), bucket.available(), round(bucket.wait_s(), 3)
    (2, 0, 0.05)
    """

    def __init__(self, per_s: float, clock: Callable[[], float], size: float = 1.0) -> None:
        self._per_s = per_s
        self._clock = clock
        self._most = max(1.0, per_s * BURST_S)
        self._bunch = max(1.0, per_s * BUNCH_S)
        self._tokens = self._most
        self._counted_at_s = clock()
        self.size = size

    def available(self) -> int:
        """How many records may be read now; 0 if there is less than a bunch."""
        self._count()
        return max(1, int((self._tokens + _ROUNDING) / self.size)) if self._tokens + _ROUNDING >= self._bunch else 0

    def take(self, count: int) -> int:
        """Take the tokens of records that were read."""
        self._tokens -= count * self.size
        return count

    def wait_s(self) -> float:
        self._count()
        missing = self._bunch - self._tokens
        return missing / self._per_s if missing > _ROUNDING else 0.0

    def _count(self) -> None:
        now_s = self._clock()
        self._tokens = min(self._most, self._tokens + (now_s - self._counted_at_s) * self._per_s)
        self._counted_at_s = now_s


class PacedReader(SourceReader):
    """Reads at a limited rate, or without limit. Every reader of `FileServices` is one.

    `share`: the part of the rate that this task has. After a read that returned nothing, it waits `idle_s` seconds
    before it tries again.

    >>> from backedge.graphs.sources_and_sinks import Items
    >>> reader = PacedReader("letters", Items(list("abcd")), {"0-of-1": 0})
    >>> reader.wait_s(), reader.read(3), reader.positions()
    (0.0, ['a', 'b', 'c'], {'0-of-1': 3})
    """

    def __init__(
        self,
        name: str,
        source: Source[Any],
        positions: Mapping[str, Any],
        share: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = 0.0,
    ) -> None:
        super().__init__(name, source, positions)
        self._share = share
        self._bucket: Bucket | None = None
        self._in_bytes = False
        self._clock = clock
        self._idle_s = idle_s
        self._idle_until_s: float | None = None

    def limit(self, rate: Rate | None) -> None:
        """Read at this rate from now on. A task without a share reads nothing, so it needs no limit."""
        share = 0.0 if rate is None else self._share()
        self._bucket = None if rate is None or not share else Bucket(rate.per_s * share, self._clock)
        self._in_bytes = rate is not None and rate.in_bytes
        if self._bucket is not None and self._in_bytes:
            # The size of the first record is not known, so it is read alone.
            self._bucket.size = float("inf")

    def read(self, records_max: int) -> Records:
        """The next records; an empty list while the rate does not allow any."""
        if self._idle_until_s is not None and self._clock() < self._idle_until_s:
            return []
        allowed = records_max if self._bucket is None else min(records_max, self._bucket.available())
        if allowed == 0:
            return []
        records = super().read(allowed)
        self._idle_until_s = None if records else self._clock() + self._idle_s
        if self._bucket is not None and records:
            if self._in_bytes:
                self._bucket.size = record_bytes(records)
            self._bucket.take(len(records))
        return records

    def begin(self, split: str, position: Any) -> None:
        self._idle_until_s = None
        super().begin(split, position)

    def wait_s(self) -> float:
        """Seconds until it should be read again; 0.0 if that may be now."""
        return 0.0 if self._bucket is None or self.exhausted else self._bucket.wait_s()


def record_bytes(records: Records) -> float:
    """The mean size of records as they travel between tasks; of a list, that of some of them, which stand for all.

    >>> record_bytes([bytes([n]) * 1000 for n in range(100)]) > 1000
    True
    """
    if isinstance(records, Columns):
        return max(1.0, records.size / len(records))
    sample = records[:: 1 + len(records) // SAMPLED_RECORDS]
    return len(encode(Batch(sample))) / len(sample)
