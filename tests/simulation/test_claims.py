"""A run that takes over a job, while what it takes over from is still about."""

from __future__ import annotations

from backedge.recovery.supervisor import Stage
from tests.simulation.test_late_removals import world_of


def test_a_run_that_claims_the_job_is_not_blamed_for_a_death_before_it():
    """Found by a seed: a task of the earlier run died meanwhile, and the new one was fenced for that."""
    world = world_of()
    assert world.supervisor.stage is Stage.CLAIMING
    world.apply(("notice",))
    assert world.supervisor.stage is Stage.CLAIMING
    assert not world.supervisor.restarts
