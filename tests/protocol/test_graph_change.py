"""A cut is restored in a changed graph: state and records go where the names say, or the restore is refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from backedge import Collect, Flow, GraphMismatchError, Items
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.io.memory import ArrivingItems
from backedge.engine.operators.rerouting import reroute
from backedge.engine.state.capture import load_whole
from backedge.engine.state.keyed_state import encode_entries, keyed_entries
from backedge.engine.state.split_own_state import move_whole
from backedge.engine.state.upgrade import upgraded
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import Cut, InputRecord, LogEntry, OperatorState, TaskSnapshot, Transaction
from backedge.recovery.cut.keyed_parts import Pairs
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from backedge.recovery.restore.graph_change import ConstantChange, GraphChange, change_from, difference, fitted
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.restore.plan import fitting, plan_restore
from backedge.recovery.restore.restore_task import SnapshotsInMemory, take_back
from tests.every import every


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
        states = {name: OperatorState((Pairs(np.array([id.index]), [""], [name.encode()]),)) for name in task.operators}
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
    return {
        id: take_back(part, upgraded(files, part, plan), deployment, reroute, move_whole) for id, part in plans.items()
    }


def states_of(parts: Mapping[TaskId, TaskRestore]) -> dict[str, dict[int, bytes]]:
    """Operator -> its key groups, over all tasks."""
    found: dict[str, dict[int, bytes]] = {}
    for part in parts.values():
        for name, state in part.operators.items():
            for part in state.keyed:
                groups, _, held = cast("Pairs", part)
                found.setdefault(name, {}).update(zip(groups.tolist(), held, strict=True))
    return found


def logged(*numbers: int) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(seq, encode(Batch([number])), 0, 0) for seq, number in enumerate(numbers, start=1))


def chain(first: str, second: str) -> Plan:
    flow = Flow("loop")
    flow.read(Items([1]), name="in").map(abs, name=first).map(abs, name=second).write(Collect(), name="out")
    return flow.plan()


FORMER, COUNT = counting().plan(), counting(name="count").plan()
SHOWN = counting(more=lambda done: done.map(str, name="shown")).plan()
CHANGES: dict[str, tuple[Plan, Plan, dict[str, str], tuple[str, ...], dict[str, str]]] = {
    "an added operator starts without state, the others keep theirs": (
        *(FORMER, SHOWN, {}, ()),
        {"grow": "grow", "done": "done", "shown": ""},
    ),
    "a renamed operator gets the state of its former name": (
        *(FORMER, COUNT, {"grow": "count"}, ()),
        {"count": "grow", "grow": ""},
    ),
    "two operators that swap their names swap their state": (
        *(chain("a", "b"), chain("b", "a"), {"a": "b", "b": "a"}, ()),
        {"a": "b", "b": "a"},
    ),
    "a dropped operator leaves nothing behind": (SHOWN, FORMER, {}, ("shown",), {"shown": "", "grow": "grow"}),
    "an operator that is dropped and still there starts again": (
        *(FORMER, SHOWN, {}, ("grow",)),
        {"grow": "", "done": "done"},
    ),
}
"""The former graph, the new one, what is renamed and dropped; and the former name of the state of each operator."""


@pytest.mark.parametrize(("former", "plan", "rename", "drop", "expected"), CHANGES.values(), ids=CHANGES)
def test_state_goes_where_the_names_say(
    former: Plan, plan: Plan, rename: dict[str, str], drop: tuple[str, ...], expected: dict[str, str]
):
    parts = restored(cut_of(former), plan, change_of(former, rename, drop))
    states = states_of(parts)
    assert {name: states.get(name, {0: b""}) for name in expected} == {
        name: {0: of.encode()} for name, of in expected.items()
    }
    # What changes is not written relative to the cut.
    assert {part.base for part in parts.values()} == {None}


def test_a_renamed_operator_and_another_parallelism_go_together():
    cut = cut_of(FORMER, logged(5, 6), parallelism=2)
    parts = restored(cut, COUNT, change_of(FORMER, {"grow": "count"}), parallelism=3)
    assert set(states_of(parts)["count"].values()) == {b"grow"}
    logs = sum(received.is_back for snapshot in cut.snapshots.values() for received in snapshot.inputs)
    payloads = [payload for part in parts.values() for log in part.logs for payload in log.payloads]
    assert sorted(record for payload in payloads for record in decode(payload).records) == [5] * logs + [6] * logs


def in_flight(parts: Mapping[TaskId, TaskRestore]) -> list[tuple[str, list[Any]]]:
    """The operator and the records of each restored log that is not empty."""
    logs = [(id.name, log.payloads) for id, part in parts.items() for log in part.logs]
    return [(name, [n for payload in payloads for n in decode(payload).records]) for name, payloads in logs if payloads]


@every("drop", [("grow",), ("grow", "enough", "done"), ("numbers", "grow", "enough", "done")])
@every("parallelism", [1, 3])
def test_records_on_their_way_to_a_dropped_operator_that_is_still_there_arrive(drop: tuple[str, ...], parallelism: int):
    parts = restored(cut_of(FORMER, logged(5, 6)), SHOWN, change_of(FORMER, drop=drop), parallelism)
    assert {name for name, _ in in_flight(parts)} == {"grow"}
    assert sorted(number for _, numbers in in_flight(parts) for number in numbers) == [5, 6]
    assert not states_of(parts).keys() & set(drop)


def test_records_on_their_way_to_a_dropped_operator_stay_with_their_tasks_if_their_number_is_kept():
    cut = cut_of(FORMER, logged(5), parallelism=2)
    parts = restored(cut, SHOWN, change_of(FORMER, drop=("grow",)), parallelism=2)
    assert {id.index: len(log.payloads) for id, part in parts.items() for log in part.logs} == {0: 2, 1: 2}


def two_counters(*names: str) -> Plan:
    """Counters that read one stream, each in a task of its own, all of them into one sink."""
    flow = Flow("counters")
    numbers = flow.read(Items([1]), name="in")
    counters = [numbers.key_by(lambda n: n).stateful_map(grow, initial=0, name=name).rebalance() for name in names]
    counters[0].merge(*counters[1:]).write(Collect(), name="out")
    return flow.plan()


def cut_with_a_log_of(former: Plan, receiver: str) -> Cut:
    cut = cut_of(former)
    (task,) = (id for id in cut.snapshots if id.name == receiver)
    snapshot = cut.snapshots[task]
    inputs = tuple(replace(received, log=logged(7)) for received in snapshot.inputs)
    return replace(cut, snapshots={**cut.snapshots, task: replace(snapshot, inputs=inputs)})


def test_an_operator_that_takes_the_name_of_a_dropped_one_gets_its_own_records_and_no_others():
    former, plan = two_counters("a", "b"), two_counters("a")
    change = change_of(former, {"b": "a"}, ("a",))
    parts = restored(cut_with_a_log_of(former, "b"), plan, change)
    assert in_flight(parts) == [("a", [7])]
    assert states_of(parts)["a"] == {0: b"b"}
    with pytest.raises(GraphMismatchError, match=r"edge 'in.out->a.in' is gone.*1 batches"):
        fitted(outline_of(cut_with_a_log_of(former, "a")), plan, change)


def test_prepared_output_stays_with_its_sink():
    cut = cut_of(FORMER)
    task = next(task for task, snapshot in cut.snapshots.items() if "done" in snapshot.operators)
    snapshot = cut.snapshots[task]
    prepared = OperatorState(transactions=(Transaction("done-1", Epoch(3), Attempt(1)),))
    cut.snapshots[task] = replace(snapshot, operators={**snapshot.operators, "done": prepared})  # type: ignore[index]
    parts = restored(cut, COUNT, change_of(FORMER, {"grow": "count"}))
    assert [name for part in parts.values() for name in part.transactions] == ["done-1"]


# -- refusals ----------------------------------------------------------------------------------------------------


def routed(route: Callable[[Any], Any] = lambda numbers: numbers) -> Plan:
    """As `counting`, with another kind of `grow`; `route` is applied to what enters that."""
    flow = Flow("loop")
    again = flow.loop("again")
    grown = route(flow.read(Items([1]), name="numbers").merge(again)).map(abs, name="grow")
    done, rest = grown.split(bool, name="enough")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow.plan()


@every(
    ("plan", "rename", "drop", "why"),
    [
        (COUNT, {}, (), r"'grow' is not in the flow any more.*--drop grow.*--rename grow="),
        (routed(), {}, (), r"'grow' was a stateful_map and is a map now.*--drop grow"),
        (FORMER, {"gone": "grow"}, (), r"no operator 'gone'"),
        (FORMER, {}, ("gone",), r"no operator 'gone'"),
        (COUNT, {"grow": "cuont"}, (), r"'grow' cannot be renamed to 'cuont'"),
        (FORMER, {"grow": "enough"}, (), r"'grow' cannot be renamed to 'enough', which has state of its own"),
        (COUNT, {"grow": "count"}, ("grow",), r"'grow' cannot be both renamed and dropped"),
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
    former, plan = routed(lambda numbers: numbers.key_by(abs)), routed(lambda numbers: numbers.rebalance())
    fitted(outline_of(cut_of(former)), plan, change_of(former))
    with pytest.raises(GraphMismatchError, match="routes its records in another way now"):
        fitted(outline_of(cut_of(former, logged(5))), plan, change_of(former))


def test_records_on_an_edge_with_other_key_columns_are_refused():
    """Such a record would go to the task of its former key, and meet the state of no key."""
    for columns, others in (("a", "b"), (["a", "b"], ["a", "c"]), (["a", "b"], ["b", "a"]), ("a", ["a", "b"])):
        former, plan = (routed(lambda rows, by=by: rows.key_by(by)) for by in (columns, others))
        assert former.hash != plan.hash
        fitted(outline_of(cut_of(former)), plan, change_of(former))
        with pytest.raises(GraphMismatchError, match="routes its records in another way now"):
            fitted(outline_of(cut_of(former, logged(5))), plan, change_of(former))


def test_a_cut_that_does_not_name_the_columns_of_a_key_that_has_several_is_restored():
    former, plan = routed(lambda rows: rows.key_by(abs)), routed(lambda rows: rows.key_by(["a", "b"]))
    fitted(outline_of(cut_of(former, logged(5))), plan, change_of(former))


def read_by(more: bool, step: Callable[[Any], Any]) -> Plan:
    """A flow with one source, or with two."""
    flow = Flow("chain")
    numbers = flow.read(Items([1]), name="numbers")
    if more:
        numbers = numbers.merge(flow.read(Items([2]), name="more"))
    step(numbers).write(Collect(), name="done")
    return flow.plan()


def test_nothing_enters_an_operator_that_has_ended():
    former, plan = (read_by(more, lambda numbers: numbers.rebalance()) for more in (False, True))
    restored(cut_of(former), plan, change_of(former))
    with pytest.raises(GraphMismatchError, match=r"'done' had ended.*'more' would send to it"):
        fitted(outline_of(cut_of(former, ended=("numbers", "done"))), plan, change_of(former))


def test_a_dropped_operator_that_had_ended_begins_again_only_if_something_can_reach_it():
    def counted(numbers: Any) -> Any:
        grown = numbers.key_by(lambda number: number).stateful_map(grow, initial=0, name="grow")
        return grown.rebalance().map(abs, name="shown")

    former, longer = (read_by(more, counted) for more in (False, True))
    cut = cut_of(former, ended=("numbers", "grow", "shown"))
    change = change_of(former, drop=("grow",))
    same = replace(longer, operators=former.operators, edges=former.edges)
    parts = restored(cut, same, change)
    assert all(part.ended for part in parts.values()) and "grow" not in states_of(parts)
    with pytest.raises(GraphMismatchError, match=r"'shown' had ended.*'grow' would send to it"):
        fitted(outline_of(cut), longer, change)
    parts = restored(cut, longer, change_of(former, drop=("grow", "shown", "done")))
    ended = {"numbers": True, "more": False, "grow": False, "shown": False}
    assert {task.name: part.ended for task, part in parts.items()} == ended


def test_the_state_of_a_running_iteration_cannot_be_dropped():
    def iterating(more: bool) -> Plan:
        flow = Flow("rounds")
        numbers = flow.read(Items([1]), name="numbers")
        result = flow.iterate(numbers, lambda each: each.map(abs, name="step"), rounds=3, name="rounds")
        (result.map(abs, name="shown") if more else result).write(Collect(), name="done")
        return flow.plan()

    former, plan = iterating(more=False), iterating(more=True)
    cut = cut_of(former)
    rounds = RoundsSnapshot((1,), Phase.ROUND, (), {}, {}, {}, {}, is_head=False)
    inside = {id: replace(cut.snapshots[id], rounds=rounds) for id in cut.snapshots if id.name in ("rounds", "step")}
    cut = replace(cut, snapshots={**cut.snapshots, **inside})
    fitted(outline_of(cut), plan, change_of(former, drop=("done",)))
    with pytest.raises(GraphMismatchError, match="'step' would start again without state, and an iteration had begun"):
        fitted(outline_of(cut), plan, change_of(former, drop=("step",)))


def test_the_cut_of_a_graph_that_another_run_has_put_in_its_place_is_refused():
    cut = outline_of(replace(cut_of(FORMER), graph_hash="foreign"))
    with pytest.raises(GraphMismatchError, match="another run has changed the job meanwhile"):
        fitted(cut, COUNT, change_of(FORMER, {"grow": "count"}))


def test_the_difference_names_everything_that_changed():
    plan = counting(name="count", more=lambda done: done.map(str, name="shown")).plan()
    found = difference(outline_of(cut_of(FORMER)), plan, change_of(FORMER, {"grow": "count"}))
    assert (found.added, found.renamed, found.dropped, found.problems) == (("shown",), {"grow": "count"}, (), ())
    assert any("shown" in edge for edge in found.added_edges)
    assert [edge for edge in found.removed_edges if "done" in edge]


def loaded() -> Flow:
    flow = counting(name="count")
    flow.constant("rates", load=fails)
    flow.constant("prices", load=fails)
    return flow


def fails() -> Any:
    raise AssertionError("the loader was called")


@every(
    ("flow", "of_cut", "given", "dropped", "expected"),
    [
        (loaded(), {"prices": "a"}, {}, (), (("rates",), (), "")),
        (loaded(), {"prices": "a"}, {"prices": "a"}, (), (("rates",), (), "")),
        (loaded(), {"prices": "a"}, {"prices": "b"}, (), (("rates",), (), "'prices' has another value")),
        (loaded(), {"prices": "a"}, {"prices": "b"}, ("prices",), (("rates",), ("prices",), "")),
        (counting(name="count"), {"prices": "a"}, {}, (), ((), (), "'prices' of the cut is not in the flow any more")),
        (counting(name="count"), {"prices": "a"}, {}, ("prices", "other"), ((), ("prices",), "")),
    ],
)
def test_the_difference_names_constants(flow: Flow, of_cut: Any, given: Any, dropped: Any, expected: Any):
    constants = ConstantChange(of_cut, given, dropped)
    found = difference(outline_of(cut_of(FORMER)), flow.plan(), change_of(FORMER, {"grow": "count"}), constants)
    added, given_up, problem = expected
    assert (found.added_constants, found.dropped_constants) == (added, given_up)
    assert len(found.problems) == bool(problem)
    assert problem in "".join(found.problems)


# -- versions of state -------------------------------------------------------------------------------------------


class Kept:
    """Keeps a value by key, and one of the task that `capture` returns."""

    state_version = 3

    def on_record(self, ctx: Any, value: Any) -> None: ...

    def capture(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    @staticmethod
    def upgrade(value: Any, version: int) -> Any:
        return ("value", value, version)

    @staticmethod
    def upgrade_own(state: Any, version: int) -> Any:
        return ("own", state, version)

    @staticmethod
    def merge(states: list[Any]) -> Any:
        return states

    @staticmethod
    def split(state: Any, parts: int) -> list[Any]:
        return [state] * parts


class KeptBefore(Kept):
    state_version = 2


class KeptLater(Kept):
    state_version = 4


class NoUpgrade:
    state_version = 3

    def on_record(self, ctx: Any, value: Any) -> None: ...


class NoUpgradeOfItsOwn(NoUpgrade):
    def capture(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    @staticmethod
    def upgrade(value: Any, version: int) -> Any: ...


def keeping(of_class: type[Any], name: str = "kept") -> Plan:
    flow = Flow("versions")
    keyed = flow.read(Items([1]), name="numbers").key_by(lambda number: number)
    keyed.process(of_class, name=name).write(Collect(), name="done")
    return flow.plan()


def cut_with_state(former: Plan, whole: dict[str, Any]) -> Cut:
    """A cut of one task each, in which `kept` has a delta, a timer and state of its own."""
    values = encode_entries("kept", {1: "first", 2: "old"}, [(2, 50, 0)])
    delta = encode_entries("kept", {2: "second"}, [(2, 70, 1)])
    state = OperatorState(values, deltas=(delta,), whole=pickle.dumps(whole), records=7)
    cut = cut_of(former)
    snapshots = {
        id: replace(snapshot, operators={**snapshot.operators, "kept": state})
        if "kept" in snapshot.operators
        else replace(snapshot, operators=dict.fromkeys(snapshot.operators, OperatorState()))
        for id, snapshot in cut.snapshots.items()
    }
    return replace(cut, snapshots=snapshots)


def upgraded_part(plan: Plan, whole: dict[str, Any], parallelism: int = 1, **rename: str) -> list[TaskRestore]:
    """What the tasks of `kept`, or what it is called now, restore from a cut of `KeptBefore`."""
    former = keeping(KeptBefore)
    cut = cut_with_state(former, whole)
    name = rename.get("kept", "kept")
    several = (restored(cut, plan, change_of(former, rename), parallelism).values() for _ in range(2))
    once, again = ([part for part in parts if name in part.operators] for parts in several)
    assert [keyed_entries(p.operators[name]) for p in once] == [keyed_entries(p.operators[name]) for p in again]
    return once


def test_every_value_of_an_older_version_is_upgraded_once_and_timers_stay():
    (part,) = upgraded_part(keeping(Kept), {"own": "mine", "value": "of the task", "hops_max": 3})
    state = part.operators["kept"]
    values, timers, _ = keyed_entries(state)
    assert values == {1: ("value", "first", 2), 2: ("value", "second", 2)}
    assert (timers, state.deltas, state.records) == ([(2, 70, 1)], (), 7)
    whole = {"own": ("own", "mine", 2), "value": ("value", "of the task", 2), "hops_max": 3}
    assert load_whole("kept", state) == whole
    assert part.base is None, "the next cut may not be relative to the older version"


def test_state_is_upgraded_before_it_moves_to_other_tasks_and_under_a_new_name():
    parts = upgraded_part(keeping(Kept, name="held"), {"own": "mine"}, parallelism=3, kept="held")
    values: dict[int, Any] = {}
    for part in parts:
        values |= keyed_entries(part.operators["held"]).values
        assert load_whole("held", part.operators["held"]) == {"own": [("own", "mine", 2)]}
    assert len(parts) == 3
    assert values == {1: ("value", "first", 2), 2: ("value", "second", 2)}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (KeptBefore, NoUpgrade, r"'kept' has state of version 2.*state_version=3 .*upgrade\(value.*--drop kept"),
        (KeptBefore, NoUpgradeOfItsOwn, r"'kept' has state of version 2.*upgrade_own\(state"),
        (KeptLater, Kept, r"'kept' has state of version 4.*state_version=3.*run the newer code"),
    ],
)
def test_a_version_that_changed_without_an_upgrade_or_is_newer_than_the_code_is_refused(
    before: type[Any], after: type[Any], why: str
):
    former, plan = keeping(before), keeping(after)
    with pytest.raises(GraphMismatchError, match=why):
        fitted(outline_of(cut_of(former)), plan, change_of(former))
    fitted(outline_of(cut_of(former)), plan, change_of(former, drop=("kept",)))


def test_the_difference_names_the_versions_that_are_upgraded():
    former = keeping(KeptBefore)
    assert difference(outline_of(cut_of(former)), keeping(Kept), change_of(former)).upgraded == {"kept": (2, 3)}
    later = difference(outline_of(cut_of(former)), keeping(Kept), change_of(former, drop=("kept",)))
    assert not later.upgraded


def reading(source: Items[int]) -> Plan:
    flow = Flow("reading")
    flow.read(source, name="in").write(Collect(), name="out")
    return flow.plan()


LISTED, FOUND = reading(Items([1])), reading(ArrivingItems([1], 1.0))


@pytest.mark.parametrize(
    ("former", "plan", "drop", "told"),
    [
        (LISTED, FOUND, (), "'in' was a source and is a reader of splits now"),
        (FOUND, LISTED, ("in.splits",), "'in' was a reader of splits and is a source now"),
        (FOUND, FOUND, ("in.splits",), "one of its operators, 'in' and 'in.splits': keep both"),
        (FOUND, FOUND, ("in",), "or begin again with --drop in --drop in.splits"),
    ],
)
def test_a_source_that_finds_splits_takes_all_of_its_state_or_none(
    former: Plan, plan: Plan, drop: tuple[str, ...], told: str
):
    with pytest.raises(GraphMismatchError, match=told):
        restored(cut_of(former), plan, change_of(former, drop=drop))
    assert restored(cut_of(former), plan, change_of(former, drop=("in", "in.splits")[: len(former.operators) - 1]))
    assert restored(cut_of(FOUND), FOUND, change_of(FOUND))
