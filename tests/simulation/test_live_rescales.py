"""A living run is rescaled at every single step, and whatever dies meanwhile, it ends with what it should."""

from __future__ import annotations

import random

import pytest

from backedge.engine.simulation.world.world import World
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.supervisor import Stage
from proof.plain.judge import check
from tests.simulation.driven import STEPS_MAX, go_on, world_of

ASKED_AT = 60
STRIDE = 19
"""Processes die at every nineteenth step."""


def rescale(world: World, tasks: int) -> None:
    sizes = tuple(world.placement.deployment(tasks).parallelism.items())
    world.ask(Request(f"to {tasks}", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, sizes))


def widths(world: World) -> list[int]:
    """The most tasks of an operator, in each attempt."""
    return [max(deployment.parallelism.values()) for deployment in world.record.deployments.values()]


def end_well(world: World, *hint: object) -> None:
    """Run to the end, and check every cut, the output and the chain."""
    go_on(world)
    assert world.is_finished and list(check(world.record)) == [], hint
    assert not world.unanswered, hint


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["chain", "self_loop", "rounds"])
def test_a_run_is_rescaled_at_any_step(topology: str):
    """From 2 tasks to 3 and from 3 to 1: the requests may meet, and may come when the run is nearly over."""
    carried_out: set[tuple[int, ...]] = set()
    for step in range(0, STEPS_MAX, 35):
        world = world_of(topology, 2, interval_ms=20)
        go_on(world, step)
        if world.is_over:
            break
        rescale(world, 3)
        go_on(world, 40)
        if not world.is_over:
            rescale(world, 1)
        end_well(world, step)
        assert world.counts["restarts_put_off"] == 0 and len(world.record.deployments) == len(widths(world))
        carried_out.add(tuple(widths(world)))
    assert (2, 3, 1) in carried_out, carried_out


def moment(world: World) -> str:
    last = world.store.history[-1].entry
    if Attempt(2) in world.record.deployments:
        return "after" if world.supervisor.stage is Stage.RUNNING else "while tasks restore"
    if world.supervisor.attempt > 1:
        return "before its claim is in the chain"
    if isinstance(last, Manifest) and last.request is not None:
        return "when its cut is complete"
    return "before its cut"


@pytest.mark.slow
@pytest.mark.parametrize("death", ["task", "supervisor"])
def test_a_process_that_dies_at_any_step_of_a_rescale_loses_nothing(death: str):
    moments: set[str] = set()
    chance, carried_out, step = random.Random(11), 0, 0
    for step in range(0, STEPS_MAX, STRIDE):
        world = world_of("self_loop", 2, interval_ms=20)
        go_on(world, ASKED_AT)
        rescale(world, 3)
        go_on(world, step)
        if world.is_over:
            break
        moments.add(moment(world))
        if death == "supervisor":
            world.apply(("kill_coordinator",))
        elif candidates := sorted({*world.hosts, *world.unrestored}):
            world.apply(("crash", (chance.choice(candidates),)))
            world.apply(("notice",))
        end_well(world, step)
        # Where a death sends the run back, it may end before it has a cut that can be divided.
        assert world.counts["rescales_answered"] + world.counts["refusals"] == 1, step
        carried_out += 3 in widths(world)
        if widths(world)[1:2] == [3]:
            assert set(widths(world)[1:]) == {3}, (step, "and it lasts")
    assert moments >= {"before its cut", "while tasks restore", "after"}, moments
    assert carried_out > 0.9 * step / STRIDE, (carried_out, step)


def test_a_rescale_that_is_given_up_leaves_the_tasks_that_took_its_cut():
    """They are not those that the run began with: a restore has had others before the first cut."""
    world = world_of("chain", 2, interval_ms=20)
    go_on(world, 20)
    world.wanted_parallelism = 3
    world.apply(("crash", tuple(world.hosts)))
    world.apply(("notice",))
    go_on(world, 20)
    rescale(world, 1)
    while world.supervisor.stage is not Stage.RESTORING:
        go_on(world, 1)
    world.apply(("unrestorable",))
    end_well(world)
    assert widths(world) == [2, 3, 1, 3]
