"""Two sources, two counters, two printers: every counter counts what both sources say, every printer prints its counts.

On many seeded schedules, with crashes in each.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.simulation.record import Started
from backedge.engine.simulation.world import World
from backedge.engine.simulation.world_options import Parts, WorldOptions
from backedge.recovery.coordinator import SnapshotOptions
from backedge.recovery.cut import Cut, TaskSnapshot
from backedge.recovery.messages import Mode
from backedge.recovery.requests import Request, RequestKind

LINES = 12
CRASHES = 3
STEPS_MAX = 20_000
SOURCES = ("north", "south")


class Count:
    """Says after every line how many it has counted."""

    def __init__(self) -> None:
        self.lines = 0

    def on_record(self, ctx: Any, line: str) -> None:
        self.lines += 1
        ctx.emit((ctx.task_index, self.lines))

    def capture(self) -> int:
        return self.lines

    def restore(self, state: int) -> None:
        self.lines = state


def counter_of(said: tuple[int, int]) -> int:
    return said[0]


def counting_flow() -> Flow:
    flow = Flow("counters")
    north, south = (flow.read(Items([]), name=name, parallelism=1) for name in SOURCES)
    counts = north.merge(south).broadcast().process(Count, name="count", parallelism=2)
    counts.route(counter_of).write(Collect(), name="print", parallelism=2)
    return flow


PLAN = counting_flow().plan()


def run(seed: int, mode: Mode) -> World:
    """A run in which anything may happen next, and three times some task dies."""
    inputs = {name: [f"{name} {number}" for number in range(LINES)] for name in SOURCES}
    snapshots = SnapshotOptions(mode, interval_ms=10, timeout_ms=300, open_epochs_max=2)
    world = World(PLAN, inputs, WorldOptions(2, snapshots=snapshots, records_max=1, seed=seed), Parts())
    rng = random.Random(seed)
    crashes = set(rng.sample(range(600), CRASHES))
    for step in range(STEPS_MAX):
        if world.is_over:
            return world
        if step in crashes:
            world.apply(("crash", (rng.choice(sorted(world.deployment.tasks)),)))
            world.apply(("notice",))
        events = world.enabled()
        world.apply(rng.choice(events) if events and rng.random() < 0.9 else ("tick",))
    raise AssertionError(f"seed {seed}: not finished after {STEPS_MAX} steps")


def whole(snapshot: TaskSnapshot) -> dict[str, Any]:
    state = next(iter(snapshot.operators.values())).whole
    return {} if state is None else pickle.loads(state)


def counts_in(cut: Cut) -> list[int]:
    """What each counter has counted, in this cut: its state, and the lines that are logged on their way to it."""
    found: list[int] = []
    for task, snapshot in cut.snapshots.items():
        if task.name == "count":
            logged = sum(len(pickle.loads(entry.payload)[0]) for r in snapshot.inputs for entry in r.log)
            found.append(whole(snapshot).get("own", 0) + logged)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.UNALIGNED])
def test_after_any_crash_both_counts_agree_and_what_is_printed_only_grows(mode: Mode):
    restored = 0
    for seed in range(40):
        world = run(seed, mode)
        assert world.is_finished, f"seed {seed}"
        restored += sum(isinstance(event, Started) and event.restored is not None for event in world.record.trace)
        for epoch, cut in world.record.cuts.items():
            one, other = counts_in(cut)
            assert one == other, f"seed {seed}, epoch {epoch}"
        printed = world.services.store.output("print")
        for counter in (0, 1):
            said = [count for index, count in printed if index == counter]
            assert said == list(range(1, 2 * LINES + 1)), f"seed {seed}, counter {counter}"
    assert restored > 40


def test_a_savepoint_is_kept_whatever_attempts_and_cuts_follow():
    inputs = {name: [f"{name} {number}" for number in range(40)] for name in SOURCES}
    snapshots = SnapshotOptions(interval_ms=10, timeout_ms=300, keep=1)
    world = World(PLAN, inputs, WorldOptions(2, snapshots=snapshots, records_max=1), Parts())
    rng = random.Random(1)
    is_crashed = False
    savepoint = 0
    while not world.is_over:
        if not savepoint and world.coordinator is not None:
            savepoint = world.coordinator.next_epoch
            world.ask(Request("mine", RequestKind.SAVEPOINT, "mine", Mode.ALIGNED))
        if savepoint in world.record.cuts and not is_crashed:
            is_crashed = True
            world.apply(("crash", (rng.choice(sorted(world.deployment.tasks)),)))
            world.apply(("notice",))
        events = world.enabled()
        world.apply(rng.choice(events) if events and rng.random() < 0.9 else ("tick",))
    assert is_crashed and len(world.record.cuts) > 3
    manifest = world.store.manifest(savepoint)
    assert manifest.savepoint == "mine"
    assert counts_in(world.store.cut(manifest)) == counts_in(world.record.cuts[savepoint])
