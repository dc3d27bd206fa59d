"""Runs that go back and replace output, and one that claims a job late.

Each is a fault that schedules draw, which test_seeds.py counts; here one of each kind is put together by hand.
"""

from __future__ import annotations

import pytest

from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.simulation.world.world import World
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.protocol.supervisor import Stage
from proof.plain.judge import check
from tests.simulation.driven import go_on, world_of


def violations(world: World) -> list[str]:
    return [violation.statement for violation in check(world.record)]


def starts(world: World) -> list[Epoch | None]:
    return [entry.restored for _, entry in world.store.history if isinstance(entry, AttemptStart)]


def after_three_cuts() -> tuple[World, Epoch]:
    """A run that has three cuts and goes on, and the first of them."""
    world = world_of(keep=3, seed=6)
    go_on(world, cuts=3)
    assert not world.is_over
    return world, world.supervisor.chain.cuts[0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_replaces_output_leaves_each_record_once(fails: bool):
    world, older = after_three_cuts()
    published = len(world.services.store.committed)
    world.apply(("replace", older, fails))
    for _ in range(2 if fails else 1):
        while world.pending is None:
            world.apply(("tick",))
        world.apply(("append",))
    assert published and world.record.replaced and starts(world)[1:] == [older] * (2 if fails else 1)
    assert world.counts["replacing_failed"] == fails
    go_on(world)
    assert world.is_finished and violations(world) == []
    output = [repr(record) for _, records in world.record.committed.values() for record in records]
    assert len(output) == len(set(output)), "nothing is there twice"


def test_output_that_no_attempt_can_remove_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    world, older = after_three_cuts()

    def refuse(*_: object) -> int:
        raise OutputError("a record is damaged")

    monkeypatch.setattr(world.services.store, "replace", refuse)
    world.apply(("replace", older, False))
    world.apply(("append",))
    assert "a record is damaged" in world.why_ended and starts(world)[1:] == [older]


def test_a_run_that_claims_the_job_is_not_blamed_for_a_death_before_it():
    """Found by a seed: a task of the earlier run died meanwhile, and the new one was fenced for that."""
    world = world_of(keep=3)
    assert world.supervisor.stage is Stage.CLAIMING
    world.apply(("notice",))
    assert world.supervisor.stage is Stage.CLAIMING
    assert not world.supervisor.restarts.count
