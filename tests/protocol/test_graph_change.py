"""A cut is restored in a changed graph: state and records go where the names say, or the restore is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from backedge import Collect, Flow, GraphMismatchError, Items
from engine.batch import Batch, decode, encode
from engine.moving import move_whole
from engine.rerouting import reroute
from graphs import expand
from graphs.describing import describe_plan
from graphs.ids import Attempt, Epoch, TaskId
from graphs.plan import Plan
from recovery.cut import Cut, InputRecord, LogEntry, OperatorState, TaskSnapshot, Transaction
from recovery.graph_change import GraphChange, change_from, difference, fitted
from recovery.outline import outline_of
from recovery.rescale import fitting, plan_restore
from recovery.restored import TaskRestore
from recovery.taking_back import SnapshotsInMemory, take_back


def grow(count: int, number: int) -> tuple[int, int]:
    return count + 1, number


def counting(
    name: str = "grow", more: Callable[[Any], Any] | None = None, sink: str = "done", trips: str = "again"
) -> Flow:
    """A loop round an operator with keyed state; `more` is applied to what leaves it."""
    flow = Flow("loop")
    again = flow.loop(trips)
    numbers = flow.read(Items([1]), name="numbers").merge(again)
    grown = numbers.key_by(lambda number: number).stateful_map(grow, initial=0, name=name)
    done, rest = grown.split(bool, name="enough")
    again.feed(rest)
    (done if more is None else more(done)).write(Collect(), name=sink)
    return flow


def cut_of(plan: Plan, log: tuple[LogEntry, ...] = (), ended: tuple[str, ...] = (), parallelism: int = 1) -> Cut:
    """A cut in which the state of each operator is its name, with a log in the back edges."""
    deployment = expand(plan, parallelism)
    snapshots: dict[TaskId, TaskSnapshot] = {}
    for id, task in deployment.tasks.items():
        inputs = tuple(InputRecord(c.id, c.is_back, 0, 0, log if c.is_back else (), False) for c in task.inputs)
        states = {name: OperatorState(groups={id.index: name.encode()}) for name in task.operators}
        snapshots[id] = TaskSnapshot(id, Epoch(3), Attempt(1), states, inputs, (), id.name in ended, None)
    return Cut(Epoch(3), Attempt(1), plan.hash, "aligned", False, snapshots, deployment.parallelism)


def change_of(former: Plan, rename: Mapping[str, str] | None = None, drop: tuple[str, ...] = ()) -> GraphChange:
    return change_from(former.hash, describe_plan(former), rename or {}, frozenset(drop))


def restored(cut: Cut, plan: Plan, change: GraphChange, parallelism: int = 1) -> dict[TaskId, TaskRestore]:
    """What each task of the changed graph restores."""
    outline = fitted(outline_of(cut), plan, change)
    deployment = fitting(outline, expand(plan, parallelism))
    files = SnapshotsInMemory(cut.snapshots)
    plans = plan_restore(outline, deployment)
    return {id: take_back(plan, files, deployment, reroute, move_whole) for id, plan in plans.items()}


def states_of(parts: Mapping[TaskId, TaskRestore]) -> dict[str, dict[int, bytes]]:
    """Operator -> its key groups, over all tasks."""
    found: dict[str, dict[int, bytes]] = {}
    for part in parts.values():
        for name, state in part.operators.items():
            found.setdefault(name, {}).update(state.groups)
    return found


def logged(*numbers: int) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(seq, encode(Batch([number])), 0, 0) for seq, number in enumerate(numbers, start=1))


FORMER = counting().plan()


def test_an_added_operator_starts_without_state_and_the_others_keep_theirs():
    plan = counting(more=lambda done: done.map(str, name="shown")).plan()
    states = states_of(restored(cut_of(FORMER), plan, change_of(FORMER)))
    assert "shown" not in states
    assert states["grow"] == {0: b"grow"} and states["done"] == {0: b"done"}


def test_a_renamed_operator_gets_the_state_of_its_former_name():
    plan = counting(name="count").plan()
    states = states_of(restored(cut_of(FORMER), plan, change_of(FORMER, {"grow": "count"})))
    assert states["count"] == {0: b"grow"} and "grow" not in states


def test_two_operators_that_swap_their_names_swap_their_state():
    def chain(first: str, second: str) -> Plan:
        flow = Flow("loop")
        flow.read(Items([1]), name="in").map(abs, name=first).map(abs, name=second).write(Collect(), name="out")
        return flow.plan()

    former = chain("a", "b")
    states = states_of(restored(cut_of(former), chain("b", "a"), change_of(former, {"a": "b", "b": "a"})))
    assert states["a"] == {0: b"b"} and states["b"] == {0: b"a"}


def test_records_in_a_loop_of_a_renamed_operator_stay_in_the_loop():
    plan = counting(name="count").plan()
    parts = restored(cut_of(FORMER, logged(5, 6)), plan, change_of(FORMER, {"grow": "count"}))
    (log,) = [log for part in parts.values() for log in part.logs]
    assert log.channel.edge == next(edge.name for edge in plan.edges if edge.is_back)
    assert [record for payload in log.payloads for record in decode(payload).records] == [5, 6]


def test_a_renamed_operator_and_another_parallelism_go_together():
    plan = counting(name="count").plan()
    cut = cut_of(FORMER, logged(5, 6), parallelism=2)
    parts = restored(cut, plan, change_of(FORMER, {"grow": "count"}), parallelism=3)
    assert set(states_of(parts)["count"].values()) == {b"grow"}
    logs = sum(received.is_back for snapshot in cut.snapshots.values() for received in snapshot.inputs)
    payloads = [payload for part in parts.values() for log in part.logs for payload in log.payloads]
    assert sorted(record for payload in payloads for record in decode(payload).records) == [5] * logs + [6] * logs


def test_a_dropped_operator_leaves_nothing_behind():
    former = counting(more=lambda done: done.map(str, name="shown")).plan()
    states = states_of(restored(cut_of(former), FORMER, change_of(former, drop=("shown",))))
    assert "shown" not in states and states["grow"] == {0: b"grow"}


def test_an_operator_that_is_dropped_and_still_there_starts_again_without_state():
    plan = counting(more=lambda done: done.map(str, name="shown")).plan()
    states = states_of(restored(cut_of(FORMER), plan, change_of(FORMER, drop=("grow",))))
    assert "grow" not in states and states["done"] == {0: b"done"}


def test_prepared_output_stays_with_its_sink():
    cut = cut_of(FORMER)
    task = next(task for task, snapshot in cut.snapshots.items() if "done" in snapshot.operators)
    snapshot = cut.snapshots[task]
    prepared = OperatorState(transactions=(Transaction("done-1", Epoch(3), Attempt(1)),))
    cut.snapshots[task] = replace(snapshot, operators={**snapshot.operators, "done": prepared})  # type: ignore[index]
    parts = restored(cut, counting(name="count").plan(), change_of(FORMER, {"grow": "count"}))
    assert [name for part in parts.values() for name in part.transactions] == ["done-1"]


def test_what_changes_in_a_changed_graph_is_not_written_relative_to_the_cut():
    plan = counting(more=lambda done: done.map(str, name="shown")).plan()
    parts = restored(cut_of(FORMER), plan, change_of(FORMER))
    assert {part.base for part in parts.values()} == {None}


# -- refusals ----------------------------------------------------------------------------------------------------


def merged(name: str) -> Plan:
    """The operator of this name has another kind than in `counting`."""
    flow = Flow("loop")
    again = flow.loop("again")
    grown = flow.read(Items([1]), name="numbers").merge(again).map(abs, name=name)
    done, rest = grown.split(bool, name="enough")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow.plan()


@pytest.mark.parametrize(
    ("plan", "rename", "drop", "why"),
    [
        (counting(name="count").plan(), {}, (), r"'grow' is not in the flow any more.*--drop grow.*--rename grow="),
        (merged("grow"), {}, (), r"'grow' was a stateful_map and is a map now.*--drop grow"),
        (FORMER, {"gone": "grow"}, (), r"no operator 'gone'"),
        (FORMER, {}, ("gone",), r"no operator 'gone'"),
        (counting(name="count").plan(), {"grow": "cuont"}, (), r"'grow' cannot be renamed to 'cuont'"),
        (FORMER, {"grow": "enough"}, (), r"'grow' cannot be renamed to 'enough', which has state of its own"),
        (counting(name="count").plan(), {"grow": "count"}, ("grow",), r"'grow' cannot be both renamed and dropped"),
        (counting(sink="kept").plan(), {"done": "kept"}, (), r"sink 'done' cannot be renamed.*--drop done"),
    ],
)
def test_state_is_never_given_up_in_silence(plan: Plan, rename: dict[str, str], drop: tuple[str, ...], why: str):
    former = replace(FORMER, hash="other") if plan is FORMER else FORMER
    cut = replace(cut_of(FORMER), graph_hash=former.hash)
    with pytest.raises(GraphMismatchError, match=why):
        fitted(outline_of(cut), plan, change_of(former, rename, drop))


def straight() -> Plan:
    """`counting` without its loop."""
    flow = Flow("loop")
    numbers = flow.read(Items([1]), name="numbers").key_by(lambda number: number)
    done, rest = numbers.stateful_map(grow, initial=0, name="grow").split(bool, name="enough")
    done.write(Collect(), name="done")
    rest.write(Collect(), name="rest")
    return flow.plan()


def test_records_on_an_edge_that_is_gone_are_refused_and_an_empty_edge_may_go():
    fitted(outline_of(cut_of(FORMER)), straight(), change_of(FORMER))
    with pytest.raises(GraphMismatchError, match=r"edge 'enough.*is gone.*2 batches"):
        fitted(outline_of(cut_of(FORMER, logged(5, 6))), straight(), change_of(FORMER))


def test_records_on_an_edge_that_routes_in_another_way_are_refused():
    def routed(by_key: bool) -> Plan:
        flow = Flow("loop")
        again = flow.loop("again")
        numbers = flow.read(Items([1]), name="numbers").merge(again)
        grown = (numbers.key_by(abs) if by_key else numbers.rebalance()).map(abs, name="grow")
        done, rest = grown.split(bool, name="enough")
        again.feed(rest)
        done.write(Collect(), name="done")
        return flow.plan()

    former, plan = routed(by_key=True), routed(by_key=False)
    fitted(outline_of(cut_of(former)), plan, change_of(former))
    with pytest.raises(GraphMismatchError, match="routes its records in another way now"):
        fitted(outline_of(cut_of(former, logged(5))), plan, change_of(former))


def test_nothing_enters_an_operator_that_has_ended():
    def joined(more: bool) -> Plan:
        flow = Flow("loop")
        numbers = flow.read(Items([1]), name="numbers")
        if more:
            numbers = numbers.merge(flow.read(Items([2]), name="more"))
        numbers.rebalance().write(Collect(), name="done")
        return flow.plan()

    former, plan = joined(more=False), joined(more=True)
    restored(cut_of(former), plan, change_of(former))
    with pytest.raises(GraphMismatchError, match=r"'done' had ended.*'more' would send to it"):
        fitted(outline_of(cut_of(former, ended=("numbers", "done"))), plan, change_of(former))


def test_the_cut_of_a_graph_that_another_run_has_put_in_its_place_is_refused():
    cut = outline_of(replace(cut_of(FORMER), graph_hash="foreign"))
    with pytest.raises(GraphMismatchError, match="another run has changed the job meanwhile"):
        fitted(cut, counting(name="count").plan(), change_of(FORMER, {"grow": "count"}))


def test_the_same_graph_needs_no_change():
    outline = outline_of(cut_of(FORMER))
    assert fitted(outline, FORMER, None) is outline


def test_the_difference_names_everything_that_changed():
    plan = counting(name="count", more=lambda done: done.map(str, name="shown")).plan()
    found = difference(outline_of(cut_of(FORMER)), plan, change_of(FORMER, {"grow": "count"}))
    assert (found.added, found.renamed, found.dropped, found.problems) == (("shown",), {"grow": "count"}, (), ())
    assert any("shown" in edge for edge in found.added_edges)
    assert [edge for edge in found.removed_edges if "done" in edge]
