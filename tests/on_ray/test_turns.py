"""What a task takes in a turn: while loops within its actor have enough to do, and at the end of a round.

And when its output leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.io.memory import MemoryServices
from backedge.engine.operators.async_calls import Call
from backedge.engine.operators.runtime import KeptAnswer, TaskRuntime
from backedge.engine.state.capture import load_whole
from backedge.engine.task.channel_ends import Arrivals
from backedge.engine.task.driver import UNBOUNDED, TaskDriver
from backedge.engine.task.pacing import SLICE_NS
from backedge.engine.task.ports import FlowLimits, Observer, Ports
from backedge.engine.task.turns import OUTSIDE_TURNS
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.questions import WHOLE_RECORD
from backedge.graphs.routing import tasks_of_keys
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.protocol.messages import Barrier, Data, Marker, Mode, encode_marker
from backedge.recovery.protocol.task import TaskCore
from tests.on_ray.flows import trips

ATTEMPT = Attempt(1)


class Around(Observer):
    """Stands in for the actor: all ports of a driver. Its channels are never full, and lead nowhere."""

    now_ms = 0
    steady_ms = 0
    turn_ns = 0

    def __init__(self) -> None:
        self.is_busy = False
        self.time_ns = 0
        self.captured: list[int | None] = []
        # How many captures there were each time that output left.
        self.left: list[int] = []
        self.outs: list[list[Data]] = []

    def clock_ns(self) -> int:
        return self.time_ns

    def is_going_round(self) -> bool:
        return self.is_busy

    def on_captured(self, task: TaskId, epoch: int | None) -> None:
        self.captured.append(epoch)

    def way(self, channel: Any) -> Any:
        sent: list[Data] = []
        self.outs.append(sent)
        return lambda item: sent.append(item) if isinstance(item, Data) else None

    def credit_way(self, channel: Any) -> None:
        return None

    def flush(self) -> None:
        self.left.append(len(self.captured))

    def receiving_end(self, channel: Any) -> Arrivals:
        return Arrivals(None, is_back=True, window_max=UNBOUNDED, inputs=1, memory_bytes_max=0)


def first_task_of(
    operator: str, flow: Flow, around: Around, restored: Mapping[str, OperatorState] | None = None
) -> TaskDriver:
    """The first of two tasks of an operator; what it sends ends up in `around.outs`, by channel."""
    deployment = expand(flow.plan(), 2, "slice")
    task = deployment.tasks[TaskId(operator, 0)]
    core, runtime = TaskCore(task, ATTEMPT, encode), TaskRuntime(task, deployment, MemoryServices({}))
    runtime.open(restored)
    ports: Any = Ports(*[around] * 7)  # type: ignore[arg-type]
    driver = TaskDriver(core, runtime, ports, FlowLimits(), deployment.plan)
    driver.connect()
    driver.start()
    return driver


class Body:
    """The task behind the shuffle, with batches from its own actor and from another."""

    def __init__(self) -> None:
        self.around = Around()
        self.driver = first_task_of("enough", trips(count=1), self.around)
        inputs = self.driver.core.task.inputs
        self.inside, self.outside = sorted(inputs, key=lambda channel: not channel.within_actor)
        assert self.inside.within_actor and not self.outside.within_actor

    def turn(self, inside: int, outside: int) -> tuple[int, int]:
        """One turn after so many batches have arrived; says how many of them wait behind it."""
        inboxes = self.driver.core.inboxes
        for channel, count in ((self.inside.id, inside), (self.outside.id, outside)):
            for _ in range(count):
                batch = Batch([(0, 0)], 0)
                payload = batch if channel == self.inside.id else encode(batch)
                self.driver.receive(channel, ATTEMPT, Data(inboxes[channel].received + 1, payload))
        self.driver.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)
        return len(inboxes[self.inside.id].queue), len(inboxes[self.outside.id].queue)


def test_what_comes_from_outside_waits_while_a_loop_within_the_actor_has_enough_to_do():
    body = Body()
    body.around.is_busy = True
    waits = [body.turn(inside=1, outside=1) for _ in range(2 * OUTSIDE_TURNS)]
    assert [inside for inside, _ in waits] == [0] * len(waits)
    assert [outside for _, outside in waits] == [1, 2, 3, 3, 4, 5, 6, 6], "slowed, and never stopped"


def test_nothing_waits_when_no_loop_has_enough_to_do():
    body = Body()
    assert [body.turn(inside=1, outside=1) for _ in range(5)] == [(0, 0)] * 5


def test_the_marker_behind_the_last_batch_of_a_round_is_taken_in_the_same_turn():
    flow = Flow("rounds")
    start = flow.read(Items([1, 2]), name="start")
    ended = flow.iterate(start, lambda s: s.route(lambda n: n).map(lambda n: n, name="step"), rounds=2, name="rounds")
    ended.write(Collect(), name="done")
    around = Around()
    driver = first_task_of("step", flow, around)
    marker = Marker((0,))
    for channel in driver.core.task.inputs:
        driver.receive(channel.id, ATTEMPT, Data(1, encode(Batch([channel.id.sender.index], 0))))
        driver.receive(channel.id, ATTEMPT, Data(2, encode_marker(marker), marker))
    driver.turn(taken_max=8, read_max=8, until_ns=SLICE_NS)
    went_on = [item.marker.path for out in around.outs for item in out if item.marker is not None]
    assert went_on == [(0,)] * len(around.outs), "the round is over here, and everyone is told"


def test_output_leaves_before_the_barrier_behind_the_batch_is_seen():
    """A capture may take milliseconds, and receivers of the output need not wait for it."""
    flow = Flow("steps")
    flow.read(Items([]), name="read").key_by(lambda n: n).map(lambda n: n, name="step").key_by(lambda n: n).write(
        Collect(), name="done"
    )
    around = Around()
    driver = first_task_of("step", flow, around)
    for channel in driver.core.task.inputs:
        driver.receive(channel.id, ATTEMPT, Data(1, encode(Batch([1], 0))))
        digest = driver.core.inboxes[channel.id].received_digest
        driver.receive(channel.id, ATTEMPT, Barrier(Epoch(1), Mode.ALIGNED, 1, digest))
    driver.turn(taken_max=8, read_max=8, until_ns=SLICE_NS)
    assert sum(map(len, around.outs)) == len(driver.core.task.inputs)
    assert (around.left, around.captured) == ([0, 0], [1])


class Caller(Around):
    """Also makes the calls of the task, and keeps what is to be written to the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[int, Question]] = []
        self.unwritten: list[KeptAnswer] = []
        self.goes_on: set[Question] = set()

    def call(self, task: TaskId, call_id: int, call: Call) -> bool:
        assert call.question is not None
        self.made.append((call_id, call.question))
        return call.question not in self.goes_on

    def keep(self, task: TaskId, answers: Sequence[KeptAnswer]) -> None:
        self.unwritten += answers

    @property
    def sent(self) -> list[Any]:
        payloads = [item.payload for sent in self.outs for item in sent]
        batches = [each if isinstance(each, Batch) else decode(each) for each in payloads]
        return [record for batch in batches for record in batch.records]


