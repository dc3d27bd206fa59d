"""Splits that are found while others are read: who has which, and what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backedge.engine.operators.base import OperatorRuntime
from backedge.engine.operators.find_splits import FindSplitsOperator
from backedge.engine.operators.read_splits import ReadSplitsOperator
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.state.capture import OperatorCapture
from backedge.graphs.discovery import READ, WANTED
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import OperatorState


class _HandsOutAgain(FindSplitsOperator):
    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        for split, value in self._known.values.items():
            if value not in (WANTED, READ):
                self._want(split)


class _EndsBeforeItsReaders(FindSplitsOperator):
    @property
    def exhausted(self) -> bool:
        return self._look_ms is None and not self._wanted


class _ForgetsItsSplit(ReadSplitsOperator):
    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        return OperatorCapture()


class _BeginsAgain(ReadSplitsOperator):
    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        for split in self.reader.positions():
            self.reader.begin(split, self._source.first_position(split))


def _with(broken: type[OperatorRuntime]) -> type[TaskRuntime]:
    class Broken(TaskRuntime):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            for operator in self._wiring.operators.values():
                if type(operator) is broken.__base__:
                    operator.__class__ = broken

    return Broken


def _break(meaning: str, broken: type[OperatorRuntime]) -> Break:
    return Break(meaning, topology="arriving", runtime=_with(broken))


SPLITS = {
    "split-handed-out-again": _break("a restore hands out what a reader has", _HandsOutAgain),
    "finder-ends-first": _break("what finds splits ends before all are read", _EndsBeforeItsReaders),
    "split-in-work-forgotten": _break("a cut lacks the splits that are being read", _ForgetsItsSplit),
    "split-begun-again": _break("a restored split is read from its beginning", _BeginsAgain),
}
