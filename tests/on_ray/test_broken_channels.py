"""What an actor does when a channel or the user's code breaks: the attempt fails, or the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Range
from backedge.engine.batch import Batch, encode
from backedge.engine.on_ray.transport.control_messages import Outcome
from backedge.engine.on_ray.transport.frames import Kind, Message, pack_header, unpack_header
from backedge.engine.task_errors import StateSerializationError, UserFunctionError
from backedge.graphs.ids import Epoch, TaskId
from tests.faults.evidence import Evidence
from tests.on_ray.in_process import Attending, Disturb, Snapshots, options

SOURCE, SINK = TaskId("numbers", 0), TaskId("kept", 0)


def pipe(count: int | None = None) -> Flow:
    """A source and a sink, each in its own actor; endless unless it is told how many."""
    flow = Flow("pipe")
    flow.read(Generate(lambda position: position, count), name="numbers").rebalance().write(Collect(), name="kept")
    return flow


def counted(function: Callable[[Any], Any]) -> Flow:
    """A source, a function of the user's, a sink."""
    flow = Flow("counted")
    numbers = flow.read(Range(100), name="numbers").rebalance()
    numbers.map(function, name="weigh").rebalance().write(Collect(), name="kept")
    return flow


def records_of(run: Attending, task: TaskId) -> int:
    """What a task has taken or read so far."""
    return run.loops[run.deployment.tasks[task].actor].counts.records


def only_batch(number: int, change: Callable[[Message], list[Message]]) -> Disturb:
    """Does something to one batch of a channel."""

    def disturb(message: Message) -> Iterable[Message]:
        kind, _, _, seq = unpack_header(message[0])
        return change(message) if kind == Kind.BATCH and seq == number else [message]

    return disturb


def other_content(message: Message) -> list[Message]:
    return [(message[0], encode(Batch(["other"])))]


def other_number(message: Message) -> list[Message]:
    kind, attempt, channel, number = unpack_header(message[0])
    return [(pack_header(kind, attempt, channel, number + 1), message[1])]


FAULTS: list[Callable[[Message], list[Message]]] = [
    lambda message: [],
    lambda message: [message, message],
    other_number,
    other_content,
]


@pytest.mark.parametrize("change", FAULTS, ids=["lost", "doubled", "renumbered", "damaged"])
def test_a_disturbed_channel_fails_the_attempt(change: Callable[[Message], list[Message]]):
    store = Snapshots()
    with Attending(
        pipe(), store=store, options=options(), disturb={("numbers/0", "kept/0"): only_batch(5, change)}
    ) as run:
        run.begin()
        run.until(lambda: records_of(run, SOURCE) > 5, "batches are on their way")
        run.trigger(1)
        run.until(lambda: "kept/0" in run.outcomes, "the sink has left")
        outcome = run.outcomes["kept/0"]
        assert outcome.end == "failed" and "ChannelIntegrityError in actor kept/0" in outcome.reason
        assert (SINK, Epoch(1)) not in store.kept


def test_two_batches_that_are_swapped_fail_the_attempt(evidence: Evidence):
    kept: list[Message] = []
    swapped = 0

    def swap(message: Message) -> Iterable[Message]:
        nonlocal swapped
        kind, _, _, seq = unpack_header(message[0])
        if kind == Kind.BATCH and seq == 5:
            kept.append(message)
            return []
        if not kept:
            return [message]
        swapped += 1
        return [message, kept.pop()]

    with Attending(pipe(), options=options(), disturb={("numbers/0", "kept/0"): swap}) as run:
        run.begin()
        run.until(lambda: "kept/0" in run.outcomes, "the sink has left")
        assert "batch 6 arrived instead of 5" in run.outcomes["kept/0"].reason
    evidence.happened("batches that were swapped", swapped)
    evidence.survived("attempts that failed before anything was committed", not run.published())


def failing(task: TaskId, flow: Flow, **changed: Any) -> Outcome:
    """What becomes of the actor of a task."""
    with Attending(flow, store=Snapshots(), options=options(), **changed) as run:
        actor = run.deployment.tasks[task].actor
        run.until(lambda: len(run.restored()) == len(run.deployment.tasks) or actor in run.outcomes, "all are restored")
        run.start(*(name for name in run.names if name not in run.outcomes))
        run.until(lambda: actor in run.outcomes or run.loops[actor].counts.records > 0, "there is state")
        run.trigger(1)
        run.until(lambda: actor in run.outcomes, "the actor has left")
    return run.outcomes[actor]


def test_an_exception_of_the_users_breaks_the_run_and_says_where():
    outcome = failing(TaskId("weigh", 0), counted(lambda n: 1 / (n - 40)))
    assert outcome.end == "broken"
    assert isinstance(outcome.error, UserFunctionError)
    text = str(outcome.error)
    assert "operator 'weigh' raised ZeroDivisionError" in text and "record: 40" in text
    assert "test_broken_channels.py" in text, "with the user's frames"
    assert "engine/" not in text, "and none of ours"


def test_an_exception_in_on_start_breaks_the_run_too():
    class Broken:
        def on_start(self, ctx: Any) -> None:
            raise ConnectionError("no model server at this address")

        def on_record(self, ctx: Any, value: Any) -> None:
            ctx.emit(value)

    flow = Flow("broken")
    flow.read(Range(3), name="numbers").rebalance().process(Broken, name="infer").write(Collect())
    outcome = failing(TaskId("infer", 0), flow)
    assert outcome.end == "broken"
    assert isinstance(outcome.error, UserFunctionError) and "no model server" in str(outcome.error)


def test_state_that_does_not_pickle_breaks_the_run_and_names_the_operator():
    flow = Flow("locks")
    numbers = flow.read(Generate(lambda position: position), name="numbers").key_by(lambda n: n % 2)
    locks = numbers.stateful_map(lambda state, n: (threading.Lock(), n), initial=None, name="locks")
    locks.write(Collect())
    outcome = failing(TaskId("locks", 0), flow)
    assert outcome.end == "broken"
    assert isinstance(outcome.error, StateSerializationError) and "operator 'locks'" in str(outcome.error)
