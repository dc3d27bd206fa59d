"""The calls outside of one task: when each is made, and when its answer is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from backedge.engine.operators.async_calls import SetAsideError
from backedge.engine.operators.runtime import KeptAnswer, TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.engine.task.ports import Ports
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.answers import Question


class OpenCalls:
    """The calls of a task whose answers have not been sent.

    - most: how many there may be; 0 if no operator calls outside.
    - running: those that were made and have no answer yet. written: those whose answer the journal does not have yet.
    - restored: those whose records were in the restored cut, and which were not made since.
    """

    def __init__(
        self, task: TaskId, runtime: TaskRuntime, ports: Ports, most: int, emit: Callable[[Emitted], None]
    ) -> None:
        self.most = most
        self.running: set[int] = set()
        self.written: set[int] = set()
        self.restored = set(runtime.unanswered)
        self._task = task
        self._runtime = runtime
        self._ports = ports
        self._emit = emit

    def are_all_open(self) -> bool:
        return self.most > 0 and self._number() >= self.most

    def fitting(self, records: int) -> int:
        """How many of these records may be passed to operators that call outside: each may become a call."""
        return min(records, self.most - self._number()) if self.most else records

    def _number(self) -> int:
        # Answers that wait for the journal give up their places, so that its disk holds nothing up; but not for ever,
        # because it may be full.
        return self._runtime.open_calls - min(len(self.written), self.most)

    def make_next(self) -> None:
        while len(self.running) < self.most and (call_id := self._runtime.next_call()) is not None:
            self.make(call_id)

    def make(self, call_id: int) -> None:
        """Make a call, unless its answer is known or the budget of its key is spent."""
        if self._runtime.has_answer(call_id):
            self._send_kept(call_id)
        elif self._runtime.is_over_budget(call_id):
            self._runtime.count(call_id, "over_budget")
            self._ports.observer.on_run(self._task, "set_aside", None, None, call_id)
            self._emit(self._runtime.on_answer(call_id, None, SetAsideError()))
        else:
            self.running.add(call_id)
            if not self._ports.calls.call(self._task, call_id, self._runtime.call(call_id)):
                self._runtime.count(call_id, "joined")
            elif call_id in self.restored:
                self._runtime.count(call_id, "asked_again")
        self.restored.discard(call_id)

    def on_start(self) -> None:
        if unwritten := self._runtime.unwritten():
            self._ports.calls.keep(self._task, unwritten)

    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        self.running.discard(call_id)
        if self._runtime.has_answer(call_id):
            return  # the call of an earlier attempt has brought one, which is sent when the journal has it
        if (kept := self._runtime.keep(call_id, result, error)) is not None:
            self.written.add(call_id)
            self._ports.calls.keep(self._task, [kept])
        else:
            self._runtime.count(call_id, "answered")
            self._send(call_id, result, error)

    def on_kept(self, answers: Iterable[KeptAnswer]) -> None:
        for kept in answers:
            if (call_id := self._runtime.on_durable(kept)) is not None:
                self._send_kept(call_id)

    def on_outlived(self, operator: str, question: Question, result: Any, error: BaseException | None) -> None:
        """A call of an earlier attempt has an answer, and no question has joined it so far."""
        if (kept := self._runtime.keep_outlived(operator, question, result, error)) is not None:
            self._ports.calls.keep(self._task, [kept])

    def _send_kept(self, call_id: int) -> None:
        if (answer := self._runtime.sendable(call_id)) is not None:
            if call_id not in self.running and call_id not in self.written:
                self._runtime.count(call_id, "answered_before")
            self._send(call_id, *answer)

    def _send(self, call_id: int, result: Any, error: BaseException | None) -> None:
        # Where the call of an earlier attempt has brought the answer, this one's has not returned.
        self.running.discard(call_id)
        self.written.discard(call_id)
        self._ports.observer.on_run(self._task, "answer", None, None, call_id)
        self._emit(self._runtime.on_answer(call_id, result, error))
