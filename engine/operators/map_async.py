"""map_async: calls that answer later. Calls without an answer are state; a restored run repeats them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from engine.answering import Call
from engine.batch import Hops, spread
from engine.capture import OperatorCapture, dump
from engine.operators.base import CallingRuntime, Place
from engine.sending import TakeRecords
from engine.task_errors import user_error
from graphs.ids import Attempt, Epoch
from graphs.kinds import MapAsync
from graphs.plan import Edge
from recovery.cut import OperatorState


class MapAsyncOperator(CallingRuntime):
    """Keeps the records whose calls have no answer yet; the driver makes the calls.

    Records are kept encoded: a call gets its own copy, which it may change, while the snapshot holds the original.
    """

    def __init__(self, kind: MapAsync, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send = self.send_to("out")
        self.waiting: dict[int, bytes] = {}

    def accept(self, edge: Edge) -> TakeRecords:
        """The function that takes the records of this edge."""
        return self._wait

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Repeat all calls that have no answer."""
        for payload in state.pending if state is not None else ():
            self.waiting[next(self.place.call_ids)] = payload

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """The records without an answer, in the order of arrival."""
        return OperatorCapture(pending=list(self.waiting.values()))

    def call(self, call_id: int) -> Call:
        """The function to call, the record to call it with, and the limit."""
        return Call(self._kind.function, pickle.loads(self.waiting[call_id])[0], self._kind.timeout, self.name)

    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        """A call has returned or failed: send, set aside, or fail."""
        record, hops = pickle.loads(self.waiting[call_id])
        if error is not None and not self.sets_aside:
            raise user_error(self.name, error, record) from error
        del self.waiting[call_id]
        if error is None:
            self._send([result], hops)
        else:
            self._send_dead([record], hops)

    def _wait(self, records: list[Any], hops: Hops) -> None:
        for record, hop in zip(records, spread(hops, len(records)), strict=True):
            self.waiting[next(self.place.call_ids)] = dump(
                self.name, "a record that waits for its answer", (record, hop)
            )
