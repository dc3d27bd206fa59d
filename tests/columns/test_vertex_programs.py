"""Vertex programs: the arrays they work on, what travels, their mistakes, and the same result under crashes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, Flow, Items, IterationError, VertexProgram, Vertices, simulate
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns
from backedge.engine.vertices import edges as vertex_edges
from backedge.engine.vertices import rounds as in_rounds
from backedge.engine.vertices.edges import COMBINES, OutEdges, identity
from backedge.engine.vertices.graph import edge_parts
from backedge.graphs.exact_numbers import converted
from backedge.graphs.task_errors import MisuseError, UserFunctionError
from examples.cyclic.communities import Labels
from tests.columns.given import columns
from tests.every import every
from tests.graphs.refusals import refuses
from tests.runtime.tasks import Tasks

VERTICES = 60
RANDOM = np.random.default_rng(4)
ENDS = np.unique(RANDOM.integers(0, VERTICES, (110, 2)), axis=0)
EDGES = [{"source": a, "target": b, "weight": float((a * 7 + b) % 5 + 1)} for a, b in ENDS.tolist() if a != b]


class Lowest(VertexProgram):
    combine, message = "min", np.int64

    def start(self, vertices: Vertices) -> Any:
        return {"lowest": vertices.ids}

    def send(self, vertices: Vertices) -> Any:
        return vertices["lowest"]

    def apply(self, vertices: Vertices, received: Any) -> Any:
        vertices.active = received < vertices["lowest"]
        return {"lowest": np.minimum(received, vertices["lowest"])}


class Best(VertexProgram):
    combine, message, best = "min", np.int64, "lowest"

    def start(self, vertices: Vertices) -> Any:
        return {"lowest": vertices.ids}


class BestWay(VertexProgram):
    combine, best = "min", "lowest"

    def start(self, vertices: Vertices) -> Any:
        vertices.active = vertices.ids == EDGES[0]["source"]
        return {"lowest": np.where(vertices.active, 0.0, np.inf)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + weights


class Shortest(Lowest):
    message, start, along = np.float64, BestWay.start, BestWay.along


class Rank(VertexProgram):
    def start(self, vertices: Vertices) -> Any:
        return {"rank": np.ones(len(vertices))}

    def send(self, vertices: Vertices) -> Any:
        return vertices["rank"] / np.maximum(vertices.degrees, 1)

    def apply(self, vertices: Vertices, received: Any) -> Any:
        rank = 0.15 + 0.85 * received
        vertices.change = float(np.abs(rank - vertices["rank"]).sum())
        return {"rank": rank}


def rounded(row: Any) -> Any:
    return {name: round(value, 9) for name, value in row.items()}


def flow_of(program: Any, edges: Any = EDGES, **options: Any) -> Flow:
    flow = Flow("vertices")
    values = flow.vertex_program(program, flow.read(Items(edges), name="edges"), name="program", **options)
    values.map(rounded, name="rounded").write(Collect(), name="out")
    return flow


def best_by_hand(found: dict[int, Any], edges: list[tuple[int, int, Any]]) -> dict[int, Any]:
    """The lowest values that vertices take when each edge adds something on the way."""
    for _ in found:
        for source, target, added in edges:
            found[target] = min(found[target], found[source] + added)
    return found


PAIRS = [(edge["source"], edge["target"]) for edge in EDGES]
IDS = sorted({end for pair in PAIRS for end in pair})


def lowest_by_hand(*, directed: bool) -> dict[int, Any]:
    back = [] if directed else [(target, source, 0) for source, target in PAIRS]
    return best_by_hand({id: id for id in IDS}, [(*pair, 0) for pair in PAIRS] + back)


def shortest_by_hand() -> dict[int, Any]:
    first = {id: 0.0 if id == EDGES[0]["source"] else float("inf") for id in IDS}
    return best_by_hand(first, [(edge["source"], edge["target"], edge["weight"]) for edge in EDGES])


def ranks_by_hand(until: float | None, rounds: int | None) -> dict[int, Any]:
    place = {vertex: position for position, vertex in enumerate(IDS)}
    shares = np.zeros((len(IDS), len(IDS)))
    for source, target in PAIRS:
        shares[place[target], place[source]] = 1.0
    shares = shares / np.maximum(shares.sum(axis=0), 1)
    ranks, change, done = np.ones(len(IDS)), np.inf, 0
    while done != rounds and not (until is not None and change < until):
        after = 0.15 + 0.85 * shares @ ranks
        ranks, change, done = after, float(np.abs(after - ranks).sum()), done + 1
    return {vertex: round(float(ranks[place[vertex]]), 9) for vertex in IDS}


def labels_by_hand(rounds: int) -> dict[int, Any]:
    around: dict[int, list[int]] = {id: [] for id in IDS}
    for source, target in PAIRS:
        around[source].append(target)
        around[target].append(source)
    labels = {vertex: vertex for vertex in around}
    for _ in range(rounds):
        heard = {vertex: [labels[other] for other in others] for vertex, others in around.items()}
        labels = {
            vertex: min(own, key=lambda label, own=own: (-own.count(label), label)) for vertex, own in heard.items()
        }
    return labels


RESULTS: dict[str, tuple[Flow, str, Any]] = {
    "components": (flow_of(Lowest, undirected=True), "lowest", lowest_by_hand(directed=False)),
    "reached": (flow_of(Lowest), "lowest", lowest_by_hand(directed=True)),
    "shortest": (flow_of(Shortest, weight="weight"), "lowest", shortest_by_hand()),
    "best": (flow_of(Best, undirected=True), "lowest", lowest_by_hand(directed=False)),
    "best way": (flow_of(BestWay, weight="weight"), "lowest", shortest_by_hand()),
    "free-running best": (flow_of(Best, undirected=True, free_running=True), "lowest", lowest_by_hand(directed=False)),
    "free-running best way": (flow_of(BestWay, weight="weight", free_running=True), "lowest", shortest_by_hand()),
    "ranks": (flow_of(Rank, rounds=4), "rank", ranks_by_hand(None, 4)),
    "ranks that rest": (flow_of(Rank, until=lambda change: change < 2.0), "rank", ranks_by_hand(2.0, None)),
    "labels": (flow_of(Labels, rounds=5, undirected=True), "label", labels_by_hand(5)),
}


KINDS = ("shortest", "free-running best way", "ranks that rest", "labels")
"""A program of each kind; `test_vertices_that_wait_...` has best values in rounds."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "schedules"),
    [
        *((name, 4 if name in KINDS else 0) for name in RESULTS),
        *(pytest.param(name, 12, marks=pytest.mark.long) for name in RESULTS),
    ],
)
def test_a_program_gives_its_result_also_under_crashes_and_other_numbers_of_tasks(name: str, schedules: int):
    flow, value, expected = RESULTS[name]
    result = simulate(flow, seeds=range(schedules), parallelism=(1, 2, 3))
    rows = result.outputs["out"]
    assert {row["vertex"]: row[value] for row in rows} == expected
    assert len(rows) == len(expected)
    if schedules:
        assert result.crashes > schedules / 2
        assert result.restores
        assert result.rescaled


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [5, pytest.param(24, marks=pytest.mark.long)])
def test_vertices_that_wait_for_a_later_round_survive_crashes_and_other_numbers_of_tasks(
    monkeypatch: pytest.MonkeyPatch, schedules: int
):
    """Here nearly all of them wait: a task sends the value of a single vertex, or the best eighth."""
    monkeypatch.setattr(in_rounds, "SENT_MIN", 1)
    monkeypatch.setattr(vertex_edges, "FEW", 1)
    result = simulate(flow_of(BestWay, weight="weight"), seeds=range(schedules), parallelism=(1, 2, 3))
    assert {row["vertex"]: row["lowest"] for row in result.outputs["out"]} == shortest_by_hand()
    assert result.restores > schedules / 4


