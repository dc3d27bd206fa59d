"""Values on a graph that changes: the same as those of a computation from the beginning, and what a change costs.

The tasks of these tests are pure cores. What they tell each other is delivered in any order, one message at a time, and
each phase is over when nothing is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from backedge.engine.vertices.adjacency import Links
from backedge.engine.vertices.edges import Array
from backedge.engine.vertices.incremental import changing_values
from backedge.engine.vertices.incremental.changing_values import STEP_WORK, ChangingValues, Told
from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups, tasks_of_keys
from tests.every import every

Edge = tuple[int, int]
Change = tuple[int, int, float | None]
"""Source, target and weight; no weight if the edge is removed."""


@dataclass(frozen=True)
class Program:
    combine: str
    message: Any
    first: Callable[[Array], Array]
    along: Callable[[Array, Any], Array] | None = None

    @property
    def is_better(self) -> Any:
        return np.less if self.combine == "min" else np.greater


def far(ids: Array) -> Array:
    return np.where(ids == 0, 0.0, np.inf)


PROGRAMS = {
    "components": Program("min", np.int64, lambda ids: ids),
    "highest": Program("max", np.int64, lambda ids: ids),
    "reached": Program("max", np.int8, lambda ids: np.where(ids == 0, 1, -128)),
    "shortest": Program("min", np.float64, far, lambda sent, weights: sent + weights),
    "widest": Program("max", np.float64, lambda ids: -far(ids) + np.where(ids == 0, 9.0, 0), np.minimum),
    "rounded": Program("min", np.float64, far, lambda sent, weights: (sent + weights) // 4 * 4),
}


class Tasks:
    """The tasks of a program. `touched` counts the links that they look at, `told` the edges in messages."""

    def __init__(self, program: Program, parallelism: int = 1, seed: int = 0) -> None:
        self.program, self.parallelism = program, parallelism
        self.random = np.random.default_rng(seed)
        self.tasks = [self.task(index) for index in range(parallelism)]
        self.values: dict[int, Any] = {}
        self.differences: list[tuple[int, Any]] = []
        self.told = 0

    def task(self, index: int) -> ChangingValues:
        program, groups = self.program, groups_of_task(index, self.parallelism)
        message = np.dtype(program.message)
        return ChangingValues(
            program.combine,
            message,
            lambda ids: program.first(ids).astype(message),
            program.along,
            groups,
            is_weighted=True,
        )

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes, of different edges, and collect the differences."""
        changes = list(changes)
        sources, targets = (np.array([change[end] for change in changes], np.int64) for end in (0, 1))
        added = np.array([change[2] is not None for change in changes], np.bool_)
        weights = np.array([change[2] or 0.0 for change in changes])
        owners = tasks_of_keys(sources, self.parallelism)
        given = [
            (task, np.flatnonzero(owners == index)) for index, task in enumerate(self.tasks) if (owners == index).any()
        ]
        self.deliver(
            [task.change(sources[rows], targets[rows], weights[rows], added[rows]) for task, rows in given],
            lambda task, told: task.give_up(told.sources, told.targets),
        )
        # A task may be told something before it takes what is left for its own vertices.
        self.deliver([], lambda task, told: task.tell(told), [task.find_again for task in self.tasks])
        self.differences = []
        for task in self.tasks:
            ids, values = task.differences()
            self.differences += zip(ids.tolist(), values.tolist(), strict=True)
            task.tidy()
        self.values.update(self.differences)

    def deliver(
        self,
        sent: list[Told],
        receive: Callable[[ChangingValues, Told], Told],
        calls: Iterable[Callable[[], Told]] = (),
    ) -> None:
        waiting: list[Callable[[], Told]] = list(calls)
        for told in sent:
            waiting += self.messages(told, receive)
        while waiting:
            call = waiting.pop(int(self.random.integers(len(waiting))))
            waiting += self.messages(call(), receive)
            for task in self.tasks:
                if len(task.left):
                    waiting.append(partial(task.go_on, task.left))
                    task.left = task.left[:0]

    def messages(self, told: Told, receive: Callable[[ChangingValues, Told], Told]) -> list[Callable[[], Told]]:
        found: list[Callable[[], Told]] = []
        self.told += len(told.targets)
        owners = tasks_of_keys(told.targets, self.parallelism)
        for index in np.unique(owners).tolist():
            rows = owners == index
            own = Told(*(column[rows] if len(column) else column for column in told))
            found.append(partial(receive, self.tasks[index], own))
        return found


