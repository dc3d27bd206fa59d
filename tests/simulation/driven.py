"""Worlds of generated flows, driven in an order that a seed picks."""

from __future__ import annotations

import random

from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from proof.generated_flows import generate

STEPS_MAX = 20_000


def world_of(
    topology: str = "chain",
    parallelism: int = 1,
    *,
    parts: Parts | None = None,
    interval_ms: int = 10,
    keep: int = 2,
    seed: int = 7,
) -> World:
    """A flow of this topology, small batches, a cut every few steps."""
    case = generate(random.Random(seed), topology)
    snapshots = SnapshotOptions(interval_ms=interval_ms, timeout_ms=10**9, keep=keep)
    options = WorldOptions(parallelism, snapshots=snapshots, records_max=1)
    return World(case.plan, case.inputs, options, parts or Parts())


def go_on(world: World, steps: int = STEPS_MAX, *, cuts: int | None = None, without: tuple[str, ...] = ()) -> None:
    """Let so many things happen; less if there are so many cuts or the run is over."""
    chance = random.Random(5)
    for _ in range(steps):
        if world.is_over or (cuts is not None and len(world.record.cuts) >= cuts):
            return
        events = [event for event in world.enabled() if event[0] not in without]
        world.apply(("tick",) if not events or chance.random() < 0.1 else chance.choice(events))
    if steps == STEPS_MAX:
        raise AssertionError("the run does not end")
