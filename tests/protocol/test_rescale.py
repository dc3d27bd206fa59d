"""Rule 8 under another parallelism: what is shared out anew, and what is refused by name."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, VertexProgram
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.operators.base import OperatorRuntime
from backedge.engine.operators.rerouting import reroute
from backedge.engine.state.split_own_state import move_whole
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.ids import RESTORED_SENDER, Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.kinds import BuiltIn
from backedge.graphs.plan import Plan
from backedge.graphs.routing import key_group, task_of_group
from backedge.recovery.cut.cut import Cut, InputRecord, LogEntry, OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import Numbers, Pairs, entries_of
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.restore.plan import fitting, plan_restore
from backedge.recovery.restore.restore_task import Logs, SnapshotsInMemory, take_back
from tests.protocol.bench_of_cores import Bench, Sends, graph, leave_whole
from tests.protocol.taking_back import restored_parts

KEYS = range(12)


def count(total: int, record: int) -> tuple[int, int]:
    return total + record, record


def looping_plan() -> Plan:
    flow = Flow("rescaled")
    items = flow.read(Items([]), name="items")
    again = flow.loop("again")
    counted = items.merge(again).key_by(abs).stateful_map(count, initial=0, name="count")
    left, done = counted.split(lambda record: record > 100, name="more")
    again.feed(left)
    done.write(Collect(), name="sink")
    return flow.plan()


PLAN = looping_plan()
BACK = next(edge for edge in PLAN.edges if edge.is_back)


def log_of(channel: ChannelId, records: Collection[Any]) -> InputRecord:
    digest, entries = 0, []
    for seq, record in enumerate(records, start=1):
        payload = encode(Batch([record]))
        after = zlib.crc32(payload, digest)
        entries.append(LogEntry(seq, payload, digest, after))
        digest = after
    return InputRecord(channel, True, 0, 0, tuple(entries))


def cut_of(
    deployment: Deployment,
    states: Mapping[tuple[str, int], OperatorState] | None = None,
    logs: Mapping[ChannelId, Collection[Any]] | None = None,
    ended: Collection[TaskId] = (),
) -> Cut:
    snapshots: dict[TaskId, TaskSnapshot] = {}
    for id, task in deployment.tasks.items():
        operators = {name: (states or {}).get((name, id.index), OperatorState()) for name in task.operators}
        inputs = tuple(log_of(channel, records) for channel, records in (logs or {}).items() if channel.receiver == id)
        snapshots[id] = TaskSnapshot(id, Epoch(1), Attempt(1), operators, inputs, (), ended=id in ended)
    return Cut(Epoch(1), Attempt(1), PLAN.hash, "aligned", False, snapshots, deployment.parallelism)


def restored_in(
    cut: Cut, deployment: Deployment, move: Callable[..., list[bytes | None]] = leave_whole
) -> dict[TaskId, TaskRestore]:
    return restored_parts(cut, deployment, reroute, move)


def records_in(restored: Mapping[TaskId, TaskRestore], task: TaskId) -> list[Any]:
    return [record for log in restored[task].logs for payload in log.payloads for record in decode(payload).records]


def back_channel(deployment: Deployment, sender: int, receiver: int) -> ChannelId:
    ends = next(c for c in deployment.channels if c.edge == BACK.name)
    return ChannelId(BACK.name, TaskId(ends.sender.name, sender), TaskId(ends.receiver.name, receiver))


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_each_key_group_goes_to_the_task_that_keeps_it(parallelism: int):
    old = expand(PLAN, 2)
    halves = [Numbers("i", of, of, of) for of in (np.arange(64), np.arange(64, 128))]
    cut = cut_of(old, {("count", index): OperatorState((halves[index],)) for index in (0, 1)})
    restored = restored_in(cut, expand(PLAN, parallelism))
    found = [entries_of(restored[TaskId("count", index)].operators["count"].keyed) for index in range(parallelism)]
    assert sorted(entry for entries in found for entry in entries) == [(group, group) for group in range(128)]
    for index, entries in enumerate(found):
        assert all(task_of_group(group, parallelism) == index for group, _ in entries)


def test_a_task_reads_the_files_that_hold_its_key_groups_and_no_others():
    plans = plan_restore(outline_of(cut_of(expand(PLAN, 2))), expand(PLAN, 3))
    first, second = TaskId("count", 0), TaskId("count", 1)
    assert [plans[TaskId("count", index)].tasks for index in range(3)] == [{first}, {first, second}, {second}]
    same = plan_restore(outline_of(cut_of(expand(PLAN, 2))), expand(PLAN, 2))
    assert all(plan.tasks == {task} for task, plan in same.items())


def test_state_of_the_tasks_own_is_read_by_each_task_for_it_is_merged_before_it_is_split():
    states = {("count", index): OperatorState(whole=b"own") for index in (0, 1)}
    plans = plan_restore(outline_of(cut_of(expand(PLAN, 2), states)), expand(PLAN, 3))
    assert all(plans[TaskId("count", index)].tasks == {TaskId("count", 0), TaskId("count", 1)} for index in range(3))


def test_a_plan_holds_no_state():
    large = OperatorState((Pairs(np.array([3]), np.array([1]), [b"x" * 1_000_000]),), whole=b"x" * 1_000_000)
    states = {("count", index): large for index in (0, 1)}
    for parallelism in (2, 3):
        plans = plan_restore(outline_of(cut_of(expand(PLAN, 2), states)), expand(PLAN, parallelism))
        assert len(pickle.dumps(plans)) < 20_000


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_a_loop_log_is_routed_anew_by_key(parallelism: int):
    old = expand(PLAN, 2)
    keys = {
        (s, r): [k for k in KEYS if k % 2 == s and task_of_group(key_group(k), 2) == r] for s in (0, 1) for r in (0, 1)
    }
    logs = {back_channel(old, *ends): records for ends, records in keys.items()}
    new = expand(PLAN, parallelism)
    restored = restored_in(cut_of(old, logs=logs), new)
    for index in range(parallelism):
        task = TaskId("count", index)
        expected = [key for key in KEYS if task_of_group(key_group(key), parallelism) == index]
        assert sorted(records_in(restored, task)) == expected
        assert all(log.channel == ChannelId(BACK.name, RESTORED_SENDER, task, True) for log in restored[task].logs)


def test_each_task_goes_through_the_log_of_one_task_at_a_time_and_encodes_its_own_records_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    old, new = expand(PLAN, 2), expand(PLAN, 4)
    keys = {task: [key for key in range(400) if task_of_group(key_group(key), 2) == task] for task in (0, 1)}
    cut = cut_of(old, logs={back_channel(old, 0, task): keys[task] for task in (0, 1)})
    seen: list[Any] = []

    class Files(SnapshotsInMemory):
        def logs(self, task: TaskId) -> Logs:
            seen.append(task)
            return super().logs(task)

    def encoded(batch: Batch) -> bytes:
        seen.append(len(batch))
        return encode(batch)

    monkeypatch.setattr("backedge.engine.operators.rerouting.encode", encoded)
    for index, plan in ((task.index, plan) for task, plan in plan_restore(outline_of(cut), new).items()):
        seen.clear()
        if plan.moved_logs:
            (log,) = take_back(plan, Files(cut.snapshots), new, reroute, leave_whole).logs
            own = [sum(task_of_group(key_group(key), 4) == index for key in keys[task]) for task in (0, 1)]
            assert seen == [TaskId("count", 0), *[1] * own[0], TaskId("count", 1), *[1] * own[1]]
            assert len(log.payloads) == sum(own) > 50


def test_records_of_one_channel_and_key_keep_their_order():
    old = expand(PLAN, 2)
    records = [7, -7, 7.0, -7.0]
    target = task_of_group(key_group(7), 2)
    cut = cut_of(old, logs={back_channel(old, 0, target): records})
    restored = restored_in(cut, expand(PLAN, 3))
    assert records_in(restored, TaskId("count", task_of_group(key_group(7), 3))) == records


def test_the_rest_of_a_rerouted_log_goes_in_front_of_all_live_channels_of_its_edge():
    deployment = expand(PLAN, 2)
    routed = ChannelId(BACK.name, RESTORED_SENDER, TaskId("count", 0), True)
    logs = {back_channel(deployment, 1, 0): ["live"], routed: ["rest"]}
    restored = restored_in(cut_of(deployment, logs=logs), deployment)
    core = Bench(deployment, restored=cut_of(deployment, logs=logs), attempt=2).core("count/0")
    assert [log.channel.sender for log in restored[TaskId("count", 0)].logs].count(RESTORED_SENDER) == 1
    assert core.ready() == [routed]
    assert all(inbox.in_front for id, inbox in core.inboxes.items() if id.edge == BACK.name and id != routed)


def test_all_live_channels_of_an_edge_wait_until_its_rerouted_log_is_drained():
    old, new = expand(PLAN, 2), expand(PLAN, 3)
    target = TaskId("count", task_of_group(key_group(7), 3))
    cut = cut_of(old, logs={back_channel(old, 0, task_of_group(key_group(7), 2)): [7]})
    bench = Bench(new, restored=cut, attempt=2)
    for sender in range(3):
        channel = ChannelId(BACK.name, TaskId("count", sender), target)
        bench.emit(channel, -7)
        bench.deliver(channel)
    (first,) = bench.cores[target].ready()
    assert first == ChannelId(BACK.name, RESTORED_SENDER, target, True)
    bench.take(first)
    assert len(bench.cores[target].ready()) == 3


# -- refusals --------------------------------------------------------------------------------------------------------


def broadcasting_plan() -> Plan:
    flow = Flow("broadcast")
    items = flow.read(Items([]), name="items")
    again = flow.loop("again")
    told = items.merge(again.broadcast()).map(abs, name="listen")
    left, done = told.split(lambda record: record > 100, name="more")
    again.feed(left)
    done.write(Collect(), name="sink")
    return flow.plan()


def test_a_broadcast_log_that_is_not_empty_is_refused_by_name():
    plan = broadcasting_plan()
    old = expand(plan, 2)
    channel = next(c.id for c in old.channels.values() if c.is_back)
    with pytest.raises(RescaleError, match=r"edge '.*->listen.in' broadcasts, and its log holds 2 batches") as found:
        restored_in(cut_of(old, logs={channel: [1, 2]}), expand(plan, 3))
    assert not found.value.is_for_good, "a later cut may have an empty log"


def test_an_empty_broadcast_log_and_the_same_parallelism_are_no_reason_to_refuse():
    plan = broadcasting_plan()
    old = expand(plan, 2)
    channel = next(c.id for c in old.channels.values() if c.is_back)
    assert restored_in(cut_of(old), expand(plan, 3)).keys() == expand(plan, 3).tasks.keys()
    restored = restored_in(cut_of(old, logs={channel: [1, 2]}), old)
    assert records_in(restored, channel.receiver) == [1, 2]


def test_state_that_cannot_be_split_is_refused_by_name():
    old = expand(PLAN, 2)
    states = {("count", 0): OperatorState(whole=b"opaque", whole_can_move=False)}
    refusal = r"operator 'count' has state of its own that cannot be split over 3 tasks"
    with pytest.raises(RescaleError, match=refusal) as found:
        restored_in(cut_of(old, states), expand(PLAN, 3))
    assert found.value.is_for_good
    restored = restored_in(cut_of(old, states), old)
    assert restored[TaskId("count", 0)].operators["count"].whole == b"opaque"


class Sum:
    """Counts for itself, and can be merged and split."""

    def on_record(self, ctx: Any, record: int) -> None: ...

    @staticmethod
    def merge(states: list[int]) -> int:
        return sum(states)

    @staticmethod
    def split(state: int, parallelism: int) -> list[int]:
        return [state, *[0] * (parallelism - 1)]


def test_state_that_its_class_can_merge_and_split_is_shared_out():
    flow = Flow("sums")
    flow.read(Items([]), name="items").rebalance().process(Sum, name="sum").write(Collect(), name="sink")
    old, new = expand(flow.plan(), 2), expand(flow.plan(), 3)
    states = {("sum", index): OperatorState(whole=pickle.dumps({"own": 10 + index}, 5)) for index in (0, 1)}
    restored = restored_in(cut_of(old, states), new, move_whole)
    wholes = [restored[TaskId("sum", index)].operators["sum"].whole or b"" for index in range(3)]
    assert [pickle.loads(whole)["own"] for whole in wholes] == [21, 0, 0]


def still_running(plan: Plan, ended: Collection[TaskId], parallelism: int = 3) -> set[TaskId]:
    """The tasks that go on from a cut of two tasks per operator."""
    restored = restored_in(cut_of(expand(plan, 2), ended=ended), expand(plan, parallelism))
    return {task for task, part in restored.items() if not part.ended}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_operator_that_has_ended_in_part_goes_on_in_all_its_tasks(parallelism: int):
    """A source with fewer splits than tasks has tasks that end at once."""
    going_on = still_running(PLAN, [TaskId("items", 0)], parallelism)
    assert {TaskId("items", index) for index in range(parallelism)} <= going_on


def test_a_task_goes_on_if_its_senders_do_though_it_keeps_its_parallelism():
    flow = Flow("forward")
    one, other = flow.read(Items([]), name="one"), flow.read(Items([]), name="other")
    one.merge(other).map(abs, name="abs", parallelism=2).write(Collect(), name="sink", parallelism=2)
    ended = [TaskId("one", 1), TaskId("other", 1), TaskId("abs", 1)]
    assert still_running(flow.plan(), ended) >= {TaskId("abs", 0), TaskId("abs", 1)}


class Last:
    """Sends something when its input has ended."""

    def on_record(self, ctx: Any, record: int) -> None: ...

    def on_end(self, ctx: Any) -> None:
        ctx.emit("the end")


def with_an_end_hook() -> tuple[Plan, TaskId]:
    flow = Flow("hooked")
    flow.read(Items([]), name="items").process(Last, name="last").write(Collect(), name="sink")
    return flow.plan(), TaskId("items", 0)


class Lowest(VertexProgram):
    combine, best = "min", "value"


def with_a_free_running_program() -> tuple[Plan, TaskId]:
    """A task that passes the graph on says at its end that it has no more. Another source task might send it more."""
    flow = Flow("graph")
    edges = flow.read(Items([]), name="edges")
    flow.vertex_program(Lowest, edges, free_running=True, name="program").write(Collect(), name="sink")
    return flow.plan(), TaskId("program_graph", 0)


@pytest.mark.parametrize(
    ("plan", "ended", "why"),
    [
        (*with_an_end_hook(), "'last' acts when its input has ended"),
        (*with_a_free_running_program(), "'program_graph' acts when its input has ended"),
        (PLAN, TaskId("count", 0), "it is in a loop"),
    ],
)
def test_an_operator_that_has_ended_in_part_is_refused_by_name_where_that_would_show(
    plan: Plan, ended: TaskId, why: str
):
    with pytest.raises(RescaleError, match=rf"operator '{ended.name}' has ended in some of its tasks .*{why}"):
        still_running(plan, [ended])


def test_each_operator_of_ours_whose_runtime_has_an_end_hook_says_so():
    kinds, with_a_hook = list[type[BuiltIn]]([BuiltIn]), set[str]()
    for kind in kinds:
        kinds += kind.__subclasses__()
        runtime: Any = getattr(kind, "runtime", None)
        if isinstance(runtime, str):
            module, _, name = runtime.partition(":")
            if getattr(import_module(module), name).end is not OperatorRuntime.end:
                with_a_hook.add(kind.__name__)
                assert kind.acts_at_end is not BuiltIn.acts_at_end, kind
    assert with_a_hook >= {"PassesGraph", "PassesChanges", "OfVertexProgram"}


def test_an_operator_that_has_ended_as_a_whole_has_ended_in_every_task_of_its_new_parallelism():
    cut = cut_of(expand(PLAN, 2), ended=[TaskId("items", 0), TaskId("items", 1)])
    restored = restored_in(cut, expand(PLAN, 3), move_whole)
    assert {task for task, part in restored.items() if part.ended} == {TaskId("items", index) for index in range(3)}


def test_under_the_same_parallelism_each_task_has_ended_or_not_as_before():
    deployment = expand(PLAN, 2)
    restored = restored_in(cut_of(deployment, ended=[TaskId("items", 1)]), deployment)
    assert {task for task, part in restored.items() if part.ended} == {TaskId("items", 1)}


REPEAT = ("items -> repeat", "repeat -> body", "body => repeat", "repeat -> out")


def send_back(state: Any, record: int) -> Sends:
    return [("repeat", record)]


def cut_of_rounds(mode: Mode) -> Cut:
    """The cut of an iteration with five rounds, taken when the head is asked for it in the first of them."""
    bench = Bench(graph(*REPEAT, iterations=["repeat"]), {"body": send_back}, rounds=5)
    bench.emit("items->repeat", 1)
    bench.exhaust("items")
    bench.deliver("items->repeat", 2)
    bench.take("items->repeat")
    bench.trigger("repeat", 1, mode)
    bench.run()
    return bench.cut(1)


def test_an_iteration_in_the_middle_of_a_round_is_refused_by_name():
    wider = graph(*REPEAT, iterations=["repeat"], body=2)
    with pytest.raises(RescaleError, match=r"repeat/0 is in the middle of round \(0,\).*take a savepoint"):
        restored_in(cut_of_rounds(Mode.ALIGNED), wider)


SIDE = ("items -> repeat", "repeat -> body", "body => repeat", "samples -> body", "repeat -> out")
WIDER = graph(*SIDE, iterations=["repeat"], body=2)


def rerouted_into_a_body() -> Bench:
    """What was on its way into the body is routed anew, and waits there for the side input to end."""
    bench = Bench(graph(*SIDE, iterations=["repeat"]), {"body": send_back}, rounds=2)
    bench.pass_on("items->repeat", 1, 2)
    for task in ("samples", "items", "repeat"):
        bench.trigger(task, 1, Mode.UNALIGNED)
    bench.deliver("samples->body")
    bench.run()
    assert bench.log(1, "repeat->body") == [1, 2]
    again = Bench(WIDER, {"body": send_back}, restored=bench.cut(1), attempt=2, rounds=2)
    again.run()
    assert sum(len(waiting) for i in (0, 1) for waiting in again.core(f"body/{i}").rounds.aside.values()) == 2
    return again


def assert_runs_to_its_end(bench: Bench) -> None:
    bench.exhaust("items")
    bench.exhaust("samples")
    bench.run()
    assert sorted(bench.seen("out")) == [1, 2]
    assert all(bench.has_ended(str(task)) for task in bench.cores)


def test_a_rerouted_log_that_is_set_aside_comes_back_from_the_next_cut():
    bench = rerouted_into_a_body()
    for task in ("samples", "items", "repeat"):
        bench.trigger(task, 2)
    bench.run()
    assert_runs_to_its_end(Bench(WIDER, {"body": send_back}, restored=bench.cut(2), attempt=3, rounds=2))


# -- what is chained, and what has ended ---------------------------------------------------------------------------


def widening_plan() -> Plan:
    """Two tasks, then as many as the run has: with two, both operators share a task."""
    flow = Flow("widening")
    dealt = flow.read(Items([]), name="items").rebalance().map(abs, name="two", parallelism=2)
    dealt.map(abs, name="many").write(Collect(), name="sink")
    return flow.plan()


WIDENING = widening_plan()
LANE = ChannelId("two.out->many.in", TaskId("two", 1), TaskId("many", 0))
DEALT = ChannelId("items.out->two.in", TaskId("items", 0), TaskId("two", 0))


def test_an_edge_whose_channels_hold_records_stays_a_channel_where_its_ends_could_share_a_task():
    cut = cut_of(expand(WIDENING, 1), logs={LANE: [1, 2, 3]})
    wider = expand(WIDENING, 2)
    assert TaskId("many", 0) not in wider.tasks, "chained"
    fitted = fitting(outline_of(cut), wider)
    restored = restored_in(cut, fitted, move_whole)
    at_many = [record for index in (0, 1) for record in records_in(restored, TaskId("many", index))]
    assert sorted(at_many) == [1, 2, 3]
    assert fitted.parallelism == wider.parallelism and fitted.plan.hash == WIDENING.hash
    bench = Bench(fitted, restored=cut, attempt=2)
    bench.exhaust("items/0")
    bench.exhaust("items/1")
    bench.run()
    assert sorted(bench.seen("many/0") + bench.seen("many/1")) == [1, 2, 3]


@pytest.mark.parametrize("logs", [{}, {DEALT: [1]}])
def test_an_edge_that_holds_nothing_is_chained_as_ever(logs: Any):
    cut, wider = cut_of(expand(WIDENING, 1), logs=logs), expand(WIDENING, 2)
    assert fitting(outline_of(cut), wider) is wider


def test_records_of_a_log_stay_with_their_task_and_never_come_to_one_that_has_ended():
    """Only the sender is widened; the other task of the receiver has ended."""
    cut = cut_of(expand(WIDENING, 1), logs={DEALT: [1, 2, 3]}, ended=[TaskId("two", 1), TaskId("items", 0)])
    restored = restored_in(cut, expand(WIDENING, 3), move_whole)
    assert records_in(restored, TaskId("two", 0)) == [1, 2, 3]
    assert restored[TaskId("two", 1)].ended and not restored[TaskId("two", 1)].logs
