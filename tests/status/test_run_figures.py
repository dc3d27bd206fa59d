"""What a supervisor makes of what it is told: rates, loops, epochs, failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backedge.engine.on_ray.supervisor.run_figures import FRESH_S, LOST, REMEMBERED_MAX, RunFigures
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.control_messages import EpochTimes
from backedge.engine.task.load import InputLoad, OutputLoad, TaskLoad
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.effects import Remaining, Stage
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Manifest, Trigger
from backedge.recovery.stores.run_status import (
    BarrierStatus,
    CountedStatus,
    EpochStatus,
    HistogramStatus,
    LoopLog,
    RunStatus,
    TaskStatus,
)
from backedge.recovery.stores.task_files import LogFigures, StoredFile, TaskFiles
from tests.on_ray.flows import trips

DAY_S = 1_000_000.0
BEGIN, GROW, ENOUGH, DONE = (TaskId(name, 0) for name in ("numbers", "grow", "enough", "done"))


def load(task: TaskId, seconds: float, records: int, **more: Any) -> TaskLoad:
    """A task that has run for so long, has been busy half of the time, and held for a quarter."""
    times = {"busy_s": seconds / 2, "held_s": seconds / 4}
    known = times | {name: more.pop(name) for name in [*more] if name in TaskStatus.__struct_fields__}
    status = TaskStatus(task.index, str(task), records, 2 * records, **known)
    return TaskLoad(task, status, seconds, **{**EMPTY, **more})


EMPTY: Mapping[str, Any] = {"rounds": {}, "round": "", "inputs": (), "outputs": ()}


def figures(earlier: RunStatus | None = None) -> tuple[RunFigures, Deployment]:
    """Figures of a run of `trips` whose first attempt has begun."""
    made = RunFigures("4f", "/cuts", DAY_S, earlier)
    deployment = expand(trips(count=9).plan())
    made.on_attempt(Attempt(1), deployment, None, 0, now_s=0.0)
    return made, deployment


def told(made: RunFigures, now_s: float = 10.0) -> RunStatus:
    return made.status(Story("trips", state="running", began_s=0.0), now_s, {})


def place_of(deployment: Deployment, sender: TaskId, receiver: TaskId) -> int:
    return next(place for place, id in enumerate(deployment.channels) if (id.sender, id.receiver) == (sender, receiver))


def counted(count: int, bound: str) -> dict[str, CountedStatus]:
    return {"grow": CountedStatus({"grown": count}, {"size": HistogramStatus(count, 0.5, {bound: count})})}


def test_what_the_tasks_of_an_operator_have_counted_adds_up():
    made, _ = figures()
    made.on_attempt(Attempt(2), expand(trips(count=9).plan(), 2), None, 0, now_s=0.0)
    for seconds in (1.0, 2.0):  # the figures of a task are those since the attempt began
        loads = [load(TaskId("grow", n), seconds, 9, counted=counted(2 + n, "5")) for n in (0, 1)]
        made.on_loads([*loads, load(ENOUGH, seconds, 9)], now_s=seconds)
    (grow,) = [each for each in told(made).operators if each.name == "grow"]
    assert grow.counted == {"grow": CountedStatus({"grown": 5}, {"size": HistogramStatus(5, 1.0, {"5": 5})})}


def files_of(task: TaskId, sizes: tuple[int, ...] = (), *logs: LogFigures) -> TaskFiles:
    files = tuple(StoredFile(str(place), size, "", None) for place, size in enumerate(sizes))
    return TaskFiles(*task, Attempt(1), Epoch(1), Epoch(1), False, (), files, (), (), logs, 0, None, False, None, ())


def manifest(epoch: int, kept: tuple[int, ...] | None = None) -> Manifest:
    kept_epochs = None if kept is None else tuple(map(Epoch, kept))
    return Manifest(Epoch(epoch), Attempt(1), Mode.ALIGNED, {}, {}, kept=kept_epochs)


# -- tasks ---------------------------------------------------------------------------------------------------------


def test_rates_and_shares_are_those_between_the_last_two_reports():
    made, _ = figures()
    made.on_loads([load(GROW, 4.0, records=100)], now_s=9.0)
    made.on_loads([load(GROW, 6.0, records=160, busy_s=3.5, held_s=1.125)], now_s=10.0)
    (task,) = next(operator for operator in told(made).operators if operator.name == "grow").tasks
    assert (task.records_in, task.records_out) == (160, 320)
    assert (task.in_per_s, task.out_per_s) == (30.0, 60.0)
    assert (task.busy, task.held) == (0.75, 0.0625)


def test_a_task_that_has_fallen_silent_has_no_present_pace():
    made, _ = figures()
    for seconds in (1.0, 2.0):
        made.on_loads([load(GROW, seconds, records=10)], now_s=seconds)
    (task,) = next(operator for operator in told(made, 2.0 + FRESH_S + 1).operators if operator.name == "grow").tasks
    assert (task.records_in, task.in_per_s, task.busy) == (10, None, None)


def test_operators_come_in_the_order_of_the_plan_with_their_chains():
    made, deployment = figures()
    operators = told(made).operators
    assert [operator.name for operator in operators] == ["numbers", "grow", "enough", "done"]
    assert [operator.name for operator in operators if operator.is_source] == ["numbers"]
    assert [operator.name for operator in operators if operator.is_sink] == ["done"]
    assert operators[0].operators == deployment.tasks[BEGIN].operators == ("numbers", "begin")


# -- channels and loops --------------------------------------------------------------------------------------------


def test_a_loop_holds_what_waits_in_all_of_its_channels_and_nothing_else():
    made, deployment = figures()
    entry, inner = place_of(deployment, BEGIN, GROW), place_of(deployment, GROW, ENOUGH)
    back, out = place_of(deployment, ENOUGH, GROW), place_of(deployment, ENOUGH, DONE)
    made.on_loads(
        [
            load(GROW, 1.0, 5, inputs=(InputLoad(entry, 50, 500, 9_000), InputLoad(back, 3, 30, 250))),
            load(
                ENOUGH,
                1.0,
                5,
                inputs=(InputLoad(inner, 7, 70, 1_500),),
                outputs=(OutputLoad(back, 90, 4, 40, None, None), OutputLoad(out, 20, 0, 0, 100, 164)),
            ),
        ],
        now_s=9.0,
    )
    status = told(made)
    (loop,) = status.loops
    assert (loop.name, loop.operators) == ("again", ("grow", "enough"))
    assert (loop.records, loop.bytes, loop.waiting_s) == (3 + 4 + 7, 140, 1.5)
    channels = {(channel.sender, channel.receiver): channel for channel in status.channels}
    assert channels["numbers/0", "grow/0"].backlog == 50
    returning = channels["enough/0", "grow/0"]
    assert (returning.loop, returning.records, returning.backlog, returning.credit_bytes) == ("again", 90, 7, None)
    leaving = channels["enough/0", "done/0"]
    assert (leaving.loop, leaving.credit_bytes, leaving.window_bytes) == (None, 100, 164)


def test_rounds_add_up_over_the_heads_and_stay_until_records_come_round_again():
    made, _ = figures()
    made.on_attempt(Attempt(1), expand(trips(count=9).plan(), 2), None, 0, now_s=0.0)
    first, second = TaskId("grow", 0), TaskId("grow", 1)
    made.on_loads([load(first, 1.0, 1, rounds={"again": {1: 5, 2: 1}}), load(second, 1.0, 1)], now_s=1.0)
    made.on_loads([load(first, 2.0, 1), load(second, 2.0, 1, rounds={"again": {2: 4, 16: 1}})], now_s=2.0)
    assert told(made).loops[0].rounds == {"1": 5, "2": 5, "16": 1}


# -- epochs --------------------------------------------------------------------------------------------------------


def test_an_epoch_is_followed_from_its_trigger_to_its_manifest():
    made, _ = figures()
    for task in (BEGIN, GROW):
        made.on_trigger(Trigger(task, Epoch(1), Mode.ALIGNED, base=Epoch(0)), now_s=1.0)
    made.on_remaining(GROW, Epoch(1), Remaining(Stage.ALIGNING, 1, 3))
    made.on_acknowledged(BEGIN, Epoch(1), EpochTimes(0, 20), now_s=1.1)
    made.on_ended(DONE)
    (epoch,) = told(made).epochs
    assert (epoch.state, epoch.base, epoch.began_s) == ("open", 0, DAY_S + 1.0)
    assert epoch.waiting == {"enough/0": "not reached", "grow/0": "1 barrier missing, 3 batches ahead of its barriers"}
    assert list(epoch.barriers) == ["numbers", "grow", "enough", "done"], "in the order of the plan"
    assert epoch.barriers["numbers"] == epoch.barriers["done"] == BarrierStatus(written=1)
    assert (epoch.barriers["grow"], epoch.barriers["enough"]) == (
        BarrierStatus(aligning=1),
        BarrierStatus(not_reached=1),
    )
    made.on_remaining(GROW, Epoch(1), Remaining(Stage.CAPTURED, 1, 0))
    assert told(made).epochs[0].barriers["grow"] == BarrierStatus(captured=1)
    made.on_acknowledged(GROW, Epoch(1), EpochTimes(300, 100), now_s=1.5)
    made.on_acknowledged(ENOUGH, Epoch(1), EpochTimes(310, 5), now_s=1.6)
    logs = LogFigures("again", 2, 64, 5), LogFigures("again", 1, 36, 4)
    files = {GROW: files_of(GROW, (100, 50), logs[0]), ENOUGH: files_of(ENOUGH, (7,), logs[1]), BEGIN: None}
    made.on_cut(manifest(1), files, now_s=1.8)
    (epoch,) = told(made).epochs
    assert (epoch.state, epoch.is_kept, epoch.waiting) == ("complete", True, {})
    assert (epoch.align_s, epoch.write_s, epoch.slowest) == (0.31, 0.1, "grow/0")
    assert round(epoch.manifest_s or 0, 3) == 0.2 and round(epoch.seconds or 0, 3) == 0.8
    assert epoch.written_bytes == 157
    assert epoch.loops == {"again": LoopLog(3, 100, 9)}


def test_a_log_with_a_batch_that_cannot_be_counted_has_no_number_of_records():
    made, _ = figures()
    logs = LogFigures("again", 1, 10, None), LogFigures("again", 1, 10, 4)
    made.on_cut(manifest(1), {GROW: files_of(GROW, (), *logs)}, now_s=1.0)
    assert told(made).epochs[0].loops == {"again": LoopLog(2, 20, None)}


def test_the_story_counts_the_cuts_that_have_records_in_loops():
    story = Story("trips")
    story.on_cut(manifest(1), {GROW: files_of(GROW, (), LogFigures("again", 2, 10, 4)), DONE: None})
    story.on_cut(manifest(2), {GROW: files_of(GROW, ())})
    assert (story.snapshots, story.snapshots_with_log, story.log_bytes) == (2, 1, 0)


def test_a_cut_that_retention_has_dropped_is_told_as_complete_and_gone():
    made, _ = figures()
    for epoch in (1, 2, 3):
        made.on_trigger(Trigger(BEGIN, Epoch(epoch), Mode.ALIGNED), now_s=float(epoch))
        made.on_cut(manifest(epoch, kept=tuple(range(max(1, epoch - 1), epoch + 1))), {}, now_s=epoch + 0.5)
    assert [(epoch.epoch, epoch.state, epoch.is_kept) for epoch in told(made).epochs] == [
        (1, "complete", False),
        (2, "complete", True),
        (3, "complete", True),
    ]


def test_an_epoch_that_is_given_up_says_why():
    made, _ = figures()
    made.on_trigger(Trigger(BEGIN, Epoch(1), Mode.ALIGNED), now_s=1.0)
    made.on_given_up(Epoch(1), "epoch 1 was declined by grow/0: no room")
    assert [(epoch.state, epoch.reason) for epoch in told(made).epochs] == [
        ("given up", "epoch 1 was declined by grow/0: no room")
    ]


def test_probes_are_no_epochs():
    made, _ = figures()
    made.on_trigger(Trigger(GROW, Epoch(1), Mode.PROBE), now_s=1.0)
    made.on_acknowledged(GROW, Epoch(1), None, now_s=1.0)
    assert told(made).epochs == ()


def test_old_epochs_are_forgotten():
    made, _ = figures()
    for epoch in range(1, REMEMBERED_MAX + 6):
        made.on_trigger(Trigger(BEGIN, Epoch(epoch), Mode.ALIGNED), now_s=1.0)
    epochs = told(made).epochs
    assert (len(epochs), epochs[0].epoch) == (REMEMBERED_MAX, 6)


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_failure_names_its_cause_the_restored_cut_and_the_time_until_all_ran_again():
    made, deployment = figures()
    made.on_trigger(Trigger(BEGIN, Epoch(2), Mode.ALIGNED), now_s=1.0)
    made.on_failure(1, "process 7 died", now_s=2.0)
    (failure,) = told(made).failures
    assert (failure.at_s, failure.restored, failure.seconds) == (DAY_S + 2.0, None, None)
    made.on_attempt(Attempt(2), deployment, Epoch(1), 30, now_s=2.5)
    made.on_running(1.25)
    status = told(made)
    (failure,) = status.failures
    assert (failure.attempt, failure.reason) == (1, "process 7 died")
    assert (failure.restored, failure.in_loops, failure.seconds) == (1, 30, 1.25)
    assert [(epoch.state, epoch.reason) for epoch in status.epochs] == [("given up", "attempt 1 failed")]


def test_a_failure_says_which_work_is_done_again():
    made, deployment = figures()
    made.on_processed(100)
    made.on_trigger(Trigger(BEGIN, Epoch(1), Mode.ALIGNED), now_s=4.0)
    made.on_processed(20)
    made.on_cut(manifest(1), {}, now_s=4.5)
    made.on_processed(30)
    made.on_failure(1, "process 7 died", now_s=6.0)
    made.on_attempt(Attempt(2), deployment, Epoch(1), 0, now_s=7.0)
    assert [(failure.lost_records, failure.lost_s) for failure in told(made).failures] == [(50, 2.0)]
    made.on_processed(5)
    made.on_failure(2, "process 8 died", now_s=8.5)
    made.on_attempt(Attempt(3), deployment, Epoch(1), 0, now_s=9.0)
    failure = told(made).failures[-1]
    assert (failure.lost_records, failure.lost_s) == (5, 1.5), "attempt 2 had no cut of its own"


def test_an_epoch_whose_number_a_failed_attempt_has_used_begins_at_its_own_trigger():
    made, deployment = figures()
    made.on_trigger(Trigger(BEGIN, Epoch(2), Mode.ALIGNED), now_s=1.0)
    made.on_failure(1, "process 7 died", now_s=2.0)
    made.on_attempt(Attempt(2), deployment, None, 0, now_s=3.0)
    made.on_trigger(Trigger(BEGIN, Epoch(2), Mode.ALIGNED), now_s=4.0)
    made.on_cut(manifest(2), {}, now_s=4.5)
    (epoch,) = told(made).epochs
    assert (epoch.attempt, epoch.state, epoch.reason, epoch.seconds) == (2, "complete", "", 0.5)


def test_a_task_tells_what_it_received_and_which_calls_it_has():
    made, _ = figures()
    made.on_loads([load(GROW, 4.0, 10, hops=7, bytes_in=900, calls_running=3, calls_waiting=2)], now_s=4.0)
    (task,) = next(operator for operator in told(made).operators if operator.name == "grow").tasks
    assert (task.hops, task.bytes_in, task.calls_running, task.calls_waiting) == (7, 900, 3, 2)
    assert (task.busy_s, task.held_s) == (2.0, 1.0)


def test_figures_of_a_failed_attempt_are_not_taken_for_those_of_the_next():
    made, deployment = figures()
    made.on_loads([load(GROW, 50.0, records=9_000)], now_s=5.0)
    made.on_attempt(Attempt(2), deployment, None, 0, now_s=5.5)
    made.on_loads([load(GROW, 1.0, records=10)], now_s=6.0)
    (task,) = next(operator for operator in told(made).operators if operator.name == "grow").tasks
    assert (task.records_in, task.in_per_s) == (10, None)


def test_a_successor_goes_on_from_what_its_predecessor_has_kept():
    earlier = RunStatus(
        "trips", "4f", "running", True, 0.0, 20.0, "/cuts", 3, 8, 5, records=700, hops=90,
        epochs=(EpochStatus(8, 3, "aligned", "complete"), EpochStatus(9, 3, "aligned", "open")),
    )  # fmt: skip
    made, deployment = figures(earlier)
    made.on_takeover(now_s=1.0)
    made.on_attempt(Attempt(4), deployment, Epoch(8), 0, now_s=1.5)
    status = told(made, now_s=10.0)
    assert (status.cuts, status.last_epoch, status.records, status.hops, status.seconds) == (5, 8, 700, 90, 30.0)
    assert [(epoch.epoch, epoch.state) for epoch in status.epochs] == [(8, "complete"), (9, "given up")]
    assert [(failure.attempt, failure.reason, failure.restored) for failure in status.failures] == [(3, LOST, 8)]
