"""Best values in rounds: which vertices send in a round, what travels, and what cuts hold of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from backedge import Flow, VertexProgram, Vertices, simulate
from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.operators.sending import Emitted
from backedge.engine.state.keyed_state import keyed_entries
from backedge.engine.vertices import edges as vertex_edges
from backedge.engine.vertices import graph as vertex_graph
from backedge.engine.vertices import rounds as in_rounds
from backedge.engine.vertices.edges import OutEdges, identity
from backedge.engine.vertices.frontier import SpreadingValues
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import tasks_of_keys
from backedge.graphs.task_errors import MisuseError, StateSerializationError
from backedge.graphs.vertex_program import BACKWARDS
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import entries_of
from tests.columns.given import columns, slow
from tests.columns.test_vertex_programs import (
    EDGES,
    IDS,
    PAIRS,
    Best,
    BestWay,
    best_by_hand,
    flow_of,
    lowest_by_hand,
    shortest_by_hand,
)  # fmt: skip
from tests.runtime.tasks import States, Tasks, encoded

Sent = list[tuple[TaskId, Columns]]
"""The task that has sent, and its batch."""


class Counting(BestWay):
    """Counts the edges that are followed."""

    followed = 0

    def along(self, sent: Any, weights: Any) -> Any:
        Counting.followed += len(sent)
        return super().along(sent, weights)


class InRounds:
    """The tasks of a program, round by round."""

    def __init__(self, flow: Flow, parallelism: int, restored: States | None = None) -> None:
        self.tasks = Tasks(flow, parallelism, restored)
        indexes = range(parallelism)
        self.programs = [self.tasks.home("program", index) for index in indexes]
        self.heads = [self.tasks.home("program_rounds", index) for index in indexes]
        self.number = 0

    def load(self, edges: Any = EDGES) -> None:
        """Give each task its edges and vertices."""
        ends = np.unique([edge[end] for edge in edges for end in ("source", "target")])
        homes = tasks_of_keys(np.array([edge["source"] for edge in edges]), len(self.programs))
        for index, runtime in enumerate(self.programs):
            inputs = {channel.edge.input: channel for channel in runtime.task.inputs}
            own = [edge for edge, home in zip(edges, homes, strict=True) if home == index]
            if own:
                runtime.process(inputs["edges"], Batch(own), 0)
            vertices = ends[tasks_of_keys(ends, len(self.programs)) == index]
            if len(vertices):
                runtime.process(inputs["messages"], Batch(columns(vertex=vertices.tolist())), 0)

    def send(self) -> Sent:
        """End a round. What the tasks send waits at the heads."""
        sent: Sent = []
        for runtime in self.programs:
            for channel, batch in runtime.on_round_end((self.number,), 0):
                assert isinstance(batch.records, Columns)
                sent.append((channel.sender, batch.records))
                self._process([(channel, batch)])
        self.number += 1
        return sent

    def deliver(self) -> None:
        """Begin the next round."""
        for head in self.heads:
            self._process(head.release_round())

    def advance(self, rounds: int) -> None:
        for _ in range(rounds):
            self.send()
            self.deliver()

    def restored(self, flow: Flow | None = None) -> InRounds:
        """Other tasks, which go on with a cut of these."""
        later = InRounds(flow or self.tasks.flow, len(self.programs), self.tasks.capture())
        later.number = self.number
        return later

    def run(self, rounds_max: int = 200) -> list[Sent]:
        """Go on until nothing is sent."""
        found: list[Sent] = []
        for _ in range(rounds_max):
            found.append(self.send())
            if not found[-1]:
                return found
            self.deliver()
        raise AssertionError(f"still sending after {rounds_max} rounds")

    def _process(self, emitted: Emitted) -> None:
        for channel, batch in emitted:
            self.tasks.runtimes[channel.receiver].process(self.tasks.deployment.channels[channel], batch, 0)

    def values(self, name: str = "lowest") -> dict[int, Any]:
        """The values at the end."""
        for runtime in self.programs:
            for channel, batch in runtime.end(0):
                self._process([(channel, batch)])
        return {row["vertex"]: row[name] for row in self.tasks.output("out")}


def few_are_sent(monkeypatch: pytest.MonkeyPatch, sent_min: int = 1, few: int = 1) -> None:
    """Have a task send few values at once, and look at the edges of their vertices alone."""
    monkeypatch.setattr(in_rounds, "SENT_MIN", sent_min)
    monkeypatch.setattr(vertex_edges, "FEW", few)


def best_way(parallelism: int, **options: Any) -> InRounds:
    """The tasks of `BestWay`, with their edges."""
    run = InRounds(flow_of(BestWay, weight="weight", **options), parallelism)
    run.load()
    return run


def followed_in_first_round(flow: Flow) -> int:
    Counting.followed = 0
    run = InRounds(flow, 1)
    run.load()
    run.advance(1)
    return Counting.followed


def never(change: float) -> bool:
    return change < 0


class CountingAll(Counting):
    """All vertices begin with their number."""

    def start(self, vertices: Vertices) -> Any:
        return {"lowest": vertices.ids.astype(np.float64)}


def test_the_best_values_are_sent_first_unless_it_matters_what_happens_by_which_round(monkeypatch: pytest.MonkeyPatch):
    few_are_sent(monkeypatch)
    monkeypatch.setattr(in_rounds, "STEPS_MAX", 1)
    weighted = {"weight": "weight"}
    at_once = followed_in_first_round(flow_of(CountingAll, rounds=5, **weighted))
    assert at_once == len(EDGES)
    assert 0 < followed_in_first_round(flow_of(CountingAll, **weighted)) < at_once / 2
    assert followed_in_first_round(flow_of(CountingAll, until=lambda change: change == 0, **weighted)) == at_once


def test_an_own_vertex_sends_in_the_same_round_if_its_new_value_is_as_good_as_those_that_were_sent(
    monkeypatch: pytest.MonkeyPatch,
):
    few_are_sent(monkeypatch, 2)
    chain = [{"source": n, "target": n + 1, "weight": 0.0} for n in range(60)]

    class Chain(Counting):
        def start(self, vertices: Vertices) -> Any:
            return {"lowest": np.where(vertices.ids == 0, 0.0, 1_000.0 + vertices.ids)}

    for steps in (1, 3):
        monkeypatch.setattr(in_rounds, "STEPS_MAX", steps)
        run = InRounds(flow_of(Chain, chain, weight="weight"), 1)
        run.load(chain)
        run.send()
        assert list(run.values().values()).count(0.0) == 1 + steps


@pytest.mark.parametrize("parallelism", [slow(1), 2, slow(3)])
@pytest.mark.parametrize("rows_max", [0, 3, 10_000])
@pytest.mark.parametrize("sent_min", [1, 512])
def test_the_form_in_which_values_travel_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, parallelism: int, rows_max: int, sent_min: int
):
    monkeypatch.setattr(in_rounds, "ROWS_MAX", rows_max)
    few_are_sent(monkeypatch, sent_min)
    for program, options, expected in (
        (Best, {"undirected": True}, lowest_by_hand(directed=False)),
        (BestWay, {"weight": "weight"}, shortest_by_hand()),
        (BestWay, {"weight": "weight", "rounds": 100}, shortest_by_hand()),
    ):
        run = InRounds(flow_of(program, **options), parallelism)
        back = [edge | {"source": edge["target"], "target": edge["source"]} for edge in EDGES]
        run.load(EDGES + back if "undirected" in options else EDGES)
        run.run()
        assert run.values() == expected


class Backwards(Best):
    reverses = True

    def start(self, vertices: Vertices) -> Any:
        vertices.backwards = True
        return {"lowest": vertices.ids}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_best_values_may_go_against_the_direction_of_edges(parallelism: int):
    both = [
        {"source": edge[one], "target": edge[other], BACKWARDS: one == "target"}
        for edge in EDGES
        for one, other in (("source", "target"), ("target", "source"))
    ]
    run = InRounds(flow_of(Backwards), parallelism)
    run.load(both)
    run.run()
    assert run.values() == best_by_hand({id: id for id in IDS}, [(target, source, 0) for source, target in PAIRS])


def test_values_for_own_vertices_do_not_travel_and_nothing_is_sent_twice(monkeypatch: pytest.MonkeyPatch):
    few_are_sent(monkeypatch)
    alone = best_way(1)
    assert all(not any(batch.batch.column("values").to_pylist()) for sent in alone.run() for _, batch in sent)
    told: dict[tuple[TaskId, int, int], float] = {}
    for task, batch in (pair for sent in best_way(2).run() for pair in sent):
        if "value" not in batch.names:
            continue
        for row in batch.to_records():
            target = task, row["vertex"], row["at"]
            assert row["value"] < told.get(target, np.inf)
            told[target] = row["value"]
    assert len(told) > 5


@pytest.mark.parametrize("combine", ["min", "max"])
def test_undefined_values_do_not_keep_others_from_being_sent(monkeypatch: pytest.MonkeyPatch, combine: str):
    """A round with a list is followed by another one: one of which nothing is taken would never end."""
    few_are_sent(monkeypatch)
    vertices = 40

    class Undefined(Best):
        message = np.float64

        def start(self, vertices: Vertices) -> Any:
            known = np.where(vertices.ids < 20, vertices.ids, np.nan)
            return {"lowest": np.where(vertices.ids < 40, known, np.inf if combine == "min" else -np.inf)}

    program = type("Undefined", (Undefined,), {"combine": combine})
    edges = [{"source": vertex, "target": vertex + vertices} for vertex in range(vertices)]
    run = InRounds(flow_of(program, edges), 1)
    run.load(edges)
    with np.errstate(invalid="ignore"):
        run.run()
    found = run.values()
    assert [found[vertex + vertices] for vertex in range(20)] == list(range(20))


@pytest.mark.parametrize(
    "options", [{}, slow({"rounds": 6}), slow({"free_running": True})], ids=["rounds", "six", "free"]
)
def test_undefined_values_come_to_rest_on_a_cycle(options: Any):
    class Undefined(Best):
        message = np.float64

        def start(self, vertices: Vertices) -> Any:
            return {"lowest": np.where(vertices.ids == 0, np.nan, vertices.ids)}

    edges = [{"source": source, "target": target} for source, target in ((0, 1), (1, 0), (1, 2), (3, 4))]
    with np.errstate(invalid="ignore"):
        outputs = simulate(flow_of(Undefined, edges, **options), seeds=range(2)).outputs["out"]
    found = {row["vertex"]: row["lowest"] for row in outputs}
    assert found[3] == found[4] == 3
    assert np.isnan([found[0], found[1], found[2]]).all()


@pytest.mark.parametrize(("combine", "step"), [("min", 1), ("max", -1)])
@pytest.mark.parametrize(
    ("message", "weight"),
    [slow(np.int32, 1), (np.int64, 1.0), slow(np.uint64, 1), slow(np.float32, 1.0)],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, slow({"rounds": 9}), {"free_running": True}], ids=["rounds", "nine", "free"])
@pytest.mark.parametrize("is_best", [True, False], ids=["best", "applied"])
def test_values_arrive_as_messages_whatever_type_along_returns(
    combine: str, step: int, message: Any, weight: float, options: Any, is_best: bool
):
    """Most vertices send nothing: the largest integer, or infinity, is no large number in another type."""
    if (message is np.uint64 and combine == "max") or (options.get("free_running") and not is_best):
        return
    worst = identity(combine, message)
    better = np.minimum if combine == "min" else np.maximum

    class Steps(VertexProgram):
        def start(self, vertices: Vertices) -> Any:
            vertices.active = vertices.ids < 20
            return {"lowest": np.where(vertices.active, 0, worst).astype(message)}

        def send(self, vertices: Vertices) -> Any:
            return vertices["lowest"]

        def along(self, sent: Any, weights: Any) -> Any:
            return sent + step * weights

        def apply(self, vertices: Vertices, received: Any) -> Any:
            lowest = better(received, vertices["lowest"])
            vertices.active = lowest != vertices["lowest"]
            return {"lowest": lowest}

    program = type("Steps", (Steps,), {"combine": combine, "message": message, "best": "lowest" if is_best else None})
    edges = [{"source": source, "target": source + 20, "weight": weight} for source in range(40)]
    outputs = simulate(flow_of(program, edges, weight="weight", **options), seeds=range(1)).outputs["out"]
    assert {row["vertex"]: row["lowest"] for row in outputs} == {id: id // 20 * step for id in range(60)}


@pytest.mark.parametrize(
    ("before", "after"),
    [slow({}, {"until": never}), slow({"until": never}, {}), ({}, {}), slow({"rounds": 90}, {})],
    ids=["then in step", "then best first", "the same", "no limit any more"],
)
def test_a_cut_is_continued_with_other_options(monkeypatch: pytest.MonkeyPatch, before: Any, after: Any):
    """What is in flight is numbered by the vertices that its sender had announced, with or without own ones."""
    few_are_sent(monkeypatch)
    for rounds in (1, 2, 3, 6):
        run = best_way(2, **before)
        run.advance(rounds)
        run.send()
        later = run.restored(flow_of(BestWay, weight="weight", **after))
        later.deliver()
        later.advance(60)
        assert later.values() == shortest_by_hand()


def test_a_restored_task_sends_the_same_as_the_one_that_went_on(monkeypatch: pytest.MonkeyPatch):
    """So a replay that begins with a cut finds nothing that differs."""
    few_are_sent(monkeypatch, 3, 2)
    run = best_way(2)
    run.advance(4)
    run.send()
    sent: list[list[Sent]] = []
    for each in (run, run.restored()):
        each.deliver()
        sent.append(each.run())
    assert sent[0] == sent[1] and len(sent[0]) > 4


@pytest.mark.parametrize("pieces_max", [1, 2, 32])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_graph_that_arrives_between_cuts_is_restored_whole(
    monkeypatch: pytest.MonkeyPatch, pieces_max: int, parallelism: int
):
    monkeypatch.setattr(vertex_graph, "PIECES_MAX", pieces_max)
    run = InRounds(flow_of(BestWay, weight="weight"), parallelism)
    for start in range(0, len(EDGES), 20):
        run.load(EDGES[start : start + 20])
        run = run.restored()
        for _ in range(2):
            run.tasks.capture()
    run.run()
    assert run.values() == shortest_by_hand()


@pytest.mark.slow
def test_a_graph_is_restored_once_from_deltas_of_which_one_has_put_its_pieces_together():
    """That delta holds more keys than any may: all groups lose the pieces that they had."""
    run = InRounds(flow_of(BestWay, weight="weight"), 1)
    [runtime] = run.programs
    states: dict[int | None, OperatorState] = {}
    for cut in range(vertex_graph.PIECES_MAX + 2):
        run.load([{"source": cut, "target": cut * 200 + n, "weight": 1.0} for n in range(200)])
        capture = runtime.capture(Epoch(cut), Attempt(1), Epoch(cut - 1) if cut else None)
        assert cut == 0 or capture.base is not None
        state = encoded(capture)["program"]
        below = states.get(capture.base)
        states[cut] = state if below is None else replace(below, deltas=(*below.deltas, state.keyed))
        pieces = [constant_in(memoryview(filed)) for filed in keyed_entries(states[cut]).values.values()]
        assert sum(len(piece["sources"]) for piece in pieces) == 200 * len(states)


def test_weights_are_kept_if_a_cut_comes_between_the_vertices_of_a_task_and_its_first_edge():
    run = InRounds(flow_of(BestWay, weight="weight"), 1)
    [runtime] = run.programs
    inputs = {channel.edge.input: channel for channel in runtime.task.inputs}
    ends = sorted({edge[end] for edge in EDGES for end in ("source", "target")})
    runtime.process(inputs["messages"], Batch(columns(vertex=ends)), 0)
    run.tasks.capture()
    runtime.process(inputs["edges"], Batch(list(EDGES)), 0)
    run.run()
    assert run.values() == shortest_by_hand()


def test_what_was_filed_of_a_graph_is_not_written_again():
    run = InRounds(flow_of(BestWay, weight="weight"), 1)
    [runtime] = run.programs
    sizes: list[int] = []

    def filed(cut: int) -> list[dict[str, Any]]:
        states = encoded(runtime.capture(Epoch(cut + 1), Attempt(1), Epoch(cut) if cut else None))
        return [constant_in(memoryview(entry[1])) for entry in entries_of(states["program"].keyed)]

    for cut, start in enumerate((0, 40, 40, 80)):
        if start != 40 or cut == 1:
            run.load(EDGES[start : start + 40])
        sizes.append(sum(len(piece["sources"]) for piece in filed(cut)))
    run.send()
    of_round = filed(4)
    assert sizes == [40, 40, 0, len(EDGES) - 80]
    assert of_round and all("values" in part for part in of_round), "in a round, values alone"


def test_a_restored_round_may_hold_values_in_both_forms(monkeypatch: pytest.MonkeyPatch):
    """With fewer tasks than before, one of them gets what several have sent."""
    few_are_sent(monkeypatch)
    run = best_way(2)
    both: dict[str, list[Any]] = {}
    for _ in range(12):
        for task, batch in run.send():
            form = "rows" if "value" in batch.names else "groups"
            if str(task) == "program/0" and any(row.get("values") or "value" in row for row in batch.to_records()):
                both.setdefault(form, batch.to_records())
        run.deliver()
    assert sorted(both) == ["groups", "rows"]
    later = run.restored()
    receiver = later.programs[1]
    [channel] = {c for c in receiver.task.inputs if c.edge.input == "messages" and c.id.sender.index == 0}
    receiver.process(channel, Batch([*both["rows"], *both["groups"], *both["rows"]]), 0)
    later.run()
    assert later.values() == shortest_by_hand()


@pytest.mark.parametrize("combine", ["min", "max"])
def test_the_best_of_a_list_are_taken_and_what_becomes_as_good_goes_with_them(
    monkeypatch: pytest.MonkeyPatch, combine: str
):
    monkeypatch.setattr(vertex_edges, "FEW", 1)
    chain = np.arange(40)
    edges = OutEdges(40, chain[:-1], chain[1:], None)
    sign = 1.0 if combine == "min" else -1.0
    values = SpreadingValues(edges, chain, sign * 10.0 * chain, combine, keeps_own=True)
    values.put_on_list(chain)
    assert sorted(values.take_best(3).tolist()) == [0, 1, 2, 3, 4], "an eighth of the list, which is more than three"
    assert len(values.listed) == 35
    near, _ = values.spread(values.bests, np.array([0, 4]), None)
    assert sorted(near.tolist()) == [1, 5]
    near, _ = values.spread(values.bests + sign, np.array([10]), None)
    assert near.tolist() == [], "vertex 11 has become better, but is not as good"
    assert 11 in values.listed


def test_vertices_are_on_the_list_once():
    edges = OutEdges(3, np.array([0]), np.array([1]), None)
    values = SpreadingValues(edges, np.arange(3), np.full(3, 9.0), "min", keeps_own=True)
    values.receive(np.array([1, 1, 2]), np.array([5.0, 4.0, 9.0]))
    values.receive(np.array([1]), np.array([3.0]))
    assert values.listed.tolist() == [1]
    values.take_off(np.array([1]))
    assert values.listed.tolist() == []
    values.receive(np.array([1]), np.array([2.0]))
    assert values.take_all().tolist() == [1]


class Unreadable(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


class WithObjects(BestWay):
    """Its vertices have another value, which is an object."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def start(self, vertices: Vertices) -> dict[str, Any]:
        objects = np.empty(len(vertices), object)
        objects[:] = [self.made(id, 3) for id in vertices.ids.tolist()]
        return {**super().start(vertices), "object": objects}


def in_a_round(made: Any) -> InRounds:
    run = InRounds(flow_of(WithObjects, weight="weight", made=made), 1)
    run.load()
    run.send()
    return run


def test_values_that_are_objects_are_restored():
    later = in_a_round(Fraction).restored()
    assert later.values("object") == {id: round(Fraction(id, 3), 9) for id in shortest_by_hand()}


def test_values_that_could_not_be_restored_are_refused_by_the_cut():
    with pytest.raises(StateSerializationError, match="Unreadable"):
        in_a_round(Unreadable).tasks.capture()


def test_values_that_no_column_of_bytes_holds_are_refused():
    values = np.zeros(1)
    with pytest.raises(MisuseError, match=r"2,147,483,648 bytes .* higher parallelism"):
        vertex_graph.as_bytes(values, np.array([0, 2**28]))
