"""Runs the user code of one task. Pure: no clock, no I/O, no threads; all randomness comes from seeded state.

A driver calls these methods one at a time, and puts what they return into the channels in that order. A runtime that
has raised is not used again: the run has failed, or resumes from a cut with new runtimes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import count, islice
from typing import Any, NamedTuple, TypeVar

from backedge.engine.batches.batch import Batch
from backedge.engine.operators.async_calls import Call
from backedge.engine.operators.base import CallingRuntime, Moment, OperatorRuntime, Place, ReadingRuntime, TimedRuntime
from backedge.engine.operators.iterate import IterateOperator
from backedge.engine.operators.sending import Emitted, Send
from backedge.engine.operators.services import Services
from backedge.engine.operators.sink import SinkOperator
from backedge.engine.operators.wiring import wire
from backedge.engine.state.capture import Capture, OperatorCapture, load_whole
from backedge.engine.state.keyed_state import KeyedState
from backedge.engine.state.touched_keys import Bases
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import groups_of_task, key_group
from backedge.graphs.task_errors import USER_RAISED, user_error
from backedge.recovery.cut.cut import OperatorState, Transaction
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.stores.run_status import CountedStatus

Some = TypeVar("Some", bound=OperatorRuntime)


class _CallIds(Iterator[int]):
    """The numbers of the external calls of a task. Those given out, and not made yet, are kept in a queue.

    Of thousands of calls that wait, a look for the next one would otherwise meet all those that have an answer.
    """

    def __init__(self) -> None:
        self.given: deque[int] = deque()
        self._ids = count(1)

    def __next__(self) -> int:
        self.given.append(call_id := next(self._ids))
        return call_id


class KeptAnswer(NamedTuple):
    """An entry for the journal of an operator, and the segment that it belongs to."""

    operator: str
    segment: Epoch
    known: Known


class TaskRuntime:
    """The operators of one task.

    >>> from backedge.engine.io.memory import MemoryServices
    >>> from backedge import Collect, Flow, Items
    >>> from backedge.graphs.expansion import expand
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2, 3]), name="numbers").map(lambda n: n * n).rebalance().write(Collect(), name="squares")
    >>> deployment = expand(flow.plan())
    >>> runtime = TaskRuntime(deployment.tasks[TaskId("numbers", 0)], deployment, MemoryServices({}))
    >>> runtime.open(None)
    >>> [batch.records for channel, batch in runtime.produce(10, now_ms=0)]
    [[1, 4, 9]]
    """

    def __init__(
        self,
        task: Task,
        deployment: Deployment,
        services: Services,
        seed: int = 0,
        keyed_state: type[KeyedState] = KeyedState,
    ) -> None:
        self.task = task
        self._parallelism = deployment.parallelism[task.id.name]
        self._out: Emitted = []
        self._moment = Moment(0, (0,) * task.depth if task.depth else None)
        self._captures: list[Capture] = []
        self._bases = Bases()
        self._new_calls = _CallIds()
        plan, captures, call_ids = deployment.plan, self._captures, self._new_calls

        def make_place(name: str, sends: Mapping[str, Send]) -> Place:
            at, count = TaskId(name, task.id.index), deployment.parallelism[name]
            shared = deployment.parallelism, sends, self._moment, captures, call_ids, services, seed, keyed_state
            return Place(plan.operators[name], at, count, *shared)

        self._wiring = wire(task, plan, self._out, make_place)
        operators = self._wiring.operators
        self._doors = {c.edge.name: operators[c.edge.receiver].door(c.edge) for c in task.inputs}
        self._reading = self._all(ReadingRuntime)
        self._sinks = self._all(SinkOperator)
        self._timed = self._all(TimedRuntime)
        self._callers = self._all(CallingRuntime)
        self._heads = self._all(IterateOperator)

    def _all(self, kind: type[Some]) -> list[Some]:
        return [operator for operator in self._wiring.operators.values() if isinstance(operator, kind)]

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self, restored: Mapping[str, OperatorState] | None, base: Epoch | None = None) -> None:
        """Open the operators, fresh or with the states of a cut. An operator without a state in the cut starts fresh.

        `base` is the cut if this is its state of this very task: the next capture may hold what changed since.

        If one of them fails, those that were opened before it are closed, and so is whatever it had opened itself.
        """
        try:
            for name, operator in self._wiring.operators.items():
                state = None if restored is None else restored.get(name)
                whole = {} if state is None else load_whole(name, state)
                operator.open(state, whole)
                self._restore_sending(name, whole)
                if base is not None and operator.keyed_state is not None:
                    operator.keyed_state.begin(base)
        except BaseException:
            self.close()
            raise

    def end(self, now_ms: int) -> Emitted:
        """No more input will arrive: run the `on_end` hooks, upstream first."""
        if self.unanswered:
            raise RuntimeError(f"task {self.task.id} cannot end: {len(self.unanswered)} calls have no answer yet")
        self._moment.now_ms = now_ms
        for operator in self._wiring.operators.values():
            operator.end()
        return self._take_emitted()

    def close(self) -> None:
        """Release everything, including what users opened. State that was not captured is lost."""
        for operator in self._wiring.operators.values():
            operator.close()
        for capture in self._captures:
            capture.discard()
        self._captures.clear()

    # -- records -------------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing to read; in a source, whether there never will be."""
        return all(reading.exhausted for reading in self._reading)

    @property
    def reads(self) -> bool:
        return bool(self._reading)

    @property
    def has_unread(self) -> bool:
        return any(reading.has_unread for reading in self._reading)

    @property
    def records_read(self) -> int:
        """The number of records that were read; by a source, including those before a restore."""
        return sum(reading.sent for reading in self._reading)

    def produce(self, records_max: int, now_ms: int) -> Emitted:
        """Read at most `records_max` records, and run the operators chained to what reads them."""
        self._moment.now_ms = now_ms
        for reading in self._reading:
            reading.produce(records_max)
        return self._take_emitted()

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        """Run the chain on a batch of a channel. The task owns the batch from now on."""
        self._moment.now_ms = now_ms
        if batch.records:
            self._doors[channel.id.edge](batch.records, batch.hops)
        return self._take_emitted()

    def _take_emitted(self) -> Emitted:
        emitted = self._out[:]
        self._out.clear()
        return emitted

    @property
    def waits(self) -> bool:
        """Whether an operator may wait for a timer or an answer."""
        return bool(self._timed or self._callers)

    def counted(self) -> dict[str, CountedStatus]:
        found = {name: each.meters.counted() for name, each in self._wiring.operators.items() if each.meters}
        return {name: counted for name, counted in found.items() if counted.counters or counted.histograms}

    # -- timers and calls ----------------------------------------------------------------------------------------

    @property
    def next_timer_ms(self) -> int | None:
        times = [operator.next_timer_ms for operator in self._timed]
        return min((time for time in times if time is not None), default=None)

    @property
    def restored_ms(self) -> int:
        """The time of the restored cut, if timers depend on it; else 0."""
        return max((operator.restored_ms for operator in self._timed), default=0)

    def fire_timers(self, now_ms: int) -> Emitted:
        self._moment.now_ms = now_ms
        for operator in self._timed:
            operator.fire_timers(now_ms)
        return self._take_emitted()

    @property
    def open_calls(self) -> int:
        return sum(len(operator.waiting) for operator in self._callers)

    def next_call(self) -> int | None:
        """The next external call to make, in the order of arrival. Each is returned once."""
        new = self._new_calls.given
        while new:
            call_id = new.popleft()
            if any(call_id in operator.waiting for operator in self._callers):
                return call_id
        return None

    @property
    def unanswered(self) -> tuple[int, ...]:
        """The ids of the external calls without an answer, in the order of arrival."""
        return tuple(sorted(call_id for operator in self._callers for call_id in operator.waiting))

    def call(self, call_id: int) -> Call:
        """The function to call, and the record: a copy, which the function may change."""
        return self._caller(call_id).call(call_id)

    def on_answer(self, call_id: int, result: Any, error: BaseException | None = None) -> Emitted:
        """A call has returned or failed; a call that took too long has failed with a TimeoutError."""
        self._caller(call_id).on_answer(call_id, result, error)
        return self._take_emitted()

    def question(self, call_id: int) -> tuple[str, Question] | None:
        """The operator that asks, and its question, if the answer is kept."""
        caller = self._caller(call_id)
        found = caller.question(call_id)
        return None if found is None else (caller.name, found)

    def is_over_budget(self, call_id: int) -> bool:
        """Whether the record is set aside instead of a call."""
        return self._caller(call_id).is_over_budget(call_id)

    def count(self, call_id: int, what: str) -> None:
        """Count for the status what became of a call."""
        if (meters := self._caller(call_id).meters) is not None:
            meters.counter(what).add()

    def has_answer(self, call_id: int) -> bool:
        return self._caller(call_id).has_answer(call_id)

    def keep(self, call_id: int, result: Any, error: BaseException | None) -> KeptAnswer | None:
        """What the journal must have before the answer of a call is sent; None: send it now."""
        caller = self._caller(call_id)
        entry = caller.keep(call_id, result, error)
        return None if entry is None else KeptAnswer(caller.name, caller.segment, entry)

    def keep_outlived(
        self, operator: str, question: Question, result: Any, error: BaseException | None
    ) -> KeptAnswer | None:
        """Like `keep`, for a call of an earlier attempt. None if the question is not one of this task."""
        if not self._is_own(question):
            return None
        for caller in self._callers:
            if caller.name == operator and (entry := caller.keep_outlived(question, result, error)) is not None:
                return KeptAnswer(operator, caller.segment, entry)
        return None

    def unwritten(self) -> list[KeptAnswer]:
        """The answers of a restore that the journal may not have for every cut."""
        return [
            KeptAnswer(caller.name, caller.segment, entry) for caller in self._callers for entry in caller.unwritten()
        ]

    def load_answers(self, read: Callable[[str], Iterable[tuple[Epoch, Known]]], segment: Epoch) -> None:
        """Take what the journal has of each operator since the restored cut."""
        for caller in self._callers:
            if caller.place.operator.kind.keeps_answers:
                found = ((of, known) for of, known in read(caller.name) if self._is_own(known.question))
                caller.load_answers(found, segment)

    def _is_own(self, question: Question) -> bool:
        """Whether a question is in the key groups of this task."""
        return key_group(question.key) in groups_of_task(self.task.id.index, self._parallelism)

    def on_durable(self, kept: KeptAnswer) -> int | None:
        """The journal has an answer. Returns the call that waits for it, if there is one."""
        caller = next(caller for caller in self._callers if caller.name == kept.operator)
        return caller.on_durable(kept.known.question)

    def sendable(self, call_id: int) -> tuple[Any, BaseException | None] | None:
        """The result or the error of a call, if the journal has it."""
        return self._caller(call_id).sendable(call_id)

    def place_of_call(self, call_id: int) -> tuple[str, int]:
        """The operator that makes a call, and the place of the call among its open ones: the same after a restore."""
        caller = self._caller(call_id)
        return caller.name, next(place for place, waiting in enumerate(caller.waiting) if waiting == call_id)

    def call_at(self, operator: str, place: int) -> int | None:
        """The call of which `place_of_call` says this; None if fewer are open."""
        waiting = next(caller for caller in self._callers if caller.name == operator).waiting
        return next(islice(waiting, place, None), None)

    def _caller(self, call_id: int) -> CallingRuntime:
        for operator in self._callers:
            if call_id in operator.waiting:
                return operator
        raise LookupError(f"task {self.task.id} has no open call {call_id}; its open calls are {self.unanswered}")

    # -- rounds --------------------------------------------------------------------------------------------------

    @property
    def round(self) -> tuple[int, ...] | None:
        """The round that hooks see as `ctx.round`. A driver sets it after a restore under another parallelism."""
        return self._moment.round

    @round.setter
    def round(self, path: tuple[int, ...] | None) -> None:
        self._moment.round = path

    def on_round_end(self, path: tuple[int, ...], now_ms: int) -> Emitted:
        """A round is complete here: run the hooks, upstream first, then begin the next round of that level."""
        self._moment.now_ms = now_ms
        self._moment.round = path
        for operator in self._wiring.operators.values():
            operator.on_round_end(path)
        self._moment.round = (*path[:-1], path[-1] + 1, *(0 for _ in range(self.task.depth - len(path))))
        return self._take_emitted()

    def take_contributions(self, iteration: str) -> Any | None:
        """The combined measure of what was sent over that iteration's back edge since the last call, or None."""
        measures = [m[iteration] for m in self._wiring.measures.values() if iteration in m]
        totals = [total for total in [measure.take() for measure in measures] if total is not None]
        if not totals:
            return None
        try:
            return reduce(measures[0].fold, totals)
        except USER_RAISED as error:
            raise user_error(iteration, error, hook="reduce", can_set_aside=False) from error

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        """Whether the iteration has another round after `path`, given all tasks' contributions. For heads only."""
        return self._head.decide(path, {task: value for task, value in contributions.items() if value is not None})

    def release_round(self) -> Emitted:
        self._head.release_round()
        return self._take_emitted()

    def release_result(self) -> Emitted:
        self._head.release_result()
        return self._take_emitted()

    @property
    def _head(self) -> IterateOperator:
        if not self._heads:
            raise RuntimeError(f"task {self.task.id} is not the head of an iteration, so it cannot decide about rounds")
        return self._heads[0]

    # -- snapshots -----------------------------------------------------------------------------------------------

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> Capture:
        """Capture the current state, to be encoded later. Sinks prepare a transaction.

        If every operator knows what changed since `base`, keyed state is captured as a delta. If that holds all that
        the delta of the base holds, it is one since the base's own base as well.
        """
        self._captures[:] = [capture for capture in self._captures if capture.is_open]
        operators = self._wiring.operators
        keyed = [state for operator in operators.values() if (state := operator.keyed_state) is not None]
        if base is None or not keyed or not all(state.has_base(base) for state in keyed):
            base = None
        captures: dict[str, OperatorCapture] = {}
        for name, operator in operators.items():
            captures[name] = operator.capture(epoch, attempt, base)
            self._capture_sending(name, captures[name])
        capture = Capture(captures, None if base is None else self._bases.since(epoch, base, keyed))
        self._captures.append(capture)
        return capture

    def _capture_sending(self, name: str, capture: OperatorCapture) -> None:
        """Add the state of the operator's outgoing edges, and the round, to its capture."""
        turns = {turn.edge: turn.position for turn in self._wiring.turns[name] if turn.position}
        measured = self._wiring.measures[name].items()
        measures = {iteration: measure.total for iteration, measure in measured if measure.total is not None}
        if turns:
            capture.whole["turns"] = turns
        if measures:
            capture.whole["measures"] = measures
            capture.whole_can_move = False
        if self._moment.round is not None:
            capture.whole["round"] = self._moment.round

    def _restore_sending(self, name: str, whole: Mapping[str, Any]) -> None:
        for turn in self._wiring.turns[name]:
            turn.position = whole.get("turns", {}).get(turn.edge, 0)
        for iteration, measure in self._wiring.measures[name].items():
            measure.total = whole.get("measures", {}).get(iteration)
        if "round" in whole:
            self._moment.round = whole["round"]

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """The transactions that the sinks have prepared and not yet committed."""
        return tuple(transaction for sink in self._sinks for transaction in sink.transactions.values())

    def commit(self, names: Sequence[str]) -> None:
        """Publish those of these transactions that belong to this task. Repeating this has no effect."""
        if names:
            for sink in self._sinks:
                sink.commit(set(names))
