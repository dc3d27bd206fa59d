"""The supervisor dies at every single step of a run, and a successor finishes it."""

from __future__ import annotations

import pytest

from backedge.engine.simulation.world.world import World
from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.protocol.supervisor import Stage
from proof.plain.judge import check
from tests.simulation.driven import STEPS_MAX, go_on, world_of

SLOW_SUCCESSOR = ("append", "read_chain")


def moment(world: World) -> set[str]:
    found = {world.supervisor.stage.value}
    if world.pending is not None and isinstance(world.pending.entry, Manifest):
        found.add("before a manifest")
    if world.coordinator is not None and world.coordinator.open:
        found.add("a cut is open")
    if world.coordinator is not None and world.coordinator.final is not None:
        found.add("at the end")
    last = world.store.history[-1:]
    if last and isinstance(last[0].entry, Manifest) and any(host.orders for host in world.hosts.values()):
        found.add("tasks do not know of the manifest")
    return found


@pytest.mark.slow
def test_a_supervisor_that_dies_at_any_step_is_replaced_and_the_run_ends_once():
    moments: set[str] = set()
    for step in range(STEPS_MAX):
        world = world_of()
        go_on(world, step)
        if world.is_over:
            break
        moments |= moment(world)
        world.apply(("kill_coordinator",))
        assert world.supervisor.stage is Stage.CLAIMING and world.counts["takeovers"] == 1
        go_on(world)
        assert world.is_finished and list(check(world.record)) == [], step
        assert len({run_of(entry.claimant) for _, entry in world.store.history}) == 1
    expected = {stage.value for stage in (Stage.CLAIMING, Stage.RESTORING, Stage.RUNNING)}
    expected |= {"before a manifest", "a cut is open", "at the end", "tasks do not know of the manifest"}
    assert moments >= expected, expected - moments


@pytest.mark.slow
@pytest.mark.parametrize(("wakes_late", "has_lost_tasks"), [(False, False), (True, False), (True, True)])
def test_a_supervisor_that_sleeps_through_a_takeover_harms_nothing(wakes_late: bool, has_lost_tasks: bool):
    """It is taken for dead at every third step, and wakes up before its successor has the job, or much later."""
    fenced = 0
    for step in range(0, STEPS_MAX, 3):
        world = world_of()
        go_on(world, step)
        if world.is_over:
            break
        if not world.store.history:
            continue  # it has not had the job
        world.apply(("stop_coordinator",))
        if wakes_late:
            go_on(world, cuts=len(world.record.cuts) + 1)
        world.apply(("wake_coordinator", has_lost_tasks))
        go_on(world)
        # It still waits for tasks that its successor has replaced, until it learns that they are dead.
        world.apply(("wake_coordinator", True))
        while steps := [event for event in world.enabled() if event[0] in ("woken", "remove")]:
            world.apply(steps[0])
        assert world.is_finished and list(check(world.record)) == [], step
        assert not world.sleepers, step
        fenced += world.counts["woken_and_fenced"]
    assert fenced > 20


def test_a_supervisor_that_was_taken_for_dead_completes_cuts_until_its_successor_claims_the_job():
    world = world_of()
    go_on(world, 20)
    world.apply(("stop_coordinator",))
    world.apply(("wake_coordinator", False))
    go_on(world, cuts=1, without=SLOW_SUCCESSOR)
    (cut,) = world.record.cuts.values()
    go_on(world)
    starts = [entry for _, entry in world.store.history if isinstance(entry, AttemptStart)]
    assert cut.attempt == 1 and [start.restored for start in starts] == [None, cut.epoch]
    assert world.is_finished and list(check(world.record)) == []
