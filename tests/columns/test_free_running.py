"""Vertex programs without rounds: what travels, when a task starts, and what is refused.

Results under crashes are in `test_vertex_programs.py`, beside those of the same programs in rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, VertexProgram, Vertices
from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns, as_records
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.routing import KEY_GROUPS, key_in_group, tasks_of_keys
from backedge.graphs.task_errors import MisuseError
from backedge.recovery.cut.cut import OperatorState
from tests.columns.given import columns
from tests.columns.test_vertex_programs import EDGES, Best, BestWay, Rank, flow_of, lowest_by_hand, shortest_by_hand
from tests.runtime.tasks import Tasks, encoded

PARTS = ("ids", np.int64), ("values", np.float64)
EPOCH, ATTEMPT = Epoch(1), Attempt(1)

Message = tuple[TaskId, dict[int, float]]
"""The task that sends, and the value for each vertex."""


class ByHand:
    """The tasks of a free-running program, first come, first served. A test may hold what is for one of them."""

    def __init__(self, program: type[VertexProgram], parallelism: int, **options: Any) -> None:
        self.tasks = Tasks(flow_of(program, free_running=True, **options), parallelism)
        self.programs = [self.tasks.home("program", index) for index in range(parallelism)]
        self.waiting: deque[tuple[ChannelId, Batch]] = deque()
        self.messages: list[Message] = []

    def load(self, edges: Any = EDGES) -> None:
        """Give all edges to the first task that passes the graph on, and end all of these tasks."""
        ends = np.unique([edge[end] for edge in edges for end in ("source", "target")])
        passing = [self.tasks.home("program_graph", index) for index in range(len(self.programs))]
        inputs = {channel.edge.input: channel for channel in passing[0].task.inputs}
        self.took(passing[0].process(inputs["edges"], Batch(edges), 0))
        self.took(passing[0].process(inputs["vertices"], Batch(columns(vertex=ends.tolist())), 0))
        for runtime in passing:
            self.took(runtime.end(0))

    def took(self, emitted: Emitted) -> None:
        self.waiting += emitted

    def deliver(self, held: Callable[[ChannelId], bool] = lambda channel: False) -> None:
        """Process everything that waits and is not held."""
        later: list[tuple[ChannelId, Batch]] = []
        while self.waiting:
            channel, batch = self.waiting.popleft()
            if held(channel):
                later.append((channel, batch))
                continue
            described = self.tasks.deployment.channels[channel]
            if described.is_back:
                self.messages.append((channel.sender, sent_in(batch)))
            self.took(self.tasks.runtimes[channel.receiver].process(described, batch, 0))
        self.took(later)

    def run(self, held: Callable[[ChannelId], bool] = lambda channel: False) -> None:
        """Go on until nobody has anything to send; what a task has to send leaves when nothing else waits."""
        self.deliver(held)
        while due := [runtime for runtime in self.programs if runtime.next_timer_ms is not None]:
            for runtime in due:
                self.took(runtime.fire_timers(0))
            self.deliver(held)

    def values(self) -> dict[int, Any]:
        return values_of(self.tasks)


def sent_in(batch: Batch) -> dict[int, float]:
    rows = as_records(batch.records)
    ids, values = (np.frombuffer(b"".join(row[name] for row in rows), kind) for name, kind in PARTS)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def message(vertex: int, value: float) -> Batch:
    parts = {
        name: [np.array([part], kind).tobytes()] for (name, kind), part in zip(PARTS, (vertex, value), strict=True)
    }
    return Batch(columns(vertex=[vertex], **parts))


def values_of(tasks: Tasks) -> dict[int, Any]:
    """The values that are written when the tasks of the program end."""
    for runtime in tasks.runtimes.values():
        if "program" in runtime.task.operators:
            runtime.end(0)
    return {row["vertex"]: row["lowest"] for row in tasks.output("out")}


def send_all(runtime: TaskRuntime) -> None:
    """Let a task that has no other to send to do what is left."""
    while runtime.next_timer_ms is not None:
        assert runtime.fire_timers(0) == []


class OwnNumber(BestWay):
    def start(self, vertices: Vertices) -> Any:
        return {"lowest": vertices.ids.astype(np.float64)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent


class FarBack(OwnNumber):
    """Only the first thousand vertices have a number."""

    none = np.inf

    def start(self, vertices: Vertices) -> Any:
        vertices.active = is_first = vertices.ids < 1_000
        return {"lowest": np.where(is_first, vertices.ids, self.none)}


class FarAhead(FarBack):
    combine, none = "max", -np.inf


def test_values_for_a_tasks_own_vertices_do_not_travel():
    alone, pair = (ByHand(BestWay, parallelism, weight="weight") for parallelism in (1, 2))
    for run in (alone, pair):
        run.load()
        run.run()
    assert alone.messages == []
    assert pair.messages
    for sender, sent in pair.messages:
        assert sender.index not in tasks_of_keys(np.array(list(sent)), 2)


def test_a_task_sends_a_vertex_only_better_values():
    run = ByHand(BestWay, 3, weight="weight")
    run.load()
    run.run()
    best: dict[tuple[TaskId, int], float] = {}
    for sender, sent in run.messages:
        for vertex, value in sent.items():
            assert value < best.get((sender, vertex), np.inf)
            best[sender, vertex] = value
    assert best


@pytest.mark.parametrize(("program", "sign"), [(FarBack, 1), (FarAhead, -1)])
def test_a_task_sends_the_best_values_first(program: type[VertexProgram], sign: int):
    """Where they have few of the edges: those of the higher numbers carry nothing."""
    sent = [sign * np.array(values) for values in sent_from(program, sources=2_000)]
    assert len(sent) > 2
    assert all(earlier.max() < later.min() for earlier, later in pairwise(sent))


def test_a_task_sends_all_values_at_once_where_the_best_ones_have_many_edges():
    assert len(sent_from(FarBack, sources=1_000)) == 1


def sent_from(program: type[VertexProgram], sources: int) -> list[list[float]]:
    """What one of two tasks sends at a time."""
    run = ByHand(program, 2)
    run.load([{"source": source, "target": source + 10_000} for source in range(sources)])
    run.deliver()
    sent: list[list[float]] = []
    while run.programs[0].next_timer_ms is not None:
        sent += [list(sent_in(batch).values()) for _, batch in run.programs[0].fire_timers(0)]
    return sent


def test_what_has_arrived_from_several_tasks_is_sent_on_at_once():
    run = ByHand(OwnNumber, 1)
    run.load([{"source": 5, "target": 6}, {"source": 7, "target": 6}])
    run.run()
    [program] = run.programs
    [channel] = [channel for channel in program.task.inputs if channel.is_back]
    for value in (4, 2, 3):
        assert program.process(channel, message(5, value), 0) == []
    assert program.next_timer_ms == 0
    program.fire_timers(0)
    assert program.next_timer_ms == 0, "the end of the edge has become better"
    program.fire_timers(0)
    assert program.next_timer_ms is None
    assert run.values() == {5: 2, 6: 2, 7: 7}


def is_late(channel: ChannelId) -> bool:
    """Whether a part of the graph of the second task arrives here."""
    return channel.sender.name == "program_graph" and channel.receiver == TaskId("program", 1)


def test_messages_that_come_before_the_graph_is_complete_wait_for_it():
    run = ByHand(BestWay, 2, weight="weight")
    run.load()
    run.run(held=is_late)
    assert {sender.index for sender, _ in run.messages} == {0}
    assert run.programs[1].next_timer_ms is None
    run.run()
    assert run.values() == shortest_by_hand()


def test_groups_of_a_task_that_had_started_and_of_one_that_had_not_are_restored_together():
    run = ByHand(BestWay, 2, weight="weight")
    run.load()
    run.run(held=is_late)
    assert {sender.index for sender, _ in run.messages} == {0}, "one of them has started"
    states = [encoded(runtime.capture(EPOCH, ATTEMPT))["program"] for runtime in run.programs]
    parts = tuple(part for state in states for part in state.keyed)
    alone = Tasks(run.tasks.flow)
    program = alone.home("program")
    program.open({"program": OperatorState(parts)})
    assert program.next_timer_ms is None, "a group is not complete yet"
    graph = next(channel for channel in program.task.inputs if not channel.is_back)
    for channel, batch in run.waiting:
        assert is_late(channel)
        program.process(graph, batch, 0)
    send_all(program)
    assert values_of(alone) == shortest_by_hand()


@pytest.mark.parametrize("is_at_rest", [True, False])
def test_a_restored_task_sends_what_it_had_not_sent(is_at_rest: bool):
    run = ByHand(Best, 1)
    run.load()
    if is_at_rest:
        run.run()
    else:
        run.deliver()
    restored = Tasks(run.tasks.flow)
    program = restored.home("program")
    program.open(encoded(run.programs[0].capture(EPOCH, ATTEMPT)))
    assert program.next_timer_ms == (None if is_at_rest else 0)
    send_all(program)
    assert values_of(restored) == lowest_by_hand(directed=True)


def test_a_group_is_complete_when_all_tasks_of_one_parallelism_have_ended():
    """Those of a former parallelism may have ended in part; then all of the new one end."""
    run = ByHand(Best, 1)
    [program] = run.programs
    graph = next(channel for channel in program.task.inputs if not channel.is_back)
    keys = list(map(key_in_group, range(KEY_GROUPS)))
    program.process(graph, Batch(columns(vertex=[3, 4])), 0)
    for task, of in ((0, 3), (1, 3), (0, 2)):
        ended: Columns = columns(vertex=keys, task=[task] * KEY_GROUPS, of=[of] * KEY_GROUPS)
        program.process(graph, Batch(ended), 0)
        assert program.next_timer_ms is None
    program.process(graph, Batch(columns(vertex=keys, task=[1] * KEY_GROUPS, of=[2] * KEY_GROUPS)), 0)
    assert program.next_timer_ms == 0


@pytest.mark.parametrize("wrong", [{}, {"best": "lowest", "phases": True}, {"best": "lowest", "reverses": True}])
def test_a_program_that_needs_rounds_is_refused(wrong: dict[str, Any]):
    with pytest.raises(BadOptionError, match="free_running=True"):
        flow_of(type("Wrong", (Rank,), {"combine": "min", **wrong}), free_running=True)


@pytest.mark.parametrize("wrong", [{"rounds": 3}, {"until": bool}])
def test_an_end_of_the_rounds_is_refused_where_there_are_none(wrong: dict[str, Any]):
    with pytest.raises(BadOptionError, match="no rounds to count"):
        flow_of(Best, free_running=True, **wrong)


def test_edges_without_a_named_column_are_refused():
    with pytest.raises(MisuseError, match=r"'program'.*'km'"):
        ByHand(BestWay, 1, weight="km").load()