def by_hand(program: Program, edges: dict[Edge, float], vertices: Iterable[int]) -> dict[int, Any]:
    """All values, computed from the beginning."""
    values = {vertex: program.first(np.array([vertex])).astype(program.message)[0] for vertex in vertices}
    has_changed = True
    while has_changed:
        has_changed = False
        for (source, target), weight in edges.items():
            sent = values[source]
            if not has_value(program, sent):
                continue
            arrived = sent if program.along is None else program.along(np.array([sent]), np.array([weight]))[0]
            if program.is_better(arrived, values[target]):
                values[target], has_changed = arrived, True
    return {vertex: value.item() for vertex, value in values.items()}


def has_value(program: Program, value: Any) -> bool:
    worst = {"min": {"f": np.inf, "i": np.iinfo(np.int64).max}, "max": {"f": -np.inf, "i": -128}}
    return value != worst[program.combine][np.dtype(program.message).kind]


def changed(edges: dict[Edge, float], random: np.random.Generator, vertices: int, count: int) -> list[Change]:
    """Some changes, which are applied to `edges` too. As many edges are removed as added; some get new weights."""
    found: dict[Edge, float | None] = {}
    for _ in range(count):
        if edges and random.random() < 0.5:
            edge = list(edges)[int(random.integers(len(edges)))]
        else:
            edge = int(random.integers(vertices)), int(random.integers(vertices))
        found[edge] = None if edge in edges and random.random() < 0.7 else float(random.integers(1, 6))
    for edge, weight in found.items():
        if weight is None:
            edges.pop(edge, None)
        else:
            edges[edge] = weight
    return [(*edge, weight) for edge, weight in found.items()]


@every("name", ["components", "reached", "shortest", "widest"])
@every("parallelism", [1, 3])
def test_a_cycle_that_is_cut_off_does_not_support_itself(name: str, parallelism: int):
    tasks, program = Tasks(PROGRAMS[name], parallelism), PROGRAMS[name]
    around: dict[Edge, float] = {(number, number % 9 + 1): 0.0 for number in range(1, 10)}
    tasks.apply((*edge, weight) for edge, weight in ({(0, 1): 0.0} | around).items())
    reached = tasks.values[5]
    tasks.apply([(0, 1, None)])
    assert tasks.values == by_hand(program, around, range(10))
    assert tasks.values[5] != reached


def test_an_edge_with_another_weight_counts_as_a_new_one():
    tasks = Tasks(PROGRAMS["shortest"], 2)
    tasks.apply([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 5.0)])
    tasks.apply([(1, 2, 9.0)])
    assert tasks.differences == [(2, 5.0)]
    tasks.apply([(0, 2, 5.0)])
    assert tasks.differences == []


def test_an_edge_that_is_not_there_can_be_removed():
    tasks = Tasks(PROGRAMS["shortest"])
    tasks.apply([(0, 1, 1.0)])
    tasks.apply([(1, 0, None), (7, 8, None)])
    assert tasks.values == {0: 0.0, 1: 1.0}


# -- what a change costs -----------------------------------------------------------------------------------------

SIDE = 224
"""A grid of so many vertices squared has 100,000 edges."""


def grid() -> list[Change]:
    """Edges to the right and downwards, and a path that ends in a leaf."""
    at = np.arange(SIDE * SIDE)
    right, down = at[at % SIDE < SIDE - 1], at[at < SIDE * (SIDE - 1)]
    edges = [(a, a + 1, 1.0) for a in right.tolist()] + [(a, a + SIDE, 1.0) for a in down.tolist()]
    last = SIDE * SIDE - 1
    return [*edges, (last, last + 1, 1.0), (last + 1, last + 2, 1.0)]


