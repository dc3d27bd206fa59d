"""Schedules of a job with two pipelines. Each is a world of its own; they share the chain, the store and a supervisor.

The two take turns at random, and faults happen in each. Only the supervisor dies for both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.checker.record import Violation
from backedge.engine.simulation.world.fault_plan import FaultPlan, Outcome
from backedge.engine.simulation.world.schedule import Schedule
from backedge.engine.simulation.world.simulated_store import SimulatedStore
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts
from backedge.graphs.task_errors import TaskError
from backedge.recovery.protocol.orders import AttemptStart, Manifest, Numbered
from backedge.recovery.protocol.pipelines import Pipeline
from proof.generated_flows import Case
from proof.plain.judge import check
from proof.seeded_worlds import STEPS_EXPECTED, STEPS_LIVE, STEPS_SAFE, case_of, world_of

COUNT = 2
TURN_STEPS_MAX = 40
"""So many steps a pipeline may take before it is the other one's turn."""


class Ran(NamedTuple):
    """A pipeline that has run."""

    outcome: Outcome
    world: World
    case: Case


def run_pipelines(seed: int, crashes: int, rule: str | None = None) -> list[Ran]:
    """Run and judge one schedule of two pipelines. `rule` names the rule that is broken in it."""
    ran = _begun(seed, crashes, Parts() if rule is None else BREAKS[rule].parts())
    rng = random.Random(f"turns {seed}")
    going = [(one, schedule.steps()) for one, schedule in ran]
    while going:
        one, steps = turn = rng.choice(going)
        for _ in range(rng.randint(1, TURN_STEPS_MAX)):
            try:
                next(steps)
            except StopIteration:
                going.remove(turn)
                break
            except TaskError as error:
                one.outcome.violations.append(Violation("user code gets the records of the flow", str(error)))
                going.remove(turn)
                break
    for one, _ in ran:
        if not one.outcome.violations:
            one.outcome.violations = check(one.world.record, seed)
    return [one for one, _ in ran]


def _begun(seed: int, crashes: int, parts: Parts) -> list[tuple[Ran, Schedule]]:
    ran: list[tuple[Ran, Schedule]] = []
    for place in range(COUNT):
        own = COUNT * seed + place
        case = case_of(own)
        if ran:
            parts = replace(parts, store=partial(_that_of, ran[0][0].world))
        world = world_of(case, own, parts, Pipeline("ab"[place], place, COUNT), seed)
        plan = FaultPlan(crashes=crashes, rescale_to=case.rescale_to, rescales=2, stops=0, unreadable_chains=1)
        schedule = Schedule(world, own, plan, STEPS_SAFE, STEPS_LIVE, STEPS_EXPECTED)
        ran.append((Ran(schedule.outcome, world, case), schedule))
    worlds = [one.world for one, _ in ran]
    for world in worlds:
        world.siblings = [other for other in worlds if other is not world]
    return ran


def _that_of(world: World, failed: Counter[str]) -> SimulatedStore:
    return world.store


def apart(chain: Sequence[Numbered]) -> int:
    """How often a pipeline was restarted while another one went on: the attempt of that one took a cut after it.

    >>> from msgspec.structs import replace
    >>> from backedge.graphs.ids import Attempt, Epoch
    >>> from backedge.recovery.protocol.messages import Mode
    >>> start = AttemptStart(Attempt(1), None, "us", pipeline="a")
    >>> cut = Manifest(Epoch(2), Attempt(1), Mode.ALIGNED, {}, {}, pipeline="a")
    >>> others = [replace(start, attempt=Attempt(2), pipeline="b"), replace(start, attempt=Attempt(3), pipeline="b")]
    >>> apart([Numbered(number, entry) for number, entry in enumerate([start, *others, cut], 1)]), apart([])
    (1, 0)
    """
    last_cut = {entry.attempt: number for number, entry in chain if isinstance(entry, Manifest)}
    running: dict[str | None, AttemptStart] = {}
    found = 0
    for number, entry in chain:
        if isinstance(entry, AttemptStart):
            before = running.get(entry.pipeline)
            others = [other for name, other in running.items() if name != entry.pipeline]
            is_restart = before is not None and before.claimant == entry.claimant
            found += is_restart and any(last_cut.get(other.attempt, 0) > number for other in others)
            running[entry.pipeline] = entry
    return found
