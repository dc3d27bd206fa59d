"""Cycle analysis against the plainest reference there is, on generated graphs; nesting against the nesting program."""

from __future__ import annotations

import random

import pytest

from backedge import Collect, Edge, Flow, Items, Plan, Stream, UnnamedCycleError
from backedge.graphs.checks import check
from backedge.graphs.cycles import find_cycles
from backedge.graphs.digraph import components, cyclic_components, reachable, upstream_first
from backedge.graphs.kinds import Filter, Read
from backedge.graphs.plan import Operator, loops_of_edges, operators_round
from tests.every import every_seed

Graph = dict[int, list[int]]


def random_graph(seed: int) -> Graph:
    rng = random.Random(seed)
    size = rng.randint(1, 7)
    density = rng.choice((0.1, 0.2, 0.35))
    return {a: [b for b in range(size) if rng.random() < density] for a in range(size)}


def paths_from(graph: Graph) -> dict[int, set[int]]:
    """What each vertex leads to in one step or more, by taking steps until nothing is new."""
    found = {vertex: set(following) for vertex, following in graph.items()}
    for _ in graph:
        for vertex in graph:
            for through in list(found[vertex]):
                found[vertex] |= found[through]
    return found


@every_seed(300)
def test_components_are_the_vertices_that_lead_to_each_other(seed: int):
    graph = random_graph(seed)
    leads = paths_from(graph)
    expected = {frozenset({v} | {w for w in graph if w in leads[v] and v in leads[w]}) for v in graph}
    found = components(graph)
    assert {frozenset(members) for members in found} == expected
    assert sorted(vertex for members in found for vertex in members) == sorted(graph)
    place = {vertex: index for index, members in enumerate(found) for vertex in members}
    assert all(place[a] <= place[b] for a in graph for b in graph[a]), "upstream first"
    assert {frozenset(c) for c in cyclic_components(graph)} == {c for c in expected if all(v in leads[v] for v in c)}


@every_seed(100)
def test_what_is_reachable_is_what_paths_lead_to(seed: int):
    graph = random_graph(seed)
    leads = paths_from(graph)
    assert all(reachable([vertex], graph) == {vertex} | leads[vertex] for vertex in graph)
    without = paths_from({v: [w for w in following if w != 1] for v, following in graph.items() if v != 1})
    assert reachable([0], graph, without=[1]) == {0} | without[0]


@every_seed(100)
def test_acyclic_graph_is_ordered(seed: int):
    graph = {a: [b for b in following if b > a] for a, following in random_graph(seed).items()}
    turned = {vertex: graph[vertex] for vertex in reversed(graph)}
    for order in (upstream_first(graph), upstream_first(turned)):
        assert sorted(order) == sorted(graph)
        assert all(order.index(a) < order.index(b) for a in graph for b in graph[a])


@pytest.mark.slow
def test_a_long_chain_is_no_deeper_than_a_short_one():
    size = 20_000
    circle = {vertex: [(vertex + 1) % size] for vertex in range(size)}
    assert len(components(circle)) == 1
    assert len(components({vertex: [vertex + 1] if vertex + 1 < size else [] for vertex in range(size)})) == size


@every_seed(150)
def test_a_cycle_without_a_back_edge_is_refused(seed: int):
    graph = random_graph(seed)
    operators = {"source": Operator("source", Read(Items([])), inputs=())}
    operators |= {f"v{vertex}": Operator(f"v{vertex}", Filter(bool)) for vertex in graph}
    ends = [("source", "v0"), *((f"v{a}", f"v{b}") for a, following in graph.items() for b in following)]
    edges = tuple(Edge(f"{a}>{b}", a, "out", b, "in") for a, b in ends)
    plan = Plan("generated", operators, edges, "")
    if any(vertex in leads for vertex, leads in paths_from(graph).items()):
        with pytest.raises(UnnamedCycleError, match="back edge"):
            check(plan)
    else:
        assert check(plan).loops == ()


def test_iterations_nest_as_they_are_written():
    for seed in range(40):
        rng = random.Random(seed)
        flow, expected = Flow("nests"), dict[str, tuple[str, ...]]()
        add_iterations(rng, flow, flow.read(Items([1]), name="start"), (), expected).write(Collect(), name="end")
        paths = find_cycles(flow.plan()).paths
        assert dict(paths) == expected | {"start": (), "end": ()}


