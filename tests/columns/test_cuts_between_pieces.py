"""Cuts between any two pieces of the work of vertex programs: restored with any parallelism, it ends as if nothing had
happened. A cut holds what has changed since the one before it, and what is on its way."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

from backedge.engine.vertices import adjacency as growing_links
from backedge.engine.vertices import edges as vertex_edges
from backedge.engine.vertices import frontier as spreading_values
from backedge.engine.vertices.edges import Lookup, OutEdges, identity, in_group_order
from backedge.engine.vertices.frontier import SpreadingValues
from backedge.engine.vertices.incremental import changing_values
from backedge.engine.vertices.incremental.changing_graph import Kind
from backedge.engine.vertices.incremental.changing_values import Told
from backedge.graphs.routing import groups_of_task, key_group, key_groups, task_of_group
from tests.columns.test_changing_values import PROGRAMS, Change, Program, Tasks, by_hand, changed

NONE = np.empty(0, np.int64)


class Message(NamedTuple):
    kind: Kind
    group: int
    told: Told


class Interrupted(Tasks):
    """Tasks as the operators drive them: by messages for key groups, with cuts before any message."""

    def __init__(self, program: Program, parallelism: int, seed: int, cut_share: float) -> None:
        super().__init__(program, parallelism, seed)
        self.drawn = random.Random(seed)
        self.cut_share = cut_share
        self.on_the_way: list[Message] = []
        self.kept: dict[int, Any] = {}
        self.touched: set[int] = set()
        self.cuts = self.restores = 0

    def apply(self, changes: Iterable[Change]) -> None:
        sources, targets, weights = zip(*changes, strict=True)
        added = np.array([weight is not None for weight in weights], np.int64)
        given = np.array(sources), np.array(targets), np.array([weight or 0.0 for weight in weights]), added
        self.send(Kind.CHANGE, Told(*given), key_groups(given[0]))
        self.work_off()
        self.differences = []
        for kind in (Kind.FIND, Kind.SHOW):
            groups = np.array(sorted(self.touched), np.int64)
            self.touched = set() if kind is Kind.SHOW else self.touched
            for group in groups.tolist():
                self.on_the_way.append(Message(kind, group, Told(NONE, NONE, NONE, NONE)))
            self.work_off()
        self.values.update(self.differences)

    def send(self, kind: Kind, told: Told, groups: Any) -> None:
        for group in np.unique(groups).tolist():
            at = np.flatnonzero(groups == group)
            of_group = Told(*(column[at] if len(column) else column for column in told))
            self.on_the_way.append(Message(kind, group, of_group))

    def work_off(self) -> None:
        while self.on_the_way:
            if self.drawn.random() < self.cut_share:
                self.cut()
            index = task_of_group(self.drawn.choice(self.on_the_way).group, self.parallelism)
            own = [each for each in self.on_the_way if task_of_group(each.group, self.parallelism) == index]
            taken = self.drawn.sample(own, min(self.drawn.choice([1, 2, 9]), len(own)))
            self.on_the_way = [each for each in self.on_the_way if not any(each is one for one in taken)]
            self.take(index, taken)

    def take(self, index: int, messages: list[Message]) -> None:
        task = self.tasks[index]
        for kind in sorted({message.kind for message in messages}):
            told = Told(*map(np.concatenate, zip(*(m.told for m in messages if m.kind == kind), strict=True)))
            match kind:
                case Kind.SHOW:
                    ids, values = task.differences()
                    self.differences += zip(ids.tolist(), values.tolist(), strict=True)
                    continue
                case Kind.CHANGE:
                    sent = task.change(told.sources, told.targets, told.values, told.levels.astype(np.bool_))
                case Kind.GIVE_UP:
                    sent = task.give_up(told.sources, told.targets)
                case Kind.FIND:
                    sent = task.find_again()
                case Kind.GO_ON:
                    sent = task.go_on(told.targets)
                case Kind.TELL:
                    sent = task.tell(told)
            then = Kind.GIVE_UP if kind in (Kind.CHANGE, Kind.GIVE_UP) else Kind.TELL
            self.send(then, sent, key_groups(sent.targets))
        left, task.left = task.left, NONE
        self.send(Kind.GO_ON, Told(NONE, left, NONE, NONE), key_groups(left))
        task.tidy()
        self.touched |= set(np.flatnonzero(task.touched).tolist())
        task.touched[:] = False

    def cut(self) -> None:
        self.cuts += 1
        for task in self.tasks:
            self.kept |= pickle.loads(pickle.dumps(task.filed()))
        if self.drawn.random() < 0.6:
            self.restores += 1
            self.parallelism = self.drawn.choice([1, 2, 3, 7])
            self.tasks = [self.task(index) for index in range(self.parallelism)]
            for index, task in enumerate(self.tasks):
                own = groups_of_task(index, self.parallelism)
                task.restore({group: self.kept[group] for group in own if group in self.kept})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 20))])
def test_values_on_a_changing_graph_survive_cuts_between_all_pieces(seed: int, monkeypatch: pytest.MonkeyPatch):
    drawn, random_ = random.Random(seed), np.random.default_rng(seed)
    monkeypatch.setattr(changing_values, "WORK_MAX", drawn.choice([1, 1_001, 3_000, 100_000]))
    monkeypatch.setattr(changing_values, "TELLERS_MIN", drawn.choice([1, 2, 128]))
    monkeypatch.setattr(growing_links, "_GONE_MIN", drawn.choice([1, 1_024]))
    program = PROGRAMS[drawn.choice(list(PROGRAMS))]
    tasks = Interrupted(program, drawn.randint(1, 3), seed, drawn.choice([0.3, 1.0]))
    edges: dict[tuple[int, int], float] = {}
    known: set[int] = set()
    vertices = drawn.randint(6, 16)
    for number in range(6):
        before = dict(tasks.values)
        changes = changed(edges, random_, vertices, drawn.randint(1, 3 * vertices if number % 3 == 0 else 4))
        known |= {end for *ends, weight in changes if weight is not None for end in ends}
        tasks.apply(changes)
        expected = by_hand(program, edges, known)
        assert tasks.values == expected
        assert sorted(tasks.differences) == sorted(item for item in expected.items() if item not in before.items())
    assert tasks.cuts > tasks.restores > 0


class Spreading:
    """The tasks of a free-running program with a best value, and what is on its way to vertices."""

    def __init__(self, seed: int) -> None:
        self.drawn = drawn = random.Random(seed)
        self.combine, kind = drawn.choice(["min", "max"]), drawn.choice([np.float64, np.int64, np.int32])
        self.kind = np.dtype(kind)
        self.nothing = identity(self.combine, self.kind)
        self.vertices = range(drawn.randint(1, 30))
        self.first = {
            at: self.kind.type(drawn.randint(0, 9)) if drawn.random() < 0.4 else self.nothing for at in self.vertices
        }
        ends = [(drawn.choice(self.vertices), drawn.choice(self.vertices)) for _ in range(drawn.choice([3, 60, 200]))]
        self.edges = [(*pair, drawn.randint(0, 5)) for pair in ends]
        self.along = drawn.choice([None, self.carried])
        self.on_the_way: list[tuple[int, Any]] = []
        self.cuts = 0
        self.build(drawn.randint(1, 3), None)

    def carried(self, sent: Any, weights: Any) -> Any:
        change = weights if self.combine == "min" else -weights
        return np.where(sent == self.nothing, sent, sent + change.astype(self.kind)).astype(self.kind)

    def build(self, parallelism: int, state: dict[int, tuple[Any, bool]] | None) -> None:
        self.parallelism = parallelism
        self.tasks: list[tuple[Any, SpreadingValues]] = []
        for index in range(parallelism):
            own = [at for at in self.vertices if task_of_group(key_group(at), parallelism) == index]
            ids, _ = in_group_order(np.array(own, np.int64))
            sources, targets, weights = np.array([e for e in self.edges if e[0] in own] or np.empty((0, 3)), np.int64).T
            out = OutEdges(len(ids), Lookup(ids).of(sources), targets, weights.astype(np.float64))
            first = np.array([self.first[at] for at in ids.tolist()], self.kind)
            task = SpreadingValues(out, ids, first.copy(), self.combine, keeps_own=True)
            task.put_on_list(np.flatnonzero(first != self.nothing))
            if state is not None and len(ids):
                values, at_rest = zip(*(state[at] for at in ids.tolist()), strict=True)
                task.receive(np.arange(len(ids)), np.array(values, self.kind))
                task.take_off(np.flatnonzero(at_rest))
            self.tasks.append((ids, task))

    def cut(self) -> None:
        self.cuts += 1
        state: dict[int, tuple[Any, bool]] = {}
        for ids, task in self.tasks:
            rests = np.ones(len(ids), np.bool_)
            rests[task.listed] = False
            state |= dict(zip(ids.tolist(), zip(task.bests.copy(), rests.tolist(), strict=True), strict=True))
            task.forget_sent()
        if self.drawn.random() < 0.6:
            self.build(self.drawn.choice([1, 2, 3, 5]), state)

    def run(self) -> dict[int, Any]:
        self.cut()
        while True:
            if self.drawn.random() < 0.4:
                self.cut()
            busy = [task for _, task in self.tasks if len(task.listed)]
            if busy and (not self.on_the_way or self.drawn.random() < 0.5):
                task = self.drawn.choice(busy)
                near, reached = task.spread(task.bests, task.take_best(self.drawn.choice([1, 3, 64])), self.along)
                task.put_on_list(near)
                self.on_the_way += zip(task.ids[reached].tolist(), task.sent_to(reached).tolist(), strict=True)
            elif self.on_the_way:
                self.receive([self.on_the_way.pop(self.drawn.randrange(len(self.on_the_way)))])
            else:
                return {
                    at: value
                    for ids, task in self.tasks
                    for at, value in zip(ids.tolist(), task.bests.tolist(), strict=True)
                }

    def receive(self, arrived: list[tuple[int, Any]]) -> None:
        for at, value in arrived:
            ids, task = self.tasks[task_of_group(key_group(at), self.parallelism)]
            task.receive(Lookup(ids).of(np.array([at])), np.array([value], self.kind))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 40))])
def test_values_that_spread_survive_cuts_between_all_pieces(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vertex_edges, "FEW", random.Random(seed).choice([1, 8, 1_000]))
    monkeypatch.setattr(spreading_values, "SENT_SHARE", random.Random(seed).choice([2, 8]))
    spreading = Spreading(seed)
    along = None if spreading.along is None else lambda sent, weights: spreading.carried(sent, np.asarray(weights))
    program = Program(
        spreading.combine, spreading.kind, lambda ids: np.array([spreading.first[at] for at in ids]), along
    )
    expected = {at: value.item() for at, value in spreading.first.items()}
    has_changed = True
    while has_changed:
        has_changed = False
        for source, target, weight in spreading.edges:
            sent = np.array([expected[source]], spreading.kind)
            arrived = (sent if program.along is None else program.along(sent, np.array([weight])))[0].item()
            if program.is_better(arrived, expected[target]):
                expected[target], has_changed = arrived, True
    assert spreading.run() == expected
    assert spreading.cuts > 0