def messages_of(flow: Flow, rounds: int, edges: Any = EDGES) -> list[list[Columns]]:
    """What the one task of a program sends in each round."""
    tasks = Tasks(flow)
    [program] = {id for id, runtime in tasks.runtimes.items() if "program" in runtime.task.operators}
    runtime = tasks.runtimes[program]
    inputs = {channel.edge.input: channel for channel in runtime.task.inputs}
    ends = sorted({end for edge in edges for end in (edge["source"], edge["target"])})
    runtime.process(inputs["edges"], Batch(edges), 0)
    runtime.process(inputs["messages"], Batch(columns(vertex=ends)), 0)
    found: list[list[Columns]] = []
    for number in range(rounds):
        emitted = [batch for _, batch in runtime.on_round_end((number,), 0)]
        found.append([batch.records for batch in emitted if isinstance(batch.records, Columns)])
        for batch in emitted:
            runtime.process(inputs["messages"], batch, 0)
    return found


def test_the_numbers_of_vertices_travel_once():
    first, *later = messages_of(flow_of(Rank), 3)
    ids = b"".join(first[0].batch.column("ids").to_pylist())
    assert sorted(np.frombuffer(ids, np.int64)) == sorted({edge["target"] for edge in EDGES})
    assert [batch.batch.column("ids").to_pylist() for [batch] in later] == [[b""] * len(first[0])] * 2


