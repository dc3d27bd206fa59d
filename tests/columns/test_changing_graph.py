"""Vertex programs on a graph that changes: differences by version, the same under crashes, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, Flow, Items, IterationError, JsonLines, Vertices, simulate
from backedge.engine.batches.arrow import arrow
from backedge.engine.vertices.incremental import changing_values
from backedge.engine.vertices.incremental.changing_values import ChangingValues
from backedge.graphs.expansion import expand, resized
from backedge.graphs.task_errors import MisuseError
from tests.columns.test_changing_values import PROGRAMS, Change, Edge, by_hand, changed
from tests.columns.test_vertex_programs import Best, BestWay, Rank
from tests.every import every
from tests.graphs.refusals import refuses

Row = dict[str, Any]
VERSIONS = 6


class Way(BestWay):
    def start(self, vertices: Vertices) -> Any:
        return {"lowest": np.where(vertices.ids == 0, 0.0, np.inf)}


def rows_of(version: int, changes: list[Change]) -> list[Row]:
    return [
        {"source": source, "target": target, "km": weight or 0.0, "added": weight is not None, "version": version}
        for source, target, weight in changes
    ]


ONE = rows_of(0, [(1, 2, 1.0)])


def random_changes(seed: int) -> tuple[list[Row], list[tuple[dict[Edge, float], set[int]]]]:
    """Changes of several versions, and the graph and the known vertices of each."""
    random = np.random.default_rng(seed)
    edges: dict[Edge, float] = {}
    known: set[int] = set()
    rows: list[Row] = []
    graphs: list[tuple[dict[Edge, float], set[int]]] = []
    for version in range(VERSIONS):
        changes = changed(edges, random, 20, 40 if version == 0 else 6)
        known |= {end for *ends, weight in changes if weight is not None for end in ends}
        rows += rows_of(version, changes)
        graphs.append((dict(edges), set(known)))
    return rows, graphs


def flow_of(
    program: Any, changes: Any, step: Any = lambda flow, read: read, parallelism: int | None = 1, **options: Any
) -> Flow:
    """A program on a graph whose changes are read and go through a step."""
    flow = Flow("changing")
    tasks = {} if parallelism is None else {"parallelism": parallelism}
    read = step(flow, flow.read(Items(changes), name="read", **tasks))
    flow.changing_graph(program, read, name="program", **options).write(Collect(), name="out")
    return flow


def expected(name: str, graphs: list[tuple[dict[Edge, float], set[int]]]) -> list[Row]:
    """The differences between values that are computed from the beginning for each version."""
    found: list[Row] = []
    before: dict[int, Any] = {}
    for version, (edges, known) in enumerate(graphs):
        values = by_hand(PROGRAMS[name], edges, known)
        found += [
            {"vertex": vertex, "lowest": value, "version": version}
            for vertex, value in values.items()
            if (vertex, value) not in before.items()
        ]
        before = values
    return found


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["version"], row["vertex"]))


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [6, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("program", "name", "options"),
    [(Way, "shortest", {"weight": "km"}), (Best, "components", {})],
    ids=["way", "lowest"],
)
def test_differences_are_exact_under_crashes_and_other_numbers_of_tasks(
    program: Any, name: str, options: Any, monkeypatch: pytest.MonkeyPatch, schedules: int
):
    monkeypatch.setattr(changing_values, "WORK_MAX", changing_values.STEP_WORK)
    go_on, went_on = ChangingValues.go_on, Counter[int]()
    monkeypatch.setattr(
        ChangingValues, "go_on", lambda self, vertices: (went_on.update([len(vertices)]), go_on(self, vertices))[1]
    )
    rows, graphs = random_changes(3)
    result = simulate(flow_of(program, rows, **options), seeds=range(schedules), parallelism=(1, 2, 3))
    assert in_order(result.outputs["out"]) == in_order(expected(name, graphs))
    assert result.crashes > schedules / 3
    assert result.restores > 2
    assert result.rescaled
    # Cuts had messages of tasks to themselves in their logs.
    assert went_on.total() > 100


def emitted(program: Any, rows: list[Row], **options: Any) -> list[tuple[int, int, Any]]:
    outputs = simulate(flow_of(program, rows, **options), seeds=range(2), parallelism=(1, 2)).outputs["out"]
    return sorted((row["version"], row["vertex"], row["lowest"]) for row in outputs)


@pytest.mark.slow
def test_an_undirected_graph_changes_in_both_directions():
    rows = rows_of(0, [(1, 2, 1.0), (3, 2, 1.0)]) + rows_of(4, [(2, 1, None)])
    assert emitted(Best, rows, undirected=True) == [(0, 1, 1), (0, 2, 1), (0, 3, 1), (4, 2, 2), (4, 3, 2)]


def test_within_a_version_the_last_change_of_an_edge_counts():
    rows = rows_of(0, [(1, 2, 1.0), (1, 2, None), (1, 3, None), (1, 3, 1.0)]) + rows_of(1, [(3, 4, 1.0), (3, 4, None)])
    assert emitted(Best, rows) == [(0, 1, 1), (0, 3, 1)]


def test_a_graph_without_changes_has_no_differences():
    assert emitted(Best, []) == []


@pytest.mark.parametrize("column", ["source", "version"])
def test_numbers_beyond_64_bits_with_a_sign_are_refused(column: str):
    row = {name: [value] for name, value in ONE[0].items()} | {column: np.array([2**63], "u8")}
    with pytest.raises(MisuseError, match=rf"'{column}'.*{2**63}"):
        simulate(flow_of(Best, arrow().table(row)), seeds=[])


@pytest.mark.parametrize("column", ["source", "added", "version"])
def test_a_column_that_changes_lack_is_named_with_its_option(column: str):
    row = {name: value for name, value in ONE[0].items() if name != column}
    with pytest.raises(MisuseError, match=rf"no '{column}': name their columns with .*{column}="):
        simulate(flow_of(Best, [row]), seeds=[])


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int8, np.uint16])
def test_weights_may_have_any_type_of_numbers(kind: Any):
    changes = {"source": [0, 1], "target": [1, 2], "added": [True, True], "version": [0, 0]}
    table = arrow().table(changes | {"km": np.array([1, 2], kind)})
    rows = simulate(flow_of(Way, table, weight="km"), seeds=[1]).outputs["out"]
    assert {row["vertex"]: row["lowest"] for row in rows} == {0: 0.0, 1: 1.0, 2: 3.0}


def test_a_step_of_several_tasks_before_the_graph_is_refused_because_changes_would_lose_their_order():
    flow = flow_of(Best, ONE, lambda flow, read: read.map(dict, name="map"))
    with pytest.raises(BadOptionError, match=r"'program_dealer'.*'map'.*2"):
        expand(flow.plan(), 2)
    deployment = expand(flow.plan())
    with pytest.raises(BadOptionError, match=r"'program_changes'.*2"):
        resized(deployment, {**deployment.parallelism, "program_changes": 2})


def test_a_single_process_may_put_changes_in_order_that_several_tasks_have_read():
    class Sorted:
        def on_record(self, ctx: Any, record: Row) -> None:
            ctx.emit(record)

    flow = flow_of(Best, ONE, lambda flow, read: read.process(Sorted, parallelism=1), None)
    assert expand(flow.plan(), 2).parallelism["read"] == 2


def looked_up(flow: Flow, changes: Any) -> Any:
    return changes.map_async(lambda change: change, name="looked up", parallelism=1)


def tried_again(flow: Flow, changes: Any) -> Any:
    again = flow.loop("again", max_rounds=3)
    good, bad = changes.merge(again).split(lambda change: True, name="tried", parallelism=1)
    again.feed(bad)
    return good


def in_rounds(flow: Flow, changes: Any) -> Any:
    return flow.iterate(changes, lambda stream: stream, rounds=2, name="rounds")


def of_two_sources(flow: Flow, changes: Any) -> Any:
    return changes.merge(flow.read(Items(ONE), name="other", parallelism=1))


def of_files_that_arrive(flow: Flow, changes: Any) -> Any:
    return flow.read(JsonLines("in", watch=1), name="files", parallelism=1)


def counted(flow: Flow, changes: Any) -> Any:
    """Keeps values, but sends each record on, so it puts nothing in order."""
    return (
        looked_up(flow, changes)
        .key_by("source")
        .stateful_map(lambda n, row: (n, row), initial=0, parallelism=1, name="n")
    )


@every(
    ("step", "named"),
    [
        (looked_up, "'looked up'"),
        (counted, "'looked up'"),
        (tried_again, "'again'"),
        (in_rounds, "'rounds'"),
        (of_two_sources, "'program_changes'.*'read'.*'other'"),
        (of_files_that_arrive, "source 'files' reads what it finds in any order"),
    ],
)
def test_a_step_behind_which_changes_have_no_order_is_refused(step: Any, named: str):
    with pytest.raises(BadOptionError, match=named):
        expand(flow_of(Best, ONE, step).plan())


def test_a_changing_graph_inside_an_iteration_is_refused():
    flow = Flow("inside")
    changes = flow.read(Items[Any]([]), name="changes")
    with pytest.raises(IterationError, match="versions"):
        flow.iterate(changes, lambda body: flow.changing_graph(Best, body), rounds=2)


def best(**hooks: Any) -> type[Any]:
    return type("Wrong", (Best,), hooks)


def small(self: Any, vertices: Vertices) -> Any:
    return {"lowest": np.where(vertices.ids == 0, 0, 127).astype(np.int8)}


def silent(self: Any, vertices: Vertices) -> Any:
    vertices.active = vertices.ids == 1
    return Best.start(self, vertices)


WRONG_TYPES = {"source": "a", "target": 1.5, "added": 1, "version": 0.5, "km": "far"}


@every(
    ("program", "rows", "named"),
    [
        (Best, rows_of(2, [(1, 2, 1.0)]) + rows_of(1, [(2, 3, 1.0)]), ("version 1", "version 2", "sort")),
        *((Way, [{**ONE[0], column: value}], (f"column '{column}'",)) for column, value in WRONG_TYPES.items()),
        (Way, [{**ONE[0], "km": np.array([1.0, 2.0])}], ("column 'km'", "arrays")),
        (Way, [{"source": 1, "target": 2, "added": True, "version": 0}], ("no 'km'",)),
        (Way, rows_of(0, [(1, 2, 2**53 + 1)]), ("'km'", str(2**53 + 1), "float64")),
        # On a cycle of such edges it would become better for ever.
        (Way, rows_of(0, [(0, 1, 1.0), (1, 2, -1.0), (2, 1, 0.5)]), ("better or undefined",)),
        (Way, rows_of(0, [(0, 1, 1.0), (1, 2, float("nan")), (2, 1, 0.5)]), ("better or undefined",)),
        (
            type("Small", (Way,), {"message": np.int8, "start": small}),
            rows_of(0, [(0, 1, 100.0), (1, 2, 100.0)]),
            ("along", "200.0", "int8"),
        ),
        (best(start=lambda self, v: {"lowest": v.ids, "other": v.ids}), ONE, ("start", "'other'", "'lowest'")),
        (best(start=lambda self, v: {"other": v.ids}), ONE, ("start", "'lowest'")),
        (best(start=silent), ONE, ("vertices.active", "vertex 2")),
    ],
)
def test_changes_and_values_that_cannot_be_used_are_refused(program: Any, rows: list[Row], named: tuple[str, ...]):
    options = {"weight": "km"} if issubclass(program, Way) else {}
    refuses(MisuseError, lambda: emitted(program, rows, **options), *named)


@every(
    ("program", "named"),
    [
        (type("Wrong", (Rank,), {"combine": "min"}), "kept up to date"),
        (best(phases=True), "kept up to date"),
        (best(reverses=True), "kept up to date"),
        (best(best="vertex"), "best='vertex'"),
        (best(best="version"), "best='version'"),
        (best(send=Rank.send), "send of Wrong"),
        (best(apply=Rank.apply), "apply of Wrong"),
        (dict, "changing_graph"),
    ],
)
def test_a_program_that_cannot_run_on_a_changing_graph_is_refused(program: Any, named: str):
    refuses(BadOptionError, lambda: flow_of(program, []), named)