class Counted:
    """How many links have been looked at, and how many vertices were sought."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links = 0
        for name in ("of", "find", "add", "remove"):
            monkeypatch.setattr(Links, name, self._counting(getattr(Links, name)))
        monkeypatch.setattr(Links, "all", None)

    def _counting(self, method: Any) -> Any:
        def counted(links: Links, *arguments: Any, **columns: Any) -> Any:
            found = method(links, *arguments, **columns)
            self.links += len(found) if isinstance(found, np.ndarray) else len(arguments[0])
            return found

        return counted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shortest", "reached"])
def test_a_change_costs_what_it_affects(name: str, monkeypatch: pytest.MonkeyPatch):
    edges = grid()
    tasks = Tasks(PROGRAMS[name], 2)
    tasks.apply(edges)
    assert len(edges) > 99_000
    counted = Counted(monkeypatch)
    last = SIDE * SIDE - 1
    for change, affected in [
        ((last + 1, last + 2, None), [last + 2]),
        ((last + 1, last + 2, 1.0), [last + 2]),
        ((last, last + 1, None), [last + 1, last + 2]),
        # There is another way that is as good.
        ((last - 1, last, None), []),
        ((SIDE + 1, 2 * SIDE + 1, None), []),
    ]:
        counted.links, tasks.told = 0, 0
        tasks.apply([change])
        assert sorted(id for id, _ in tasks.differences) == affected
        assert 0 < counted.links < 20
        assert tasks.told < 6


@pytest.mark.slow
def test_what_a_change_costs_does_not_depend_on_the_size_of_the_graph(monkeypatch: pytest.MonkeyPatch):
    """A path of ten vertices at the end of a longer one is cut off."""
    costs: list[int] = []
    counted = Counted(monkeypatch)
    for length in (100, 1_000):
        tasks = Tasks(PROGRAMS["components"])
        tasks.apply((at, at + 1, 0.0) for at in range(length))
        counted.links = 0
        tasks.apply([(length - 10, length - 9, None)])
        assert len(tasks.differences) == 10
        costs.append(counted.links)
    assert costs[0] == costs[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["components", "reached"])
def test_a_long_phase_is_worked_off_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch):
    """Each vertex of a path waits for the one before it, and all are vertices of one task."""
    monkeypatch.setattr(changing_values, "WORK_MAX", 20 * STEP_WORK)
    steps: list[int] = []
    looked_for = Links.of

    def counted(links: Links, owners: Array) -> Array:
        steps[-1] += 1
        return looked_for(links, owners)

    monkeypatch.setattr(Links, "of", counted)
    tasks = Tasks(PROGRAMS[name])
    [task] = tasks.tasks
    for method in ("change", "give_up", "find_again", "tell", "go_on"):
        monkeypatch.setattr(task, method, _noting_its_call(getattr(task, method), steps))
    tasks.apply((at, at + 1, 0.0) for at in range(1_000))
    assert set(tasks.values.values()) == {tasks.values[0]}
    tasks.apply([(0, 1, None)])
    assert len(tasks.differences) == 1_000
    # A step for each vertex at least, when it gives its value up, or when it takes another one.
    assert sum(steps) >= 1_000
    assert max(steps) < 25
    assert len(steps) > 100


def _noting_its_call(method: Callable[..., Told], calls: list[int]) -> Callable[..., Told]:
    def called(*arguments: Any) -> Told:
        calls.append(0)
        return method(*arguments)

    return called


@pytest.mark.slow
def test_edges_that_come_and_go_take_no_room():
    tasks = Tasks(PROGRAMS["components"])
    for number in range(200):
        tasks.apply([(number, vertex, 0.0) for vertex in range(1_000, 1_040)])
        tasks.apply([(number, vertex, None) for vertex in range(1_000, 1_040)])
    [task] = tasks.tasks
    assert len(task._edges["there"]) < 3_000  # pyright: ignore[reportPrivateUsage]
    assert len(task._told["there"]) < 3_000  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
def test_only_groups_that_changed_are_filed():
    tasks = Tasks(PROGRAMS["components"])
    [task] = tasks.tasks
    tasks.apply((at, at + 1, 0.0) for at in range(2_000))
    assert sorted(task.filed()) == list(range(KEY_GROUPS))
    tasks.apply([(1_999, 2_000, None)])
    assert sorted(task.filed()) == sorted(set(key_groups(np.array([1_999, 2_000])).tolist()))
    assert task.filed() == {}
