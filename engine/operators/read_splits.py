"""Reads the splits that are handed to its task, and reports each that is read (`graphs/discovery.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backedge.engine.batches.batch import Hops, separate
from backedge.engine.operators.base import Place, ReadingRuntime
from backedge.engine.operators.sending import TakeRecords
from backedge.engine.operators.services import Reader
from backedge.graphs.discovery import ReadSplits
from backedge.graphs.plan import Edge
from backedge.recovery.cut.cut import OperatorState


class ReadSplitsOperator(ReadingRuntime):
    """A split and its position are kept by the key under which it came. keys: those of the splits.

    The positions that are kept are copies, because a source may change its own in place.
    """

    def __init__(self, kind: ReadSplits, place: Place) -> None:
        super().__init__(place)
        self._source = kind.source
        self._send = self.send_to("out")
        self._report = self.send_to("finished")
        self._open = self.keyed_values()
        self._keys: dict[str, int] = {}
        self._reader: Reader | None = None

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        held = sorted((split, key, position) for key, (split, position) in self._open.values.items())
        self._keys = {split: key for split, key, _ in held}
        positions = {split: separate(position) for split, _, position in held}
        place = self.place
        self._reader = place.services.reader(place.operator, place.task.index, place.parallelism, positions)

    def accept(self, edge: Edge) -> TakeRecords:
        def assigned(records: list[Any], hops: Hops) -> None:
            for record in records:
                key, split = record["key"], record["split"]
                position = self._source.first_position(split)
                self._open.replace(key, (split, separate(position)))
                self._keys[split] = key
                self.reader.begin(split, position)

        return assigned

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            raise RuntimeError(f"operator {self.name!r} is used before it is open: call open() first")
        return self._reader

    @property
    def exhausted(self) -> bool:
        return not self._keys

    def produce(self, records_max: int) -> None:
        """Read one batch, and report the splits of which nothing is left."""
        if records := self.reader.read(records_max):
            self.sent += len(records)
            self._send(records, 0)
        for split, position in self.reader.positions().items():
            if self._open.values[self._keys[split]] != (split, position):
                self._open.replace(self._keys[split], (split, separate(position)))
        if finished := self.reader.finished():
            for split in finished:
                self._open.remove(self._keys.pop(split))
            self._report([{"split": split} for split in finished], 0)
