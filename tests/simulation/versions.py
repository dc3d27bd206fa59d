"""Simulated runs taken over by code with a later version of state, which upgrades the former one or drops it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from backedge import Collect, Flow, Range
from backedge.engine.run.ports import Placed
from backedge.engine.simulation.simulation import Run
from backedge.engine.simulation.telling import ToldWorld
from backedge.engine.simulation.world.placement import Placement
from backedge.engine.simulation.world.schedule import FaultPlan, Schedule
from backedge.engine.simulation.world.simulated_store import SimulatedCut
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.plan import Plan
from backedge.recovery.protocol.requests import Sizes
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.restore.graph_change import change_from, fitted
from backedge.recovery.restore.plan import fitting

TRIPS = 4
Record = tuple[int, int]


def count(trips: int, record: Record) -> tuple[int, Record]:
    return trips + 1, (record[0], trips + 1)


def count_in_a_list(trips: list[Any], record: Record) -> tuple[list[Any], Record]:
    ((trips_before, version),) = trips
    return [(trips_before + 1, version)], (record[0], trips_before + 1)


def in_a_list(trips: Any, version: int) -> list[Any]:
    """An upgrade that shows when it is applied twice: such a value fails."""
    return [(trips, version)]


def flow(grow: Callable[[Any], Any], *, is_alone: bool = False) -> Plan:
    """A loop in which each record goes round until `grow` has counted enough; `is_alone`: in tasks of its own."""
    made = Flow("versions")
    again = made.loop("again")
    numbers = made.read(Range(6), name="numbers").map(lambda number: (number, 0), name="begin")
    grown = grow(numbers.merge(again).key_by(lambda record: record[0]))
    done, rest = (grown.rebalance() if is_alone else grown).split(lambda record: record[1] >= TRIPS, name="enough")
    again.feed(rest)
    done.write(Collect(), name="done")
    return made.plan()


def counted(keyed: Any, **options: Any) -> Any:
    return keyed.stateful_map(count, initial=0, name="grow", **options)


def counted_in_a_list(keyed: Any) -> Any:
    return keyed.stateful_map(count_in_a_list, [(0, 2)], state_version=2, upgrade=in_a_list, name="grow")


class Versions(NamedTuple):
    """The former flow, the later one, and the operators whose state it gives up."""

    former: Plan
    later: Plan
    dropped: frozenset[str] = frozenset()


UPGRADED = Versions(flow(counted), flow(counted_in_a_list))

WITHOUT_UPGRADE = partial(counted, state_version=2)
DROPPED = Versions(flow(counted), flow(WITHOUT_UPGRADE), frozenset({"grow"}))
DROPPED_ALONE = Versions(
    flow(counted, is_alone=True), flow(WITHOUT_UPGRADE, is_alone=True), frozenset({"grow", "enough"})
)


class ChangedWorld(ToldWorld):
    """The first supervisor runs the former code, and every one that takes over the later one."""

    plans = UPGRADED

    def _new_driver(self, deployment: Deployment) -> Any:
        if self.claimants == 1:
            self.plan = self.plans.later
            self.placement = Placement(self.plan, self.options.actors, self.parts.plan_restore)
            deployment = self.placement.deployment(self.options.parallelism)
        return super()._new_driver(deployment)

    def place(self, cut: SimulatedCut | None, sizes: Sizes) -> Placed:
        former, later, dropped = self.plans
        if cut is None or self.plan is former or cut.outline.graph_hash == later.hash:
            return super().place(cut, sizes)
        self.counts["changed_again" if self.counts["changed"] else "changed"] += 1
        outline = fitted(cut.outline, later, change_from(former.hash, describe_plan(former), {}, dropped))
        self.counts["changed_with_logs"] += any(task.logs for task in outline.tasks.values())
        deployment = fitting(outline, self.placement.deployment(self.options.parallelism))
        self.placement.fitted.append(deployment)
        return Placed(deployment, dict(self.placement.plan_restore(outline, deployment)))


def taken_over(seed: int, parts: Parts | None = None, versions: Versions = UPGRADED) -> Run:
    """A run of the former code, not driven yet, which the later code takes over at least once, mostly after a cut."""
    chance = random.Random(seed)
    snapshots = SnapshotOptions(
        interval_ms=20,
        timeout_ms=500,
        failures_tolerated=1000,
        files_max=chance.choice((1, 4)),
        keep=chance.choice((2, 9)),
    )
    restarts = RestartOptions(restarts_max=1000, pause_ms=0)
    options = WorldOptions(chance.choice((1, 2)), snapshots=snapshots, restarts=restarts, seed=seed)
    world = ChangedWorld(versions.former, {}, options, parts or Parts())
    world.plans = versions
    schedule = Schedule(world, seed, replace(FaultPlan(), crashes=6), 1_500, 20_000, 600)
    schedule.faults.left |= {"stop": 1, "kill_coordinator": 2}
    world.story = schedule.outcome.story
    return Run(seed, world, schedule)
