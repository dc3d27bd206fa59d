"""How much a task does before its actor looks at the clock, and at its mailbox.

A turn of an actor ends after `SLICE_NS`, at a record boundary. Records are given to user code in chunks: as many as
took `CHUNK_NS` at the pace so far, at first one, and at most double each time. So cheap records travel in whole
batches, as if there was no clock, and expensive ones one by one. Where the pace breaks in the middle of a chunk, that
chunk takes as long as it takes; the next one is small.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphs.operator_kind import OperatorKind

SLICE_NS = 20_000_000
CHUNK_NS = 2_000_000
CHEAP_RECORDS = 2_048
"""From here on records are so cheap that whole batches are taken: one more or less makes no difference to a turn."""


class Pace:
    """How many records to give to user code at a time.

    - unit: how many records user code is called with at a time, where it takes several; these are not split. None:
      whatever has arrived.
    """

    __slots__ = ("_records", "_unit")

    def __init__(self, unit: int | None) -> None:
        self._unit = unit
        self._records = 1

    @property
    def is_cheap(self) -> bool:
        """Whether batches are taken as they are."""
        return self._unit is None or self._records >= CHEAP_RECORDS

    def chunk(self, records_max: int) -> int:
        """How many records to take now."""
        if self._unit is None:
            return records_max
        return min(records_max, max(self._unit, self._records))

    def note(self, records: int, took_ns: int) -> None:
        """So many records took that long."""
        fit = records * CHUNK_NS // max(took_ns, 1)
        if took_ns > CHUNK_NS:
            self._records = max(1, fit)
        else:
            # Few records say little of what many would take: they do not slow the pace down.
            self._records = max(self._records, min(fit, 2 * max(records, self._records), CHEAP_RECORDS * 8))


def unit_of(kinds: Iterable[OperatorKind]) -> int | None:
    """How many records the operators of a task are called with at a time; None where any number may come.

    >>> from graphs.kinds import Map, MapBatches
    >>> unit_of([Map(abs), MapBatches(sorted, batch_size=64)])
    64
    """
    unit = 1
    for kind in kinds:
        if kind.records_at_once is None:
            return None
        unit = max(unit, kind.records_at_once)
    return unit
