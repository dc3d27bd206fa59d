"""The head of an iteration: sends its start into the body, gathers the results, and decides about another round."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import reduce
from typing import Any

from engine.batch import Hops, copy_records, spread, uniform
from engine.capture import OperatorCapture
from engine.operators.base import OperatorRuntime, Place
from engine.sending import Send, taking_records
from engine.task_errors import USER_RAISED, user_error
from graphs.ids import Attempt, Epoch, TaskId
from graphs.kinds import Iterate
from graphs.plan import Edge
from recovery.cut import OperatorState


class IterateOperator(OperatorRuntime):
    """Gathers the records of the next round, which are its state."""

    def __init__(self, kind: Iterate, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send_body = self.send_to("body")
        self._send_result = self.send_to("result")
        self._records: list[Any] = []
        self._hops: list[int] = []

    def door(self, edge: Edge) -> Send:
        """The start goes into the body at once; records that the body returns wait for the next round."""
        return taking_records(self._gather) if edge.input == "returned" else self._send_body

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Restore what was gathered."""
        for payload in state.pending if state is not None else ():
            record, hops = pickle.loads(payload)
            self._records.append(record)
            self._hops.append(hops)

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture what has been gathered so far."""
        return OperatorCapture(pending=list(zip(self._records, self._hops, strict=True)))

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        """Whether there is a round after `path`. Every head decides alike, because the order of combining is fixed."""
        if not contributions:
            return False
        rounds, until = self._kind.rounds, self._kind.until
        if rounds is not None and path[-1] + 1 >= rounds:
            return False
        if until is None:
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

    def _gather(self, records: list[Any], hops: Hops) -> None:
        self._records += records
        self._hops += spread(hops, len(records))

    def _release(self, send: Send) -> None:
        records, hops = self._records, self._hops
        self._records, self._hops = [], []
        if not records:
            return
        if any(capture.is_open for capture in self.place.captures):
            # The capture has yet to encode these records, and their receiver may change them.
            records = copy_records(records)
        send(records, uniform(hops))
