"""A source: reads its splits, and keeps track of how far it has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backedge.engine.operators.base import Place, ReadingRuntime
from backedge.engine.operators.services import Reader
from backedge.engine.state.capture import OperatorCapture, dump, load
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import Read
from backedge.recovery.cut.cut import OperatorState


class SourceOperator(ReadingRuntime):
    """Sends what its reader returns. The positions of its splits are its state."""

    def __init__(self, kind: Read, place: Place) -> None:
        super().__init__(place)
        self._send = self.send_to("out")
        self._reader: Reader | None = None

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Read from the start, or read the splits of the state from their positions on."""
        positions: dict[str, Any] | None = None
        if state is not None:
            positions = {
                name: load(self.name, f"the position of split {name!r}", at) for name, at in state.splits.items()
            }
        self.sent = 0 if state is None else state.records
        place = self.place
        self._reader = place.services.reader(place.operator, place.task.index, place.parallelism, positions)

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            raise RuntimeError(f"source {self.name!r} is read before it is open: call open() first")
        return self._reader

    @property
    def exhausted(self) -> bool:
        return self.reader.exhausted

    def produce(self, records_max: int) -> None:
        records = self.reader.read(records_max)
        if records:
            # Counted when sent, not reported by the reader: every cut compares the two numbers.
            self.sent += len(records)
            self._send(records, 0)

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture the position of each split, and the number of records sent."""
        positions = self.reader.positions()
        splits = {name: dump(self.name, f"a position of split {name!r}", at) for name, at in positions.items()}
        return OperatorCapture(splits=splits, records=self.sent)
