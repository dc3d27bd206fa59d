"""Runs many seeds: each draws a case, a schedule and its faults, runs it, and lets the checker judge it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from engine.driver_ports import FlowLimits
from engine.run_driver import StoreRetries
from engine.simulation.breaks import BREAKS
from engine.simulation.checker import check
from engine.simulation.record import Aborted, Captured, Completed, Record, Started, Violation
from engine.simulation.schedule import FaultPlan, Outcome, Schedule
from engine.simulation.windows import WindowedWorld
from engine.simulation.world import World
from engine.simulation.world_options import Parts, WorldOptions
from engine.state import KeyedState
from engine.task_errors import TaskError
from engine.touched_keys import TouchedKeys
from proof.generated_flows import NAMES, Case, generate
from recovery.coordinator import SnapshotOptions
from recovery.cut import Cut
from recovery.messages import Mode
from recovery.supervisor import RestartOptions

STEPS_SAFE = 3_000
STEPS_LIVE = 20_000
STEPS_EXPECTED = 400
SEEDS_A_CHUNK = 20
RESCALES = 2
"""How often `python -m proof run` may rescale a run while it runs."""
COMPACTING_SHARE = 0.2


@dataclass
class Summary:
    """Counts over many schedules. `failed` holds (seed, steps, what is wrong)."""

    counts: Counter[str] = field(default_factory=Counter[str])
    topologies: Counter[str] = field(default_factory=Counter[str])
    policies: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    happened: Counter[str] = field(default_factory=Counter[str])
    failed: list[tuple[int, int, list[str]]] = field(default_factory=list[tuple[int, int, list[str]]])

    def add(self, other: Summary) -> None:
        """Add the counts of another process."""
        self.counts += other.counts
        self.topologies += other.topologies
        self.policies += other.policies
        self.faults += other.faults
        self.happened += other.happened
        self.failed += other.failed

    def as_json(self) -> dict[str, Any]:
        """The figures, for a line of JSON."""
        keys = ("schedules", "cuts", "cuts_with_log", "cyclic_cuts", "cyclic_cuts_with_log", "restores")
        more = ("restores_with_log", "overlapping", "rescaled", "cuts_between_rounds")
        return {
            **{key: self.counts[key] for key in (*keys, *more)},
            "rescaled_live": self.happened["rescaled_live"],
            "topologies": dict(sorted(self.topologies.items())),
            "policies": dict(sorted(self.policies.items())),
            "faults": dict(sorted(self.faults.items())),
            "happened": dict(sorted(self.happened.items())),
            "violations": len(self.failed),
        }


class _FewTracked(TouchedKeys):
    tracked_min = 1
    share = 2


class FewTracked(KeyedState):
    """A state that soon has too many touched keys for a delta: it writes everything again."""

    touched_class = _FewTracked


def case_of(seed: int, topology: str | None = None) -> Case:
    """The case of a seed. Without a given topology they take turns, so that each occurs."""
    topology = topology or NAMES[seed % len(NAMES)]
    if not compacts(seed):
        return generate(random.Random(seed), topology)
    # With few tasks, many cuts complete.
    return replace(generate(random.Random(seed), topology, long=True), parallelism=1)


def compacts(seed: int) -> bool:
    """Whether the schedule of a seed is about compactions: cuts come often, and lists of files are short."""
    return random.Random(f"compacts {seed}").random() < COMPACTING_SHARE


def world_of(case: Case, seed: int, parts: Parts) -> World:
    """The world of a seed, with random options of the coordinator."""
    rng = random.Random(f"options {seed}")
    mode = Mode(case.policy)
    snapshots = SnapshotOptions(
        mode,
        interval_ms=rng.choice((10, 20, 40)),
        timeout_ms=rng.choice((200, 500, 1000)),
        pause_ms_min=rng.choice((0, 0, 10)),
        open_epochs_max=1 if mode is Mode.DRAIN else rng.choice((1, 2, 3)),
        failures_tolerated=rng.choice((3, 1000)),
        keep=rng.choice((1, 3)),
        files_max=random.Random(f"files {seed}").choice((1, 3, 3, 4, 8)),
    )
    records_max = rng.choice((1, 2, 5))
    snapshots = replace(snapshots, patience_ms=rng.choice((None, 0, 10, 40)) if mode is Mode.ALIGNED else None)
    if compacts(seed):
        snapshots = replace(
            snapshots,
            interval_ms=10,
            pause_ms_min=0,
            open_epochs_max=1,
            files_max=random.Random(f"files {seed}").choice((5, 7)),
        )
    slices = rng.random() < 0.5
    options = WorldOptions(
        case.parallelism,
        case.actors,
        snapshots,
        records_max=records_max,
        restarts=RestartOptions(restarts_max=1000, pause_ms=rng.choice((0, 20, 100)), pause_ms_max=400),
        retries=StoreRetries(pause_ms=20, tries_max=2 if seed % 2 else 20),
        seed=seed,
        slices=slices,
        together=rng.random() < 0.5,
        turns=rng.random() < 0.5,
        flow=FlowLimits(
            credit_bytes=rng.choice((None, 1, 1, 300, 1_500)),
            back_edge_bytes_min=rng.choice((1, 400, 1_000_000)),
            loop_bytes_max=rng.choice((0, 400, 1_000_000)),
            credit_repeat_ms=60,
            log_budget_bytes=random.Random(f"log budget {seed}").choice((None, None, 1, 200, 400)),
        ),
    )
    if parts.keyed_state is KeyedState and not compacts(seed) and random.Random(f"tracked {seed}").random() < 0.3:
        parts = replace(parts, keyed_state=FewTracked)
    world = WindowedWorld(case.plan, case.inputs, options, parts)
    world.record.conserved = case.conserved
    return world


def run_seed(seed: int, crashes: int, rule: str | None = None, rescales: int = 0) -> tuple[Outcome, World, Case]:
    """Run and judge one schedule. `rule` names the rule that is broken in it. It is rescaled up to `rescales` times."""
    case = case_of(seed, None if rule is None else BREAKS[rule].topology)
    return *run_case(case, seed, crashes, rule, rescales), case


def run_case(
    case: Case, seed: int, crashes: int, rule: str | None = None, rescales: int = 0, parts: Parts | None = None
) -> tuple[Outcome, World]:
    """Run and judge one schedule of a case. A rule replaces the parts of the world."""
    parts = parts or Parts() if rule is None else BREAKS[rule].parts()
    rescales = rescales if rule is None else BREAKS[rule].rescales
    world = world_of(case, seed, parts)
    plan = FaultPlan(
        crashes=crashes,
        rescale_to=case.rescale_to,
        rescales=rescales,
        go_backs=1,
        slow_compactions=compacts(seed),
    )
    schedule = Schedule(world, seed, plan, STEPS_SAFE, STEPS_LIVE, STEPS_EXPECTED)
    try:
        outcome = schedule.run()
    except TaskError as error:
        # The functions of these flows are correct, so they got something that no run may pass to them.
        outcome = schedule.outcome
        outcome.violations.append(Violation("user code gets the records of the flow", str(error)))
    if not outcome.violations:
        outcome.violations = check(world.record, seed)
    return outcome, world


def run_seeds(seeds: Iterable[int], crashes: int, rule: str | None = None) -> Summary:
    """Run many schedules in this process."""
    summary = Summary()
    for seed in seeds:
        outcome, world, case = run_seed(seed, crashes, rule, RESCALES)
        _count(summary, outcome, world.record, case)
        summary.happened += world.counts
    return summary


def run_in_parallel(
    seeds: range, crashes: int, rule: str | None = None, progress: Callable[[Summary], None] | None = None
) -> Summary:
    """Run many schedules on all cores, in chunks whose order does not matter."""
    chunks = [seeds[start : start + SEEDS_A_CHUNK] for start in range(0, len(seeds), SEEDS_A_CHUNK)]
    total = Summary()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for summary in pool.map(run_seeds, chunks, [crashes] * len(chunks), [rule] * len(chunks)):
            total.add(summary)
            if progress is not None:
                progress(total)
    return total


def _count(summary: Summary, outcome: Outcome, record: Record, case: Case) -> None:
    with_log = {e for e, cut in record.cuts.items() if any(r.log for s in cut.snapshots.values() for r in s.inputs)}
    restores = [e.restored for e in record.trace if isinstance(e, Started) and e.restored is not None]
    counts = {
        "schedules": 1,
        "cuts": len(record.cuts),
        "cuts_with_log": len(with_log),
        "cuts_between_rounds": sum(1 for cut in record.cuts.values() if _is_between_rounds(cut)),
        "restores": len(restores),
        "restores_with_log": sum(1 for epoch in restores if epoch in with_log),
        "overlapping": sum(1 for _ in _overlapping(record)),
        "rescaled": _rescaled(record),
    }
    if case.is_cyclic:
        cyclic = [epoch for epoch, cut in record.cuts.items() if cut.policy == Mode.ALIGNED.value]
        counts["cyclic_cuts"] = len(cyclic)
        counts["cyclic_cuts_with_log"] = len(with_log.intersection(cyclic))
    summary.counts += Counter(counts)
    summary.topologies[case.name] += 1
    summary.policies[case.policy] += 1
    summary.faults += outcome.faults
    if outcome.violations:
        summary.failed.append((outcome.seed, outcome.steps, [str(violation) for violation in outcome.violations]))


def _is_between_rounds(cut: Cut) -> bool:
    """Whether a cut waited for the end of a round: it was requested, and there were rounds."""
    return cut.between_rounds and any(snapshot.rounds is not None for snapshot in cut.snapshots.values())


def _overlapping(record: Record) -> Iterator[int]:
    """Epochs whose first capture happened while another epoch was open."""
    seen: set[int] = set()
    closed: set[int] = set()
    for event in record.trace:
        if isinstance(event, Started):
            seen, closed = set(), set()
        elif isinstance(event, Completed | Aborted):
            closed.add(event.epoch)
        elif isinstance(event, Captured) and event.epoch is not None and event.epoch not in seen:
            if seen - closed:
                yield event.epoch
            seen.add(event.epoch)


def _rescaled(record: Record) -> int:
    widths = [dict(deployment.parallelism) for deployment in record.deployments.values()]
    return sum(1 for before, after in pairwise(widths) if before != after)