def test_a_round_with_few_active_vertices_sends_few_values():
    _, second, *_ = messages_of(flow_of(Shortest, weight="weight"), 3)
    sent = sum(len(values) for values in second[0].batch.column("values").to_pylist()) // 8
    assert 0 < sent < VERTICES // 2
    assert sum(map(len, second[0].batch.column("at").to_pylist())) == sent * 4


OF_ALL_HALF_FEW = pytest.mark.parametrize("share", [1, 2, 25], ids=["all", "half", "few"])


@pytest.mark.parametrize("combine", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", [np.float64, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.02, 0.0])
def test_edges_carry_the_same_whether_all_or_few_vertices_are_active(
    combine: str, kind: Any, weighted: bool, share: float, monkeypatch: pytest.MonkeyPatch
):
    # Some targets have more edges, most have fewer.
    monkeypatch.setattr(vertex_edges, "PIECE_EDGES", 7)
    random = np.random.default_rng(7)
    positions, targets = random.integers(0, 100, 500), random.integers(0, 80, 500)
    weights = random.integers(1, 9, 500).astype(kind)
    sent, active = random.integers(0, 50, 100).astype(kind), random.random(100) < share
    edges = OutEdges(100, positions, targets, weights)
    along = (lambda values, weights: values + weights) if weighted else None
    rows, values = edges.combined(sent, active, combine, along)
    found = dict(zip((edges.rows if rows is None else edges.rows[rows]).tolist(), values.tolist(), strict=True))
    nothing = identity(combine, kind)
    expected: dict[int, Any] = {}
    for source, target, weight in zip(positions, targets.tolist(), weights, strict=True):
        if active[source]:
            carried = sent[source] + (weight if weighted else 0)
            expected[target] = COMBINES[combine](expected.get(target, nothing), carried)
    of_found, of_expected = ({t: value for t, value in each.items() if value != nothing} for each in (found, expected))
    assert of_found == of_expected


class Weighing(VertexProgram):
    """What reaches each vertex from those whose number is a multiple of `share`."""

    combine, message, share = "sum", np.int64, 1

    def start(self, vertices: Vertices) -> Any:
        vertices.active = vertices.ids % self.share == 0
        return {"found": np.zeros(len(vertices), np.int64)}

    def send(self, vertices: Vertices) -> Any:
        return vertices.ids

    def apply(self, vertices: Vertices, received: Any) -> Any:
        return {"found": received}


def weighed(share: int, **attributes: Any) -> Counter[int]:
    """What reaches each target in one round, by target."""
    found: Counter[int] = Counter()

    def apply(self: Any, vertices: Vertices, received: Any) -> Any:
        vertices.active = np.zeros(len(vertices), np.bool_)
        found.update(dict(zip(vertices.ids.tolist(), received.tolist(), strict=True)))
        return vertices.values

    edges = [{"source": n % 50, "target": n % 3 + 50, "weight": n % 150 + 50} for n in range(300)]
    of_class = type("Weighed", (Weighing,), {"share": share, "apply": apply, **attributes})
    messages_of(flow_of(of_class, edges, weight="weight"), 2, edges)
    return Counter({vertex: value for vertex, value in found.items() if vertex >= 50})


def expected_of(share: int, arrived: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    for n in range(300):
        if n % 50 % share == 0:
            found[n % 3 + 50] += int(arrived(n % 150 + 50))
    return found


@OF_ALL_HALF_FEW
@pytest.mark.parametrize("kind", [np.bool_, np.uint8])
def test_what_arrives_is_added_up_as_messages_whatever_type_along_returns(kind: Any, share: int):
    def along(self: Any, sent: Any, weights: Any) -> Any:
        return weights > 90 if kind is np.bool_ else weights.astype(kind)

    arrived = (lambda weight: weight > 90) if kind is np.bool_ else int
    assert weighed(share, along=along) == expected_of(share, arrived)


@OF_ALL_HALF_FEW
@pytest.mark.parametrize("combine", ["sum", "min", "max"])
def test_along_is_called_with_what_is_sent_and_with_nothing_else(combine: str, share: int):
    seen: set[int] = set()

    def along(self: Any, sent: Any, weights: Any) -> Any:
        seen.update(sent.tolist())
        return sent

    weighed(share, along=along, combine=combine)
    assert seen == {n for n in range(50) if n % share == 0}


def test_values_cannot_be_changed_in_place():
    class InPlace(Rank):
        def apply(self, vertices: Vertices, received: Any) -> Any:
            vertices["rank"][:] = received
            return vertices.values

    with pytest.raises(UserFunctionError, match="read-only"):
        messages_of(flow_of(InPlace), 2)


def test_floats_are_rounded_to_messages_of_smaller_floats_and_infinity_stays():
    values = np.array([0.1, np.inf, np.nan])
    found, lost = converted(values, np.dtype(np.float32))
    assert (str(found.tolist()), len(lost)) == (str(values.astype(np.float32).tolist()), 0)


def test_a_sum_of_messages_that_exceeds_their_type_is_refused():
    with pytest.raises(MisuseError, match=r"'program'.*uint8.*message in Weighed"):
        weighed(1, message=np.uint8)
    # What one task sends fits, and what several have sent does not.
    edges = [{"source": n, "target": 50} for n in range(8)]
    of_class = type("Weighed", (Weighing,), {"message": np.int8, "send": lambda self, vertices: vertices.ids * 0 + 20})
    with pytest.raises(MisuseError, match=r"'program'.*int8.*160.*message in Weighed"):
        simulate(flow_of(of_class, edges, rounds=1), seeds=range(4), parallelism=4)


def test_floats_that_are_whole_numbers_become_integers():
    floats = type("Floats", (Lowest,), {"send": lambda self, vertices: vertices["lowest"].astype(np.float64)})
    rows = simulate(flow_of(floats), seeds=[]).outputs["out"]
    assert {row["vertex"]: row["lowest"] for row in rows} == lowest_by_hand(directed=True)


@every("program", [Weighing, Shortest, BestWay])
@every("wrong", [lambda sent: sent[1:], lambda sent: np.append(sent, 1), lambda sent: 1, list, lambda sent: None])
def test_an_along_that_returns_no_array_for_its_edges_is_named(program: Any, wrong: Any):
    of_class = type("Wrong", (program,), {"along": lambda self, sent, weights: wrong(sent)})
    with pytest.raises(MisuseError, match=r"'program': along.*\d+ edges"):
        messages_of(flow_of(of_class, weight="weight"), 3)


def rows_beside(vertices: list[Any], edges: list[Any], program: Any, **options: Any) -> list[Any]:
    """The result of a program on these edges and named vertices."""
    flow = program_beside([{"vertex": vertex} for vertex in vertices], edges, program, **options)
    return simulate(flow, seeds=range(2), parallelism=(1, 2)).outputs["out"]


def test_a_vertex_without_edges_is_there_if_it_is_named():
    rows = rows_beside([7, 2], [{"source": 1, "target": 2}], Lowest)
    assert sorted((row["vertex"], row["lowest"]) for row in rows) == [(1, 1), (2, 1), (7, 7)]


def program_beside(vertices: Any, edges: Any, program: Any = Best, **options: Any) -> Flow:
    flow = Flow("vertices")
    named = flow.read(Items(vertices), name="named")
    pairs = flow.read(Items(edges), name="edges")
    flow.vertex_program(program, pairs, vertices=named, name="program", **options).write(Collect(), name="out")
    return flow


class FromOne(BestWay):
    def start(self, vertices: Vertices) -> Any:
        return {"lowest": np.where(vertices.ids == 1, 0.0, np.inf)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + (weights if weights.ndim == 1 else weights.sum(axis=1))


RECORDS: dict[str, list[dict[str, Any]]] = {
    "numbers of several types": [
        {"source": np.int64(1), "target": 2, "weight": 4},
        {"source": np.int64(2), "target": 3, "weight": 2.5},
    ],
    "arrays": [
        {"source": 1, "target": 2, "weight": np.array([1.0, 3.0])},
        {"source": 2, "target": 3, "weight": np.array([2.0, 0.5])},
    ],
    "what no column holds beside them": [
        {"source": 1, "target": 2, "weight": 4.0, "tags": {1, 2}},
        {"source": 2, "target": 3, "weight": 2.5, "tags": (1, "a")},
    ],
}


@every("edges", RECORDS.values())
@every("options", [{}, {"free_running": True}])
def test_edges_may_be_records(edges: Any, options: dict[str, Any]):
    rows = simulate(flow_of(FromOne, edges, weight="weight", **options), seeds=[]).outputs["out"]
    assert sorted((row["vertex"], row["lowest"]) for row in rows) == [(1, 0.0), (2, 4.0), (3, 6.5)]


def test_edges_without_the_columns_of_others_are_refused():
    edges = [{"source": 1, "target": 2, "km": 1}, {"source": 2, "target": 3}]
    given = lambda: edge_parts("op", edges, ("source", "target", "km"))  # noqa: E731
    refuses(MisuseError, given, "operator 'op'", "different columns", "'km']")


LARGE = 2**60 + 1
WRONG_VERTICES = [7.0, True, None, "x", 2**63, -(2**63) - 1, [1, 2]]


@pytest.mark.parametrize("options", [{}, {"free_running": True}, {"undirected": True}])
def test_vertices_of_another_integer_type_keep_their_numbers(options: dict[str, Any]):
    named = arrow().table({"vertex": arrow().array([9, LARGE + 2], arrow().uint64())})
    edges = arrow().table(
        {"source": arrow().array([LARGE], arrow().uint64()), "target": arrow().array([LARGE + 1], arrow().int64())}
    )
    rows = simulate(program_beside(named, edges, **options), seeds=range(2)).outputs["out"]
    assert sorted((row["vertex"], row["lowest"]) for row in rows) == [
        (9, 9), (LARGE, LARGE), (LARGE + 1, LARGE), (LARGE + 2, LARGE + 2)
    ]  # fmt: skip


@every("named", [*([wrong] for wrong in WRONG_VERTICES), [3, None], [LARGE, 7.0], [2**63, 7]])
def test_named_vertices_that_are_no_integers_of_64_bits_are_refused(named: list[Any]):
    flow = program_beside([{"vertex": vertex} for vertex in named], EDGES)
    with pytest.raises(MisuseError, match=r"'program_vertices'.*'vertex'.*number"):
        simulate(flow, seeds=[])


@every("wrong", [wrong for wrong in WRONG_VERTICES if wrong is not True])
def test_ends_of_edges_that_are_no_integers_of_64_bits_are_refused(wrong: Any):
    with pytest.raises(MisuseError, match=r"'program.*'target'.*number"):
        simulate(flow_of(Best, [{"source": 1, "target": 2}, {"source": 1, "target": wrong}]), seeds=[])


class Infection(VertexProgram):
    """Vertex 1 is infected for three rounds, and infects its neighbours, which are then infected for three rounds."""

    combine, message = "max", np.int64

    def start(self, vertices: Vertices) -> Any:
        vertices.active = vertices.ids == 1
        return {"left": np.where(vertices.active, 3, 0), "_was": vertices.active}

    def send(self, vertices: Vertices) -> Any:
        return np.ones(len(vertices), np.int64)

    def apply(self, vertices: Vertices, received: Any) -> Any:
        new = (received > 0) & ~vertices["_was"]
        vertices.active = new | (vertices["left"] > 1)
        return {"left": np.where(new, 3, np.maximum(vertices["left"] - 1, 0)), "_was": vertices["_was"] | new}


NEVER_ENDS = {"until": lambda change: False}  # pyright: ignore[reportUnknownLambdaType]


@pytest.mark.parametrize("options", [{}, NEVER_ENDS, {"rounds": 20}, {"rounds": 20, **NEVER_ENDS}])
def test_rounds_last_until_no_vertex_is_active_with_edges_or_without(options: dict[str, Any]):
    flow = flow_of(Infection, [{"source": 1, "target": 2}, {"source": 1, "target": 3}], **options)
    rows = simulate(flow, seeds=range(3), parallelism=(1, 2)).outputs["out"]
    assert sorted((row["vertex"], row["left"]) for row in rows) == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("options", [{}, NEVER_ENDS])
def test_a_graph_without_edges_has_as_many_rounds_as_others(options: dict[str, Any]):
    assert rows_beside([7], [], Rank, rounds=3, **options) == [{"vertex": 7, "rank": 0.15}]


def test_until_is_called_with_the_changes_of_rounds_from_the_first_one_on():
    class Reach(Lowest):
        def apply(self, vertices: Vertices, received: Any) -> Any:
            lowest = np.minimum(received, vertices["lowest"])
            vertices.change = float(np.count_nonzero(lowest == 0))
            return {"lowest": lowest}

    chain = [{"source": n, "target": n + 1} for n in range(9)]
    called: list[float] = []
    flow = flow_of(Reach, chain, until=lambda reached: called.append(reached) or reached >= 4)
    rows = simulate(flow, seeds=[]).outputs["out"]
    assert called == [2.0, 3.0, 4.0]
    assert sorted(row["vertex"] for row in rows if row["lowest"] == 0) == [0, 1, 2, 3]


@pytest.mark.parametrize("free_running", [False, True])
def test_values_with_an_underscore_are_kept_for_the_program_alone(free_running: bool):
    class Helped(Best):
        def start(self, vertices: Vertices) -> Any:
            return {**super().start(vertices), "_helper": vertices.ids}

    rows = simulate(flow_of(Helped, EDGES[:1], free_running=free_running), seeds=[]).outputs["out"]
    assert {frozenset(row) for row in rows} == {frozenset({"vertex", "lowest"})}


class SmallFloats(Lowest):
    message = np.float32


def turned(backwards: Any, *, reverses: bool = True) -> type[VertexProgram]:
    """A program that sends backwards, if this is so."""

    def start(self: Rank, vertices: Vertices) -> Any:
        vertices.backwards = backwards
        return Rank.start(self, vertices)

    return type("Turned", (Rank,), {"start": start, "reverses": reverses})


def test_the_direction_may_be_a_truth_value_of_numpy():
    def ranks(backwards: Any) -> dict[int, float]:
        rows = simulate(flow_of(turned(backwards), rounds=2), seeds=[]).outputs["out"]
        return {row["vertex"]: row["rank"] for row in rows}

    assert ranks(np.True_) == ranks(True) != ranks(np.False_) == ranks(False)


@every(("backwards", "reverses"), [(True, False), (2, True), ("yes", True)])
def test_a_direction_that_a_program_does_not_have_is_refused(backwards: Any, reverses: bool):
    flow = flow_of(turned(backwards, reverses=reverses))
    named = ("'program': start", f"vertices.backwards to {backwards!r}", "reverses = True in Turned")
    refuses(MisuseError, lambda: simulate(flow, seeds=[]), *named)


FAR = 2**53
HOOKS: list[tuple[type[VertexProgram], str, Any, tuple[str, ...]]] = [
    (Best, "start", lambda self, v: {"highest": v.ids}, ("no value 'lowest'",)),
    (Best, "start", lambda self, v: {"lowest": np.ones((len(v), 2))}, ("start as 'lowest' returned",)),
    (Rank, "start", lambda self, v: {"rank": np.ones(3)}, ("start returned",)),
    (Rank, "start", lambda self, v: {1: np.ones(len(v))}, ("start returned {1:", "texts")),
    (Rank, "send", lambda self, v: np.ones(3), ("send returned",)),
    (Rank, "apply", lambda self, v, received: {"rank": np.ones(3)}, ("apply returned",)),
    (Rank, "send", lambda self, v: np.ones((len(v), 2)), ("send returned",)),
    (Lowest, "send", lambda self, v: v.ids.astype(object), ("send returned", "return numbers")),
    (Best, "start", lambda self, v: {"lowest": v.ids + 0.5}, ("start returned", "int64", "set message in Wrong")),
    (Lowest, "send", lambda self, v: v["lowest"] + 0.5, ("send returned", "int64", "set message in Wrong")),
    (Best, "along", lambda self, sent, weights: sent + np.inf, ("along returned", "int64", "set message in Wrong")),
    (Best, "along", lambda self, sent, weights: sent.astype(np.uint64) + (1 << 63), ("along returned", "int64")),
    (BestWay, "start", lambda self, v: {"lowest": v.ids + FAR}, ("start returned", "float", "set message in Wrong")),
    (Shortest, "send", lambda self, v: v.ids + FAR, ("send returned", "float", "set message in Wrong")),
    (Shortest, "along", lambda self, sent, weights: np.full(len(sent), 2**63 - 1), ("along returned", "float")),
    (Rank, "start", lambda self, v: setattr(v, "active", v.ids) or Rank.start(self, v), ("vertices.active",)),
    (Rank, "start", lambda self, v: setattr(v, "active", np.ones((len(v), 2), bool)) or {"rank": v.ids}, ("active",)),
    (Rank, "apply", lambda self, v, _: setattr(v, "change", np.ones(len(v))) or v.values, ("change", "one number")),
    (Rank, "apply", lambda self, v, _: setattr(v, "change", "1") or v.values, ("vertices.change", "one number")),
    (SmallFloats, "send", lambda self, v: v.ids + 2**24, ("send returned", "float", "set message in Wrong")),
    (SmallFloats, "send", lambda self, v: v.ids * 1e300, ("send returned", "float", "set message in Wrong")),
]


@every(("base", "hook", "function", "named"), HOOKS)
def test_what_a_hook_returns_and_cannot_be_used_is_refused_by_its_name(
    base: type[VertexProgram], hook: str, function: Any, named: tuple[str, ...]
):
    flow = flow_of(type("Wrong", (base,), {hook: function}))
    refuses(MisuseError, lambda: messages_of(flow, 3), "'program'", *named)


@every("free_running", [False, True])
def test_a_program_that_cannot_be_made_is_told_as_the_users(free_running: bool):
    def fail(self: Any) -> None:
        raise ValueError("no model")

    flow = flow_of(type("Wrong", (Best,), {"__init__": fail}), free_running=free_running)
    refuses(UserFunctionError, lambda: Tasks(flow), "operator 'program' raised ValueError: no model in __init__")


@pytest.mark.parametrize("hook", ["start", "apply"])
def test_a_value_named_as_the_column_of_the_numbers_is_refused(hook: str):
    wrong = type("Wrong", (Rank,), {hook: lambda *_: {"vertex": np.zeros(2), "rank": np.zeros(2)}})
    flow = flow_of(wrong, EDGES[:1], rounds=2)
    refuses(MisuseError, lambda: simulate(flow, seeds=[]), f"{hook} returned a value named 'vertex'")


@pytest.mark.parametrize(
    ("flow", "named"),
    [
        (flow_of(Best, target="to"), ("no 'to'", "target=")),
        (flow_of(Best, target="to", undirected=True), ("no 'to'", "target=")),
        (flow_of(Shortest, weight="km"), ("no 'km'",)),
        (program_beside([{"id": 3}], EDGES), ("id", "no 'vertex'")),
    ],
)
def test_columns_that_are_missing_are_named(flow: Flow, named: tuple[str, ...]):
    refuses(MisuseError, lambda: simulate(flow, seeds=[]), *named)


def in_an_iteration() -> None:
    flow = Flow("nested")
    edges = flow.read(Items(EDGES), name="edges")
    flow.iterate(edges, lambda stream: flow.vertex_program(Lowest, stream, name="program"), rounds=2)


@every(
    ("make", "error", "named"),
    [
        (lambda: flow_of(type("Wrong", (Best,), {"combine": "sum"})), BadOptionError, "the lowest or the highest"),
        (lambda: flow_of(type("Wrong", (Rank,), {"combine": "mean"})), BadOptionError, "combine"),
        (lambda: flow_of(type("Wrong", (Rank,), {"message": str})), BadOptionError, "message"),
        (lambda: flow_of(type("Wrong", (Rank,), {"message": "number"})), BadOptionError, "message='number'"),
        (lambda: flow_of(Rank, until=3), BadOptionError, "until="),
        (lambda: flow_of(dict), BadOptionError, "VertexProgram"),
        (in_an_iteration, IterationError, "its edges arrive only once"),
    ],
)
def test_a_program_that_cannot_be_is_refused_when_the_flow_is_built(make: Any, error: Any, named: str):
    refuses(error, make, named)
