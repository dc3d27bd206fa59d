"""The loop of an actor, over real mailboxes: what it does on a barrier, an order, a stale message, a broken channel."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Items, SqliteTable
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.on_ray.api.launch_checks import check_output
from backedge.engine.on_ray.planned_faults import Kill
from backedge.engine.on_ray.transport.control_messages import FaultReached, Outcome, Progress
from backedge.engine.on_ray.transport.frames import Kind, Message, pack_item, pack_note, unpack_header
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.load import TaskLoad
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.effects import Committed, Decline
from backedge.recovery.protocol.messages import Data, Mode
from backedge.recovery.protocol.orders import Abort, Complete
from tests.faults.evidence import Evidence
from tests.on_ray.in_process import Attending, InMemory, Snapshots, options

SOURCE, SINK = TaskId("numbers", 0), TaskId("kept", 0)


def pipe(count: int | None = None) -> Flow:
    """A source and a sink, each in its own actor; endless unless it is told how many."""
    flow = Flow("pipe")
    flow.read(Generate(lambda position: position, count), name="numbers").rebalance().write(Collect(), name="kept")
    return flow


def ring(tokens: int) -> Flow:
    """Tokens that go round for ever, between two actors."""
    flow = Flow("ring")
    again = flow.loop("again", endless=True)
    passed = flow.read(Items(list(range(tokens))), name="tokens").merge(again).map(lambda token: token, name="head")
    returned = passed.rebalance().map(lambda token: token, name="body")
    again.feed(returned.rebalance())
    returned.filter(lambda token: False, name="nobody").write(Collect(), name="kept")
    return flow


def hops_of(run: Attending) -> int:
    """How many records have come round a loop so far."""
    return sum(driver.hops for loop in run.loops.values() for driver in loop.tasks.drivers.values())


def records_of(run: Attending, task: TaskId) -> int:
    """What a task has taken or read so far."""
    return run.loops[run.deployment.tasks[task].actor].counts.records


def counted(run: Attending, actor: str) -> list[Mapping[TaskId, int]]:
    """The counts of records that an actor has reported so far."""
    return [report.counts.by_task for sender, report in run.reports if sender == actor and isinstance(report, Progress)]


def position_in(store: Snapshots, epoch: int) -> int:
    """How far the source had read."""
    (position,) = store.kept[SOURCE, Epoch(epoch)].operators["numbers"].splits.values()
    return pickle.loads(position)


def logged_in(store: Snapshots, task: TaskId, epoch: int) -> list[Any]:
    """The records that a cut holds in the channels of a task: of a batch that was under way, what was left of it."""
    entries = [entry for record in store.kept[task, Epoch(epoch)].inputs for entry in record.log]
    return [record for entry in entries for record in decode(entry.payload).rest(entry.skip).records]


# -- the beginning -------------------------------------------------------------------------------------------------


def test_what_comes_before_the_start_is_kept_for_it():
    with Attending(pipe(count=1), options=options()) as run:
        run.until(lambda: len(run.restored()) == 2, "both are restored")
        run.start(run.deployment.tasks[SOURCE].actor)
        run.until(lambda: (SOURCE, None) in run.acknowledged(), "the source has sent all, END included")
        assert records_of(run, SINK) == 0
        run.start(run.deployment.tasks[SINK].actor)
        run.until(run.have_ended, "the sink has ended too")
        run.complete(1)
        run.until(lambda: len(run.published()) == 1, "all is published")
        assert run.published() == [0]


def test_no_actor_is_restored_before_its_peers_have_found_it():
    first: list[Message] = []

    def keep_hello(message: Message) -> Iterable[Message]:
        is_hello = unpack_header(message[0])[0] == Kind.HELLO
        first.extend([message] if is_hello else [])
        return [] if is_hello else [message]

    source, sink = "numbers/0", "kept/0"
    with Attending(pipe(), disturb={(source, sink): keep_hello}) as run:
        run.until(lambda: bool(run.restored()) and bool(first), "the source is restored and has said hello")
        assert run.restored() == {SOURCE}
        run.send(sink, first[0])
        run.until(lambda: run.restored() == {SOURCE, SINK}, "the sink is restored too")


@pytest.mark.slow
def test_the_loop_never_sleeps_while_something_waits_to_be_sent(monkeypatch: pytest.MonkeyPatch):
    posted: list[int] = []
    receive = Mailbox.receive

    def noted(mailbox: Mailbox, messages_max: int, timeout_ms: int = 0) -> list[Message]:
        if timeout_ms:
            posted.append(len(mailbox.posted))
        return receive(mailbox, messages_max, timeout_ms)

    monkeypatch.setattr(Mailbox, "receive", noted)
    sink = "kept/0"
    with Attending(pipe(count=1)) as run:
        run.begin()
        run.until(lambda: len(counted(run, sink)) > 3, "the sink has reported several times")
    assert posted and not any(posted)


def test_no_report_waits_for_the_functions_of_tasks(monkeypatch: pytest.MonkeyPatch):
    waiting: list[int] = []
    turn = TaskDriver.turn

    def noted(driver: TaskDriver, *arguments: Any) -> bool:
        loop = next(loop for loop in run.loops.values() if driver.id in loop.tasks.drivers)
        waiting.append(len(loop.reports.link._frames))
        return turn(driver, *arguments)

    monkeypatch.setattr(TaskDriver, "turn", noted)
    with Attending(pipe(), store=Snapshots(), options=options()) as run:
        run.begin()
        run.trigger(1)
        run.until(lambda: run.has_acknowledged(1), "all have acknowledged")
    assert waiting and not any(waiting)


# -- what tasks do -------------------------------------------------------------------------------------------------


def loads_of(run: Attending, task: TaskId) -> list[TaskLoad]:
    """What a task has reported of itself so far."""
    found = [load for _, report in run.reports if isinstance(report, Progress) for load in report.loads]
    return [load for load in found if load.task == task]


@pytest.mark.slow
def test_tasks_report_what_they_do_and_what_waits_in_their_channels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.on_ray.actor.actor_loop.LOAD_MS", 100)
    with Attending(ring(tokens=50), options=options()) as run:
        run.begin()
        body = TaskId("body", 0)
        head = next(task.id for task in run.deployment.tasks.values() if task.is_head)
        run.until(lambda: len(loads_of(run, head)) > 2 and len(loads_of(run, body)) > 2, "both report")
        last = loads_of(run, head)[-1]
        first, now = loads_of(run, head)[0].status, last.status
        assert now.records_in > first.records_in and now.records_out > first.records_out
        assert 0 < now.busy_s <= last.seconds and now.held_s <= last.seconds
        channels = {id: place for place, id in enumerate(run.deployment.channels)}
        assert {end.channel for end in last.inputs} <= set(channels.values())
        (back,) = (place for id, place in channels.items() if id.receiver == head and id.sender == body)
        assert [end.window for end in loads_of(run, body)[-1].outputs if end.channel == back] == [None]


@pytest.mark.slow
def test_a_source_whose_receiver_has_no_room_is_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.on_ray.actor.actor_loop.LOAD_MS", 100)
    with Attending(pipe(), options=options()) as run:
        run.until(lambda: len(run.restored()) == 2, "both are restored")
        run.start(run.deployment.tasks[SOURCE].actor)
        run.until(lambda: len(loads_of(run, SOURCE)) > 2, "the source reports")
        load = loads_of(run, SOURCE)[-1]
        assert load.status.held_s > load.seconds / 2 > load.status.busy_s
        assert [end.room for end in load.outputs] == [0]


@pytest.mark.slow
def test_a_head_says_how_often_records_have_gone_round(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.on_ray.actor.actor_loop.LOAD_MS", 100)
    flow = Flow("counted")
    again = flow.loop("again", max_rounds=7)
    passed = flow.read(Items(list(range(40))), name="tokens").merge(again).map(lambda token: token, name="head")
    again.feed(passed.rebalance().map(lambda token: token, name="body").rebalance())
    again.dead_letters.write(Collect(), name="kept")
    with Attending(flow, options=options()) as run:
        run.begin()
        head = next(task.id for task in run.deployment.tasks.values() if task.is_head)

        def rounds() -> dict[int, int]:
            seen = [load.rounds.get("again", {}) for load in loads_of(run, head)]
            return {number: sum(counts.get(number, 0) for counts in seen) for number in range(10)}

        run.until(lambda: rounds()[7] > 0, "records have come round seven times")
        assert [number for number, records in rounds().items() if records] == [1, 2, 3, 4, 5, 6, 7]


# -- epochs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actors", ["task", "slice"])
def test_every_token_of_a_ring_is_in_the_log_of_a_cut(actors: Any):
    store = Snapshots()
    with Attending(ring(tokens=50), actors=actors, store=store, options=options()) as run:
        run.begin()
        run.until(lambda: hops_of(run) > 500, "tokens go round")
        for epoch in range(1, 6):
            run.trigger(epoch)
            run.until(lambda epoch=epoch: run.has_acknowledged(epoch), "all have acknowledged")
            assert sorted(logged_in(store, TaskId("head", 0), epoch)) == list(range(50))


def test_a_snapshot_that_cannot_be_written_is_declined_and_the_next_one_is_whole():
    store = Snapshots(failures=1)
    with Attending(pipe(), store=store, options=options()) as run:
        run.begin()
        run.trigger(1)
        run.until(lambda: bool(run.effects(Decline)), "somebody declines")
        ((_, decline),) = run.effects(Decline)
        assert decline == Decline(Epoch(1), "OSError: [Errno 28] No space left on device")
        for task in (SOURCE, SINK):
            run.order(task, Abort(task, Epoch(1), Mode.ALIGNED))
        run.trigger(2)
        run.until(lambda: run.has_acknowledged(2), "the next epoch")
        run.complete(2)
        run.until(lambda: (SINK, Committed(Epoch(2))) in run.effects(Committed), "it is committed")
        assert run.published() == list(range(position_in(store, 2))), (
            "what the aborted epoch had prepared is published with it"
        )


@pytest.mark.parametrize("writes", ["a cut", "the last state"])
def test_a_process_that_cannot_import_what_its_cuts_need_ends_its_part(writes: str):
    """It declined every cut, and tried for ever to write its last state."""

    class Broken(Snapshots):
        def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> InMemory:
            raise ImportError("libarrow.so: cannot open shared object file")

    flow = pipe() if writes == "a cut" else pipe(3)
    with Attending(flow, store=Broken(), options=options()) as run:
        run.begin()
        if writes == "a cut":
            run.trigger(1)
        run.until(lambda: bool(run.outcomes), "somebody ends its part")
        outcome = next(iter(run.outcomes.values()))
        assert outcome.end == "broken"
        assert "cannot import what it needs: ImportError: libarrow.so" in outcome.reason


def test_a_sink_that_a_later_attempt_has_taken_over_ends_the_attempt_and_blames_nobody(tmp_path: Path):
    """Another run may have the job by now, and the chain says so: that is for the supervisor to look up."""
    with closing(sqlite3.connect(tmp_path / "table.db")) as database:
        database.execute("CREATE TABLE rows (n INTEGER)")
    flow = Flow("pipe")
    rows = flow.read(Generate(lambda position: {"n": position}), name="numbers").rebalance()
    rows.write(SqliteTable(f"{tmp_path}/table.db", "rows"), name="kept")
    kept = options(root=str(tmp_path), job="pipe", run="77aa")
    check_output(flow.plan(), kept, fresh=True)
    committed, ends = (SINK, Committed(Epoch(1))), list[Outcome]()
    for attempt in (2, 1):
        with Attending(flow, attempt=attempt, store=Snapshots(), options=kept) as run:
            run.begin()
            run.until(lambda run=run: records_of(run, SINK) > 0, "a row is written")
            run.trigger(1)
            run.until(lambda run=run: run.has_acknowledged(1), "it is prepared")
            run.complete(1)
            run.until(
                lambda run=run: committed in run.effects(Committed) or bool(run.outcomes), "it has committed, or left"
            )
            ends += run.outcomes.values()
    assert [end.end for end in ends] == ["failed"]
    assert "attempt 2 has taken over" in ends[0].reason and "Backedge" not in ends[0].reason


# -- control -------------------------------------------------------------------------------------------------------


def test_told_to_stop_before_it_has_begun_it_stops():
    with Attending(pipe()) as run:
        run.until(lambda: len(run.restored()) == 2, "both are restored")
        run.stop()
        assert {outcome.end for outcome in run.outcomes.values()} == {"stopped"}


def test_messages_of_another_attempt_are_counted_and_without_effect(evidence: Evidence):
    with Attending(pipe(count=50), attempt=3) as run:
        run.until(lambda: len(run.restored()) == 2, "both are restored")
        for attempt in (Attempt(2), Attempt(4)):
            run.send("kept/0", pack_item(attempt, 0, Data(1, encode(Batch(["of another attempt"])))))
            run.send("kept/0", pack_note(Kind.ORDERS, attempt, ["no order at all"]))
        run.start(*run.names)
        run.until(run.have_ended, "all have ended")
        run.complete(1)
        run.until(lambda: len(run.published()) == 50, "all is published")
        run.stop()
        evidence.happened("messages of another attempt that were counted", run.outcomes["kept/0"].counts.stale)
        assert run.outcomes["kept/0"].end == "stopped"
        assert run.outcomes["kept/0"].counts.stale == 4 and run.outcomes["numbers/0"].counts.stale == 0
        evidence.same(run.published(), range(50))


def test_a_planned_fault_is_told_and_waited_for():
    with Attending(pipe(), kills=(Kill("source", "epoch", 2),)) as run:
        run.begin()
        run.trigger(1)
        run.until(lambda: {(SOURCE, 1), (SINK, 1)} <= set(run.acknowledged()), "both have acknowledged")
        run.trigger(2)
        run.until(lambda: (SOURCE, 2) in run.acknowledged(), "as long as no cut is complete nobody dies by epoch")
        run.order(SOURCE, Complete(SOURCE, Epoch(2), ()))
        run.trigger(3)
        run.until(lambda: any(isinstance(report, FaultReached) for _, report in run.reports), "the fault is due")
        before = records_of(run, SOURCE)
        run.trigger(4)
        run.stop()
        assert records_of(run, SOURCE) == before
        assert (SOURCE, Epoch(3)) not in run.acknowledged(), "its snapshot of 3 is not acknowledged any more"


class InTens:
    """The pace of a slow function: ten records at a time."""

    is_cheap = False

    def chunk(self, records_max: int) -> int:
        return min(10, records_max)

    def note(self, records: int, took_ns: int) -> None:
        """It stays slow."""


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_fault_by_records_strikes_at_exactly_that_record_of_the_run(is_slow: bool):
    """Not at the end of a batch that is thousands of records long; and 700 were processed in earlier attempts."""
    kill = Kill("sink", "records", 1_000)
    with Attending(pipe(), kills=(kill,), processed={SINK: 700}) as run:
        run.until(lambda: len(run.restored()) == 2, "both are restored")
        if is_slow:
            (sink,) = run.loops["kept/0"].tasks.drivers.values()
            for intake in sink.intakes.values():
                intake.pace = InTens()  # type: ignore[assignment]
        run.begin()
        run.until(lambda: any(isinstance(report, FaultReached) for _, report in run.reports), "the fault is due")
        run.trigger(1)
        run.until(lambda: (SOURCE, 1) in run.acknowledged(), "the source goes on")
        run.until(lambda: records_of(run, SINK) == 300, "the sink has counted the last part of its batch")
        run.until(lambda: {SINK: 300} in counted(run, "kept/0"), "it has told so")
        run.until(lambda: records_of(run, SOURCE) > 300, "more has been sent")
        told = [report for actor, report in run.reports if actor == "kept/0"]
        run.stop()
        assert records_of(run, SINK) == 300
        assert [report.task for report in told if isinstance(report, FaultReached)] == [SINK]
        assert counted(run, "kept/0")[-1] == {SINK: 300}
        assert (SINK, Epoch(1)) not in run.acknowledged(), "what it dropped of the batch must be in no cut"


# -- broken channels -----------------------------------------------------------------------------------------------


def reordered(message: Message) -> Message:
    """The records of the batch in another order: the digest alone tells."""
    return message[0], encode(Batch(decode(message[1]).records[::-1]))


CHANGES: dict[str, Callable[[Message, Message], list[Message]]] = {
    "lost": lambda first, second: [second],
    "doubled": lambda first, second: [first, first, second],
    "swapped": lambda first, second: [second, first],
    "reordered": lambda first, second: [reordered(first), second],
    "torn": lambda first, second: [(first[0], first[1][: len(first[1]) // 2]), second],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_that_is_disturbed_fails_the_attempt(change: str, evidence: Evidence):
    kept: list[Message] = []

    def disturb(message: Message) -> Iterable[Message]:
        """Changes two batches that follow each other; the first has records that can change places."""
        is_batch = unpack_header(message[0])[0] == Kind.BATCH
        if not is_batch or len(kept) == 2 or (not kept and len(decode(message[1]).records) < 2):
            return [message]
        kept.append(message)
        return [] if len(kept) == 1 else CHANGES[change](*kept)

    with Attending(pipe(), store=Snapshots(), options=options(), disturb={("numbers/0", "kept/0"): disturb}) as run:
        run.begin()
        run.until(lambda: len(kept) == 2, "the batch was disturbed")
        run.trigger(1)
        run.until(lambda: "kept/0" in run.outcomes, "the sink has left")
        assert "ChannelIntegrityError" in run.outcomes["kept/0"].reason
    evidence.happened(f"batches that were {change}", 1)
    evidence.survived("attempts that failed before anything was committed", not run.published())
