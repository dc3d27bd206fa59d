"""Limits how much a task does before its actor checks the clock and its mailbox.

A turn of an actor ends after `SLICE_NS`, at a record boundary. User code gets records in chunks: as many as fit into
`CHUNK_NS` at the current pace, at first one, and at most twice as many each time. So cheap records are processed in
whole batches, as if there were no clock, and expensive ones one by one. If the pace changes in the middle of a chunk,
that chunk takes as long as it takes, and the next one is small.

Where more threads than cores have work, a task loses its core for some milliseconds again and again. Such a chunk only
halves the next one: small chunks become small batches, which stay small on their way round a loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from backedge.graphs.operator_kind import OperatorKind

SLICE_NS = 20_000_000
CHUNK_NS = 2_000_000
CHEAP_RECORDS = 2_048
"""From this number on, records are so cheap that whole batches are taken: one more or less does not affect a turn."""


class Pace:
    """The number of records to pass to user code at a time.

    - unit: the number of records per call of user code, if it takes several; units are not split. None: all that have
      arrived.
    - is_cheap: whether batches are taken whole.
    """

    __slots__ = ("_records", "_unit", "is_cheap")

    def __init__(self, unit: int | None) -> None:
        self._unit = unit
        self._records = 1
        self.is_cheap = unit is None

    def chunk(self, records_max: int) -> int:
        """The number of records to take now."""
        if self._unit is None:
            return records_max
        return min(records_max, max(self._unit, self._records))

    def note(self, records: int, took_ns: int) -> None:
        """Adapt the pace: processing `records` took `took_ns`."""
        fit = records * CHUNK_NS // (took_ns or 1)
        if took_ns > SLICE_NS:
            self._records = max(1, fit)
        elif took_ns > CHUNK_NS:
            self._records = max(1, fit, min(records, self._records) // 2)
        elif fit > self._records:
            # A few records say little about the cost of many, so they do not slow the pace down.
            self._records = max(self._records, min(fit, 2 * max(records, self._records), CHEAP_RECORDS * 8))
        else:
            return
        self.is_cheap = self._unit is None or self._records >= CHEAP_RECORDS


def unit_of(kinds: Iterable[OperatorKind]) -> int | None:
    """The number of records per call for the operators of a task; None if any number will do.

    >>> from backedge.graphs.kinds import Map, MapBatches
    >>> unit_of([Map(abs), MapBatches(sorted, batch_size=64)])
    64
    """
    unit = 1
    for kind in kinds:
        if kind.records_at_once is None:
            return None
        unit = max(unit, kind.records_at_once)
    return unit
