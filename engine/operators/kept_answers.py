"""map_async whose answers are kept: what was answered once is not asked again, whatever fails.

What waits, and what is known of its answers, is kept by key, and moves with its key group
(`recovery/protocol/answers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from numbers import Number, Real
from typing import Any, cast

import numpy as np

from backedge.engine.batches.batch import Hops, spread
from backedge.engine.operators.async_calls import Call, SetAsideError, in_event_loop
from backedge.engine.operators.base import Place
from backedge.engine.operators.map_async import RECORD, MapAsyncOperator
from backedge.engine.operators.sending import TakeRecords
from backedge.engine.state.capture import OperatorCapture, dump, load
from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import MapAsync
from backedge.graphs.options import is_async
from backedge.graphs.plan import Edge
from backedge.graphs.questions import digest_of
from backedge.graphs.routing import key_group, key_in_group
from backedge.graphs.task_errors import USER_RAISED, MisuseError, TaskError, show, user_error
from backedge.graphs.versions import AttemptOverError
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.answers import SPENT, Known, Question, Questions

ANSWER = "an answer"
SET_ASIDE = b""
"""The answer to a record that goes to the dead letters."""

PAID = ("answers", "cost", "used", "cost_used")
"""What is counted of answers that are paid for."""

COST_MAX = 2.0**63
"""The journal has no larger integers."""

IDLE_LOOK_S = 0.1
NUMBERS: Any = (Number, np.bool_)
WITHIN_GROUP = (1 << 57) - 1


def opened(operator: str, answer: bytes) -> tuple[Any, BaseException | None]:
    """The result or the error that is kept."""
    return (None, SetAsideError()) if answer == SET_ASIDE else (load(operator, ANSWER, answer), None)


def _of_one_type(key: Any) -> Any:
    """A key whose digest is that of all keys that are equal to it: 1, 1.0 and NumPy's 1 have one budget.

    >>> [repr(_of_one_type(key)) for key in ((True, "a"), 2.0, 0.5)]
    ["(1, 'a')", '2', '0.5']
    """
    if isinstance(key, tuple):
        return tuple(map(_of_one_type, cast("tuple[Any, ...]", key)))
    if not isinstance(key, NUMBERS):
        return key
    try:
        whole = int(key)
    except (ValueError, OverflowError):  # NaN and the infinite
        return float(key)
    return whole if whole == key else float(key)


class KeptAnswersOperator(MapAsyncOperator):
    """Keeps the records whose answers are not sent, and the answers.

    - paid: the answers that calls have brought, in all attempts up to now, and those that were sent; by `PAID`.
    - unpaid: what was raised for the cost of an answer. It ends the run when the journal has that answer.
    """

    questions_class = Questions
    _key: Callable[[Any], Any]
    """The key of a record, from the edges that are accepted."""

    def __init__(self, kind: MapAsync, place: Place) -> None:
        super().__init__(kind, place)
        self._asked_about = kind.asked_about
        self._by_question = place.operator.keys.get("in") == kind.asked_about
        self._state = self.keyed_values()
        self._questions = self.questions_class(self._state, Epoch(0))
        self._asked: dict[int, Question] = {}
        self._calls: dict[Question, int] = {}
        self._running = 0
        self._is_closed = False
        self._paid: dict[str, float] = dict.fromkeys(PAID, 0)
        self._unpaid: TaskError | None = None

    # -- restore and capture -------------------------------------------------------------------------------------------

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        if state is not None:
            self._state.restore(keyed_entries(state, self.name).values)
        self._questions = self.questions_class(self._state, Epoch(0), whole.get("first_number", 0))
        self._paid.update(whole.get("paid", {}))
        for question, record in self._questions.waiting():
            self._wait_for(question, record)
        for payload in () if state is None else state.pending:  # of a run whose answers were not kept
            record, hops = load(self.name, RECORD, payload)
            self._ask([record], hops)

    def load_answers(self, entries: Iterable[tuple[Epoch, Known]], segment: Epoch) -> None:
        """What the journal has since the restored cut, with its segments. New answers go into `segment`."""
        self._questions.segment = segment
        for of, entry in entries:
            if self._questions.load(entry, of):
                self._add("answers", "cost", entry.cost or 0)
                self._pay(entry.question)

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """What waits and what is known, by key."""
        self._questions.on_capture(epoch)
        capture = OperatorCapture(values=self._state.capture(epoch, base))
        if self._questions.first:
            capture.whole["first_number"] = self._questions.first
        if self._paid["answers"]:
            capture.whole["paid"] = dict(self._paid)
        return capture

    # -- questions -----------------------------------------------------------------------------------------------------

    def accept(self, edge: Edge) -> TakeRecords:
        self._key = self.key_of(edge)
        return self._ask

    def _ask(self, records: list[Any], hops: Hops) -> None:
        for record, hop in zip(records, spread(hops, len(records)), strict=True):
            key, identity = self._key_and_identity(record)
            payload = dump(self.name, RECORD, (record, hop))
            kept_under = key_in_group(key_group(key), int(identity, 16) & WITHIN_GROUP)
            question = self._questions.ask(kept_under, identity, payload)
            self._wait_for(question, payload)
            self._pay(question)

    def _key_and_identity(self, record: Any) -> tuple[Any, str]:
        """The key that the record is routed by, and its identity among the questions of this task."""
        try:
            identity = self._asked_about(record)
        except TaskError:
            raise
        except USER_RAISED as error:
            raise user_error(self.name, error, record, hook="call_key", can_set_aside=False) from error
        if self._by_question:
            return identity, identity
        # Records of one key may be asked about at the same task only.
        key = self._key(record)
        return key, digest_of((key, identity))

    def _wait_for(self, question: Question, payload: bytes) -> None:
        call_id = next(self.place.call_ids)
        self.waiting[call_id] = payload
        self._asked[call_id], self._calls[question] = question, call_id

    def question(self, call_id: int) -> Question:
        return self._asked[call_id]

    def call(self, call_id: int) -> Call:
        return super().call(call_id)._replace(question=self._asked[call_id])

    # -- the instance of a class ---------------------------------------------------------------------------------------

    async def _start(self, made: Any) -> None:
        await super()._start(made)
        self._function = self._counted(self._instance)

    def _counted(self, instance: Any) -> Any:
        """The instance as a function that counts its calls: they go on when the task is over, and need it."""

        async def call_async(record: Any) -> Any:
            self._count()
            try:
                return await instance(record)
            finally:
                self._running -= 1

        def call(record: Any) -> Any:
            self._count()
            try:
                result = instance(record)
            except BaseException:
                self._running -= 1
                raise
            if isawaitable(result):
                return self._counted_down(result)
            self._running -= 1
            return result

        return call_async if is_async(instance) else call

    def _count(self) -> None:
        """Count a call that begins. It may have waited for its turn until the instance was closed."""
        if self._is_closed:
            raise AttemptOverError(f"the instance that operator {self.name!r} calls is closed")
        self._running += 1

    async def _counted_down(self, answering: Awaitable[Any]) -> Any:
        try:
            return await answering
        finally:
            self._running -= 1

    def close(self) -> None:
        """Let the instance release what it has opened, when its calls have ended."""
        self._is_closed = not self._running
        if self._is_closed:
            super().close()
        else:
            in_event_loop(self._close_later())

    async def _close_later(self) -> None:
        while self._running:
            await asyncio.sleep(IDLE_LOOK_S)
        self._is_closed = True
        await self._close()

    # -- answers -------------------------------------------------------------------------------------------------------

    def has_answer(self, call_id: int) -> bool:
        return self._questions.has_answer(self._asked[call_id])

    def keep(self, call_id: int, result: Any, error: BaseException | None) -> Known | None:
        return self.keep_outlived(self._asked[call_id], result, error)

    def keep_outlived(self, question: Question, result: Any, error: BaseException | None) -> Known | None:
        if error is not None and not self.sets_aside:
            return None
        answer = SET_ASIDE if error is not None else dump(self.name, ANSWER, result)
        if (entry := self._questions.on_answer(question, answer)) is None:
            return None
        self._meters.counter("answered").add()
        if question not in self._calls:
            self._meters.counter("spare").add()
        cost: float = 0
        try:
            cost = self._cost_of(result, error)
            self._pay(question, cost)
        except TaskError as failure:
            self._unpaid = failure
        self._add("answers", "cost", cost)
        if self._kind.cost is not None:
            self._meters.counter("cost").add(cost)
        return entry._replace(cost=cost)

    # -- costs ---------------------------------------------------------------------------------------------------------

    def is_over_budget(self, call_id: int) -> bool:
        budget = self._kind.budget
        return budget is not None and self._questions.spent(self._payer(self.waiting[call_id])) >= budget

    def _pay(self, question: Question, cost: float | None = None) -> None:
        """An answer has become known, or a record has asked for one that was: both are state, so this happens once.

        Without its `cost`, the answer is asked for it.
        """
        if self._kind.budget is None:
            return
        call_id, answer = self._calls.get(question), self._questions.answer(question)
        if call_id is not None and answer is not None and answer != SET_ASIDE:
            cost = self._cost_of(*opened(self.name, answer)) if cost is None else cost
            self._questions.spend(self._payer(self.waiting[call_id]), cost)

    def _add(self, answers: str, costs: str, cost: float) -> None:
        self._paid[answers] += 1
        self._paid[costs] += cost

    def _payer(self, payload: bytes) -> int:
        """What the costs of a record's key are kept under."""
        record, _ = load(self.name, RECORD, payload)
        key = self._key(record)
        return key_in_group(key_group(key), int(digest_of((_of_one_type(key), SPENT)), 16) & WITHIN_GROUP)

    def _cost_of(self, answer: Any, error: BaseException | None) -> float:
        cost = self._kind.cost
        if cost is None or error is not None:
            return 0
        try:
            found: Any = answer[cost] if isinstance(cost, str) else cost(answer)
        except USER_RAISED as raised:
            raise user_error(self.name, raised, answer, hook="cost", can_set_aside=False) from raised
        if isinstance(found, bool) or not isinstance(found, Real) or not 0 <= cast(float, found) < COST_MAX:
            raise MisuseError(
                f"operator {self.name!r}: cost= gives {show(found)} for the answer {show(answer)}: it must be a number "
                "of 0 or more, below 2 to the power of 63"
            )
        # The journal takes no numbers of NumPy.
        return int(found) if isinstance(found, int) else float(found)

    def unwritten(self) -> list[Known]:
        return self._questions.unwritten()

    def on_durable(self, question: Question) -> int | None:
        if self._unpaid is not None:
            raise self._unpaid
        return self._calls.get(question) if self._questions.on_durable(question) else None

    def sendable(self, call_id: int) -> tuple[Any, BaseException | None] | None:
        answer = self._questions.sendable(self._asked[call_id])
        return None if answer is None else opened(self.name, answer)

    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        question = self._asked[call_id]
        if self._questions.has_answer(question):
            self._add("used", "cost_used", self._cost_of(result, error))
        super().on_answer(call_id, result, error)
        del self._asked[call_id], self._calls[question]
        self._questions.on_sent(question)

    @property
    def segment(self) -> Epoch:
        return self._questions.segment
