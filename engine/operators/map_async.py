"""map_async: calls that answer later. Calls without an answer are state; a restored run repeats them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

from backedge.engine.batches.batch import Hops, spread
from backedge.engine.operators.async_calls import Call, in_event_loop
from backedge.engine.operators.base import CallingRuntime, Place
from backedge.engine.operators.meters import Meters
from backedge.engine.operators.sending import TakeRecords
from backedge.engine.state.capture import OperatorCapture, dump, load
from backedge.engine.state.keyed_state import KeyedState, keyed_entries
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import MapAsync
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, user_error
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.answers import Questions

RECORD = "a record that waits for its answer"


class MapAsyncOperator(CallingRuntime):
    """Keeps the records whose calls have no answer yet; the driver makes the calls.

    Records are kept encoded: a call gets its own copy, which it may change, while the snapshot holds the original.

    - function: the user's, or the instance of the user's class. instance: that, once it is made.
    - kept: what a run has left whose answers were kept, until the first capture.
    """

    def __init__(self, kind: MapAsync, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._function: Any = kind.function
        self._instance: Any = None
        self._send = self.send_to("out")
        self._kept: KeyedState | None = None
        self.waiting: dict[int, bytes] = {}
        self._meters = self.meters = Meters(self.name)

    def accept(self, edge: Edge) -> TakeRecords:
        return self._wait

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Repeat all calls that have no answer."""
        if state is None:
            return
        for payload in (*state.pending, *self._waiting_for_kept_answers(state)):
            self.waiting[next(self.place.call_ids)] = payload

    def _waiting_for_kept_answers(self, state: OperatorState) -> list[bytes]:
        """The records that waited in a run whose answers were kept."""
        if not (values := keyed_entries(state, self.name).values):
            return []
        self._kept = self.keyed_values()
        self._kept.restore(values)
        return [record for _, record in Questions(self._kept, Epoch(0)).waiting()]

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """The records without an answer, in the order of arrival."""
        capture = OperatorCapture(pending=list(self.waiting.values()))
        if self._kept is not None:
            # Not when it opens: a cut may hold what has changed since the restored one.
            for key in list(self._kept.values):
                self._kept.remove(key)
            capture.values = self._kept.capture(epoch, base)
        return capture

    def call(self, call_id: int) -> Call:
        record, kind = self._record(call_id)[0], self._kind
        if kind.is_class and self._instance is None:
            # Not when the task opens: a replay makes no calls, and must not connect to anything.
            in_event_loop(self._start(kind.function)).result()
        return Call(self._function, record, kind.timeout, self.name, threads_max=kind.concurrency)

    def _record(self, call_id: int) -> tuple[Any, int]:
        """A record that waits, and its hops."""
        return load(self.name, RECORD, self.waiting[call_id])

    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        record, hops = self._record(call_id)
        if error is not None and not self.sets_aside:
            raise user_error(self.name, error, record) from error
        del self.waiting[call_id]
        if error is None:
            self._send([result], hops)
        else:
            self._send_dead([record], hops)

    async def _start(self, made: Any) -> None:
        """Make the instance in the event loop, where its session belongs."""
        hook = "__init__"
        try:
            self._function = self._instance = made()
            hook = "on_start"
            await self._call_hook(hook)
        except USER_RAISED as error:
            raise user_error(self.name, error, hook=hook, can_set_aside=False) from error

    async def _call_hook(self, hook: str) -> None:
        if hasattr(self._instance, hook):
            returned = getattr(self._instance, hook)()
            if isawaitable(returned):
                await returned

    def close(self) -> None:
        """Let the instance release what it has opened: its calls have ended."""
        if self._instance is not None:
            in_event_loop(self._close()).result()

    async def _close(self) -> None:
        try:
            await self._call_hook("close")
        except USER_RAISED as error:  # the task is over, and may have failed for another reason
            print(user_error(self.name, error, hook="close", can_set_aside=False), file=sys.stderr)

    def _wait(self, records: list[Any], hops: Hops) -> None:
        for record, hop in zip(records, spread(hops, len(records)), strict=True):
            self.waiting[next(self.place.call_ids)] = dump(self.name, RECORD, (record, hop))