def add_iterations(
    rng: random.Random, flow: Flow, stream: Stream[int], path: tuple[str, ...], expected: dict[str, tuple[str, ...]]
) -> Stream[int]:
    """A few operators and iterations one behind the other, some with others inside; `expected` is told their paths."""
    for _ in range(rng.randint(1, 3)):
        name = f"operator-{len(expected)}"
        if len(path) == 3 or rng.random() < 0.5:
            expected[name] = path
            stream = stream.map(abs, name=name)
        else:
            inside = expected[name] = (*path, name)
            body = lambda s, inside=inside: add_iterations(rng, flow, s, inside, expected)  # noqa: E731
            stream = flow.iterate(stream, body, rounds=2, name=name)
    return stream


def test_what_leaves_a_body_is_outside_and_its_edge_is_too():
    flow = Flow("leaves")

    def body(stream: Stream[int]) -> Stream[int]:
        stream.map(abs, name="watch").write(Collect(), name="watched")
        return stream.map(abs, name="step")

    flow.iterate(flow.read(Items([1]), name="start"), body, rounds=2, name="rounds").write(Collect(), name="end")
    plan = flow.plan()
    cycles = find_cycles(plan)
    assert {name for name, path in cycles.paths.items() if path} == {"rounds", "step"}
    assert {edge.name: cycles.depth(edge) for edge in plan.edges} == {
        "start.out->rounds.start": 0,
        "rounds.body->watch.in": 0,
        "watch.out->watched.in": 0,
        "rounds.body->step.in": 1,
        "step.out->rounds.returned": 1,
        "rounds.result->end.in": 0,
    }


def test_a_trip_passes_the_operators_of_the_loop_and_of_those_within_it():
    flow = Flow("nested")
    joined = flow.read(Items([1]), name="joined").map(abs, name="prepared")

    def inner(stream: Stream) -> Stream:
        return stream.map(abs, name="within")

    def outer(stream: Stream) -> Stream:
        return flow.iterate(stream.map(abs, name="before"), inner, rounds=2, name="inner").merge(joined).map(
            abs, name="after"
        )  # fmt: skip

    flow.iterate(flow.read(Items([1]), name="start"), outer, rounds=2, name="outer").write(Collect(), name="kept")
    edges = flow.plan().edges
    assert operators_round("inner", edges) == {"inner", "within"}
    assert operators_round("outer", edges) == {"outer", "before", "inner", "within", "after"}


def two_loops(first: str, second: str) -> dict[str, str]:
    """The loop of each edge, where both loops lead over `middle`, and each has a head of its own in front of it."""
    flow = Flow("two")
    loops = {name: flow.loop(name) for name in (first, second)}
    heads = [
        flow.read(Items([1]), name=f"in-{name}").merge(loop).map(abs, name=f"head-{name}")
        for name, loop in loops.items()
    ]
    left, right = heads[0].merge(heads[1]).map(abs, name="middle").split(bool, name="choose")
    done, again = left.split(bool, name="done")
    loops[first].feed(again.rebalance())
    loops[second].feed(right.rebalance())
    done.write(Collect(), name="end")
    return loops_of_edges(flow.plan().edges)


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_an_edge_that_only_one_of_two_loops_leads_over_is_in_that_one(first: str, second: str):
    found = two_loops(first, second)
    assert found[f"head-{first}.out->middle.in"] == first
    assert found[f"head-{second}.out->middle.in"] == second
    assert found["choose.true->done.in"] == first
    assert found["middle.out->choose.in"] in (first, second)


def test_an_edge_that_a_loop_reaches_over_the_back_edge_of_another_is_in_it():
    flow = Flow("within")
    outer, inner = flow.loop("outer"), flow.loop("inner")
    entry = flow.read(Items([1]), name="start").merge(outer).map(abs, name="enter")
    stays, leaves = inner.map(abs, name="inner head").split(bool, name="part")
    inner.feed(stays.merge(entry).map(abs, name="turn").rebalance())
    done, again = leaves.split(bool, name="leave")
    outer.feed(again.rebalance())
    done.write(Collect(), name="end")
    found = loops_of_edges(flow.plan().edges)
    assert found["enter.out->turn.in"] == found["part.false->leave.in"] == "outer"
    assert found["part.true->turn.in"] == "inner"
