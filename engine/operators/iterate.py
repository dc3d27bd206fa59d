"""The head of an iteration: sends its start into the body, gathers the results, and decides about another round."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from engine.arrays import survives_records
from engine.batch import Batch, Hops, copy_records, spread, uniform
from engine.capture import OperatorCapture
from engine.columns import Columns, Records, as_records, concat, have_same_columns
from engine.operators.base import OperatorRuntime, Place
from engine.sending import Send
from engine.task_errors import USER_RAISED, user_error
from graphs.ids import Attempt, Epoch, TaskId
from graphs.kinds import Iterate
from graphs.plan import Edge
from recovery.cut import OperatorState


class IterateOperator(OperatorRuntime):
    """Gathers the records of the next round, which are its state. Columns become records only in a cut."""

    def __init__(self, kind: Iterate, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send_body = self.send_to("body")
        self._send_result = self.send_to("result")
        self._gathered: list[Batch] = []

    def door(self, edge: Edge) -> Send:
        """The start goes into the body at once; records that the body returns wait for the next round."""
        return self._gather if edge.input == "returned" else self._send_body

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Restore what was gathered."""
        pairs = [pickle.loads(payload) for payload in state.pending] if state is not None else []
        if pairs:
            self._gathered.append(Batch([record for record, _ in pairs], uniform([hops for _, hops in pairs])))

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture what has been gathered so far."""
        return OperatorCapture(pending=[pair for batch in self._gathered for pair in _pairs(batch)])

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        """Whether there is a round after `path`. Every head decides alike, because the order of combining is fixed."""
        if not contributions:
            return False
        rounds, until = self._kind.rounds, self._kind.until
        if rounds is not None and path[-1] + 1 >= rounds:
            return False
        if until is None or (self._kind.loads_first and path[-1] == 0):
            return True
        try:
            return not until(reduce(self._kind.reduce, [contributions[task] for task in sorted(contributions)]))
        except USER_RAISED as error:
            hook = f"until or reduce of round {path[-1]}"
            raise user_error(self.name, error, hook=hook, can_set_aside=False) from error

    def release_round(self) -> None:
        """Send the gathered records into the body again."""
        self._release(self._send_body)

    def release_result(self) -> None:
        """Send the gathered records out of the iteration."""
        self._release(self._send_result)

    def _gather(self, records: Records, hops: Hops) -> None:
        # After a restore these are records: columns must not look different to the body then.
        stays = isinstance(records, Columns) and survives_records(records)
        self._gathered.append(Batch(records if stays else as_records(records), hops))

    def _release(self, send: Send) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        columns = [batch.records for batch in gathered if isinstance(batch.records, Columns)]
        first = gathered[0].hops
        if len(columns) == len(gathered) and all(
            have_same_columns(columns[0], part) and batch.hops == first
            for part, batch in zip(columns, gathered, strict=True)
        ):
            send(concat(columns), first)
            return
        pairs = [pair for batch in gathered for pair in _pairs(batch)]
        records = [record for record, _ in pairs]
        if any(capture.is_open for capture in self.place.captures):
            # The capture has yet to encode these records, and their receiver may change them.
            records = copy_records(records)
        send(records, uniform([hops for _, hops in pairs]))


def _pairs(batch: Batch) -> Iterator[tuple[Any, int]]:
    return zip(as_records(batch.records), spread(batch.hops, len(batch)), strict=True)