def asking_for_text() -> Flow:
    flow = Flow()
    flow.read(Items([])).map_async(str, name="ask").rebalance().write(Collect(), name="answers")
    return flow


@pytest.fixture
def asked() -> tuple[Caller, TaskDriver]:
    """A task that has made one call, whose answer is kept."""
    around = Caller()
    driver = first_task_of("ask", asking_for_text(), around)
    # The first of two tasks is asked what its key groups have.
    record = next(n for n in range(99) if tasks_of_keys([WHOLE_RECORD(n)], 2)[0] == 0)
    driver.receive(driver.core.task.inputs[0].id, ATTEMPT, Data(1, encode(Batch([record], 0))))
    driver.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)
    return around, driver


def test_an_answer_that_is_kept_leaves_when_the_journal_has_it(asked: tuple[Caller, TaskDriver]):
    around, driver = asked
    ((call_id, _),) = around.made
    driver.calls.on_answer(call_id, "seven", None)
    assert around.sent == []
    driver.calls.on_kept(around.unwritten)
    assert around.sent == ["seven"]
    assert driver.runtime.counted()["ask"].counters == {"answered": 1}


def test_an_answer_that_an_earlier_call_has_brought_counts_and_leaves_when_the_journal_has_it(
    asked: tuple[Caller, TaskDriver],
):
    around, driver = asked
    ((call_id, question),) = around.made
    driver.calls.on_outlived("ask", question, "seven", None)
    driver.calls.on_answer(call_id, "7", None)
    assert around.sent == []
    driver.calls.on_kept(around.unwritten)
    assert around.sent == ["seven"]
    assert not driver.calls.running


