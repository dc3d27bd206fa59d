"""A rescale where one of two tasks that load the graph of a free-running program has ended, and the other has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.world.world import Happening, World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from proof.column_flows import on_columns, on_records
from proof.plain.interpreter import Result, reference
from proof.plain.plain_output import check_output
from tests.simulation.driven import STEPS_MAX

TOPOLOGY = "columns_free_vertices"
ENDED, OTHER = TaskId("vertex_graph", 0), TaskId("vertex_graph", 1)
EDGES: list[dict[str, Any]] = [{"id": number, "key": 0, "left": 1} for number in range(6)]
"""Three edges for each of two tasks, from vertex 0 to others."""
WIDER = (("edge", 3), ("in", 3), ("vertex_ends", 3))
"""The source gets a task more, so that its tasks send to both tasks that pass the graph on."""


def run_until(world: World, is_there: Callable[[], bool], is_held: Callable[[Happening], bool]) -> None:
    """Let everything happen that is not held, one thing after the other."""
    for step in range(STEPS_MAX):
        if is_there():
            return
        events = [event for event in world.enabled() if not is_held(event)]
        world.apply(events[step % len(events)] if events and step % 10 else ("tick",))
    raise AssertionError("the run does not get there")


def rescaled(parts: Parts) -> World:
    """Ask for more tasks when the first task of the graph has ended. What it sends after that arrives last."""
    options = SnapshotOptions(Mode.UNALIGNED, interval_ms=20, timeout_ms=10**9)
    world = World(on_columns(TOPOLOGY).plan(), {"in": EDGES}, WorldOptions(2, snapshots=options, records_max=1), parts)

    def has_ended(task: TaskId) -> bool:
        return task in world.hosts and world.hosts[task].core.ended

    def reads_the_rest(event: Happening) -> bool:
        return event[:2] == ("produce", TaskId("in", 1))

    def is_late(event: Happening) -> bool:
        return event[0] == "receive" and event[1].sender == ENDED

    run_until(world, lambda: has_ended(ENDED), reads_the_rest)
    world.ask(Request("wider", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, WIDER))
    run_until(world, lambda: not world.unanswered, reads_the_rest)
    run_until(world, lambda: has_ended(OTHER) and all(map(is_late, world.enabled())), is_late)
    run_until(world, lambda: world.is_over, lambda event: False)
    return world


def test_a_rescale_is_refused_where_a_task_would_send_more_that_has_said_that_it_has_ended():
    world = rescaled(Parts())
    assert world.counts["refusals"] == 1
    expected = Result(reference(on_records(TOPOLOGY), world.record.inputs).sinks)
    assert world.is_finished and [*check_protocol(world.record), *check_output(world.record, expected)] == []


def test_otherwise_edges_arrive_at_a_graph_that_was_taken_for_complete():
    with pytest.raises(ChannelIntegrityError, match="'vertex' has received a part of its graph behind the end of it"):
        rescaled(BREAKS["ends-twice"].parts())
