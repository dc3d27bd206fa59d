"""Limits the rate at which a source is read. Time comes from a given clock; nothing waits here.

Tokens are added as time passes and taken as records are read, up to the amount for a tenth of a second, so that a task
that was delayed does not catch up in a flood. Fast sources are read in bunches worth a hundredth of a second, because
reading single records would be inefficient.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from backedge.engine.batches.columns import Records
from backedge.engine.operators.services import Reader

BURST_S = 0.1
BUNCH_S = 0.01
_ROUNDING = 1e-6


class Bucket:
    """The tokens of one task.

    >>> now = [0.0]
    >>> bucket = Bucket(20.0, lambda: now[0])
    >>> bucket.take(bucket.available()), bucket.available(), round(bucket.wait_s(), 3)
    (2, 0, 0.05)
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._most = max(1.0, rate * BURST_S)
        self._bunch = max(1.0, rate * BUNCH_S)
        self._tokens = self._most
        self._counted_at_s = clock()

    def available(self) -> int:
        """How many records may be read now; 0 if there is less than a bunch."""
        self._count()
        return int(self._tokens + _ROUNDING) if self._tokens + _ROUNDING >= self._bunch else 0

    def take(self, count: int) -> int:
        """Take `count` tokens for records that were read."""
        self._tokens -= count
        return count

    def wait_s(self) -> float:
        self._count()
        missing = self._bunch - self._tokens
        return missing / self._rate if missing > _ROUNDING else 0.0

    def _count(self) -> None:
        now_s = self._clock()
        self._tokens = min(self._most, self._tokens + (now_s - self._counted_at_s) * self._rate)
        self._counted_at_s = now_s


class PacedReader:
    """A reader that returns records at a limited rate, or without limit. Every reader of `FileServices` is one.

    After a read that returned nothing, it waits `idle_s` seconds before it tries again.

    >>> from backedge.engine.io.reader import SourceReader
    >>> from backedge.graphs.sources_and_sinks import Items
    >>> reader = PacedReader(SourceReader("letters", Items(list("abcd")), {"0-of-1": 0}))
    >>> reader.wait_s(), reader.read(3), reader.positions()
    (0.0, ['a', 'b', 'c'], {'0-of-1': 3})
    """

    def __init__(
        self,
        reader: Reader,
        bucket: Bucket | None = None,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = 0.0,
    ) -> None:
        self._reader = reader
        self._bucket = bucket
        self._clock = clock
        self._idle_s = idle_s
        self._idle_until_s: float | None = None

    @property
    def exhausted(self) -> bool:
        return self._reader.exhausted

    def read(self, records_max: int) -> Records:
        """The next records; an empty list while the rate does not allow any."""
        if self._idle_until_s is not None and self._clock() < self._idle_until_s:
            return []
        allowed = records_max if self._bucket is None else min(records_max, self._bucket.available())
        if allowed == 0:
            return []
        records = self._reader.read(allowed)
        self._idle_until_s = None if records else self._clock() + self._idle_s
        if self._bucket is not None:
            self._bucket.take(len(records))
        return records

    def positions(self) -> dict[str, Any]:
        return self._reader.positions()

    def wait_s(self) -> float:
        """Seconds until it should be read again; 0.0 if that may be now."""
        return 0.0 if self._bucket is None or self.exhausted else self._bucket.wait_s()