def test_what_calls_bring_cost_and_save_is_counted():
    flow, around = Flow(), Caller()
    by_key = flow.read(Items([])).key_by(lambda _: 0)
    answers = by_key.map_async(str, cost=len, budget=3, on_error="dead_letter", name="ask")
    answers.rebalance().write(Collect(), name="answers")
    answers.dead_letters.rebalance().write(Collect(), name="refused")
    driver = first_task_of("ask", flow, around)

    def take(seq: int, record: int) -> None:
        driver.receive(driver.core.task.inputs[0].id, ATTEMPT, Data(seq, encode(Batch([record], 0))))
        driver.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)

    take(1, 7)
    ((call_id, question),) = around.made
    driver.calls.on_answer(call_id, "7", None)
    driver.calls.on_outlived("ask", question._replace(number=1), "77", None)
    driver.calls.on_kept(around.unwritten)
    take(2, 7)
    take(3, 8)
    assert len(around.made) == 1
    assert around.sent == ["7", "77", 8]
    counted = driver.runtime.counted()["ask"].counters
    assert counted == {"answered": 2, "cost": 3, "spare": 1, "answered_before": 1, "over_budget": 1}


def test_what_was_paid_for_is_state_and_an_answer_counts_once_whether_cut_or_journal_has_it():
    flow, around = Flow(), Caller()
    asked = flow.read(Items([])).key_by(lambda _: 0).map_async(str, cost=len, name="ask")
    asked.rebalance().write(Collect(), name="answers")
    driver = first_task_of("ask", flow, around)
    driver.receive(driver.core.task.inputs[0].id, ATTEMPT, Data(1, encode(Batch([7], 0))))
    driver.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)
    ((call_id, question),) = around.made
    driver.calls.on_answer(call_id, "7", None)
    driver.calls.on_kept(around.unwritten)
    driver.calls.on_outlived("ask", question._replace(number=1), "77", None)
    known = [kept.known for kept in around.unwritten]
    states = captured(driver)
    assert paid_in(states) == {"answers": 2, "cost": 3, "used": 1, "cost_used": 1}
    again = first_task_of("ask", flow, around, states)
    more = Known(question._replace(number=2), known[0].answer, 5)
    written_again = Known(question._replace(number=3), known[0].answer)
    again.runtime.load_answers(lambda _: [(Epoch(1), one) for one in (*known, more, written_again)], Epoch(1))
    assert paid_in(captured(again)) == {"answers": 4, "cost": 8, "used": 1, "cost_used": 1}


def captured(driver: TaskDriver) -> Mapping[str, OperatorState]:
    capture = driver.runtime.capture(Epoch(1), ATTEMPT)
    capture.encode_some()
    return capture.states


def paid_in(states: Mapping[str, OperatorState]) -> Any:
    return load_whole("ask", states["ask"])["paid"]


def test_of_the_records_in_a_cut_it_is_counted_which_calls_are_made_again_and_which_are_joined(
    asked: tuple[Caller, TaskDriver],
):
    around, driver = asked
    ((_, question),) = around.made
    states = captured(driver)
    counted: list[Any] = []
    for goes_on in ({question}, set[Question]()):
        around.goes_on = goes_on
        restored = first_task_of("ask", asking_for_text(), around, states)
        restored.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)
        counted.append(restored.runtime.counted()["ask"].counters)
    assert counted == [{"joined": 1}, {"asked_again": 1}]
