"""What tasks have written for a cut that was given up is not remembered: a run may give up cuts for weeks."""

from __future__ import annotations

import random

from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.recovery.protocol.effects import Acknowledge, Decline, Report
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from proof.generated_flows import generate

REPORT = Report({}, frozenset(), False, ())


def test_files_of_a_cut_that_was_given_up_are_forgotten_and_later_ones_ignored():
    case = generate(random.Random(7), "chain")
    world = World(case.plan, case.inputs, WorldOptions(1, snapshots=SnapshotOptions(interval_ms=20)), Parts())
    driver, drawn = world.driver, random.Random(5)
    while driver.coordinator is None or not driver.coordinator.open:
        world.apply(drawn.choice([*world.enabled(), ("tick",)]))
    attempt, (epoch, *_) = driver.coordinator.attempt, driver.coordinator.open
    first, second, *_ = driver.deployment.tasks
    driver.on_report(first, attempt, Acknowledge(epoch, REPORT), files="what was written")
    assert driver.files == {(first, epoch): "what was written"}
    driver.on_report(second, attempt, Decline(epoch, "its disk is full"))
    assert driver.files == {}
    driver.on_report(first, attempt, Acknowledge(epoch, REPORT), files="what was written")
    assert driver.files == {}
