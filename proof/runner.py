"""Runs many seeds: each draws a case, a schedule and its faults, runs it, and lets the checker judge it."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.checker.payloads import COLUMNS
from backedge.engine.simulation.checker.record import Aborted, Captured, Completed, Record, Started, Violation
from backedge.engine.simulation.world.schedule import FaultPlan, Outcome, Schedule
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts
from backedge.graphs.plan import Plan
from backedge.graphs.task_errors import TaskError
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.messages import Mode
from proof.column_flows import ON_COLUMNS
from proof.generated_flows import ARRIVING, MIXED, Case
from proof.plain.interpreter import Result, reference
from proof.plain.judge import check
from proof.plain.plain_output import check_output
from proof.seeded_worlds import STEPS_EXPECTED, STEPS_LIVE, STEPS_SAFE, case_of, compacts, world_of
from proof.two_pipelines import Ran, apart, run_pipelines

SEEDS_A_CHUNK = 20
SEEDS_A_PAIR = 10
"""One in so many seeds also runs a job of two pipelines."""
RESCALES = 2
"""How often `python -m proof run` may rescale a run while it runs."""
COLUMNS_SHARE = 0.1
"""The share of seeds whose flow is on columns."""
MIXED_SHARE = 0.1
"""The share of the other seeds whose flow has iterations beside free loops."""
ARRIVING_SHARE = 0.05
"""The share of the rest whose flow finds splits while it reads them."""
EXERCISED = ("rescaled_live", "full_channels", "taken_together", "spilled", "split_batches")
"""What a summary names beside the counts of schedules and cuts, even if it has not happened."""


class Failed(NamedTuple):
    """A schedule in which something is wrong. `of_pipelines`: a schedule of two pipelines."""

    seed: int
    steps: int
    violations: list[str]
    of_pipelines: bool


@dataclass
class Summary:
    """Counts over many schedules."""

    counts: Counter[str] = field(default_factory=Counter[str])
    topologies: Counter[str] = field(default_factory=Counter[str])
    policies: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    happened: Counter[str] = field(default_factory=Counter[str])
    failed: list[Failed] = field(default_factory=list[Failed])

    def add(self, other: Summary) -> None:
        self.counts += other.counts
        self.topologies += other.topologies
        self.policies += other.policies
        self.faults += other.faults
        self.happened += other.happened
        self.failed += other.failed

    def as_json(self) -> dict[str, Any]:
        keys = ("schedules", "cuts", "cuts_with_log", "cyclic_cuts", "cyclic_cuts_with_log", "restores")
        more = ("restores_with_log", "overlapping", "rescaled", "cuts_between_rounds")
        on_columns = ("on_columns", "on_columns_restores", "on_columns_batches_in_cuts")
        of_pipelines = ("schedules_of_pipelines", "pipelines_apart")
        return {
            **{key: self.counts[key] for key in (*keys, *more, *on_columns, *of_pipelines)},
            **{key: self.happened[key] for key in EXERCISED},
            "topologies": dict(sorted(self.topologies.items())),
            "policies": dict(sorted(self.policies.items())),
            "faults": dict(sorted(self.faults.items())),
            "happened": dict(sorted(self.happened.items())),
            "violations": len(self.failed),
        }


def drawn_topology(seed: int) -> str | None:
    """The topology that a seed draws; None if it is about the one whose turn it is."""
    for names, what, share in (
        (ON_COLUMNS, "columns", COLUMNS_SHARE),
        (MIXED, "mixed", MIXED_SHARE),
        (ARRIVING, "arriving", ARRIVING_SHARE),
    ):
        rng = random.Random(f"{what} {seed}")
        name = rng.choice(names)
        if rng.random() < share:
            return name
    return None


def run_seed(
    seed: int, crashes: int, rule: str | None = None, rescales: int = 0, topology: str | None = None
) -> tuple[Outcome, World, Case]:
    """Run and judge one schedule. `rule` names the rule that is broken in it. It is rescaled up to `rescales` times."""
    case = case_of(seed, topology if rule is None else BREAKS[rule].topology)
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
        go_backs=1 if rule is None else BREAKS[rule].go_backs,
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
        if case.on_records is None:
            outcome.violations = check(world.record, seed)
        else:
            outcome.violations = _check_columns(world, case.on_records)
    return outcome, world


def _check_columns(world: World, on_records: Plan) -> list[Violation]:
    """What is wrong with a run on columns: its output must be that of the same flow on records."""
    expected = Result(reference(on_records, world.record.inputs).sinks)
    return check_protocol(world.record) + list(check_output(world.record, expected))


def run_seeds(seeds: Iterable[int], crashes: int, rule: str | None = None, *, only_pipelines: bool = False) -> Summary:
    """Run many schedules in this process: one for each seed, and for every tenth one also one of two pipelines."""
    summary = Summary()
    only_pipelines |= rule is not None and BREAKS[rule].of_pipelines
    for seed in seeds:
        summary.counts["schedules"] += 1
        if not only_pipelines:
            outcome, world, case = run_seed(seed, crashes, rule, RESCALES, drawn_topology(seed))
            _count(summary, outcome, world.record, case)
            summary.happened += world.counts
        if only_pipelines or (rule is None and seed % SEEDS_A_PAIR == 0):
            _count_pair(summary, seed, run_pipelines(seed, crashes, rule))
    return summary


def _count_pair(summary: Summary, seed: int, ran: Sequence[Ran]) -> None:
    """Count what the two pipelines of a schedule did."""
    summary.counts["schedules_of_pipelines"] += 1
    summary.counts["pipelines_apart"] += apart(ran[0].world.store.history)
    for outcome, world, case in ran:
        _count(summary, outcome, world.record, case, pair=seed)
        summary.happened += world.counts


def processes(count: int | None) -> ProcessPoolExecutor:
    """Processes that run schedules.

    What was imported is never garbage: not to look for any in it saves a twelfth of the time.
    """
    return ProcessPoolExecutor(count, initializer=gc.freeze)


def run_in_parallel(
    seeds: range,
    crashes: int,
    rule: str | None = None,
    progress: Callable[[Summary], None] | None = None,
    *,
    only_pipelines: bool = False,
) -> Summary:
    """Run many schedules on all cores, in chunks whose order does not matter."""
    chunks = [seeds[start : start + SEEDS_A_CHUNK] for start in range(0, len(seeds), SEEDS_A_CHUNK)]
    total = Summary()
    with processes(os.cpu_count()) as pool:
        for summary in pool.map(partial(run_seeds, crashes=crashes, rule=rule, only_pipelines=only_pipelines), chunks):
            total.add(summary)
            if progress is not None:
                progress(total)
    return total


def _count(summary: Summary, outcome: Outcome, record: Record, case: Case, *, pair: int | None = None) -> None:
    """Count what happened in a schedule. `pair`: the seed of a schedule of two pipelines, of which this is one."""
    counts = {
        **record.counts(),
        "cuts_between_rounds": sum(1 for cut in record.cuts.values() if _is_between_rounds(cut)),
        "overlapping": sum(1 for _ in _overlapping(record)),
    }
    if case.on_records is not None:
        counts["on_columns"] = 1
        counts["on_columns_restores"] = counts["restores"]
        counts["on_columns_batches_in_cuts"] = sum(map(_batches_of_columns, record.cuts.values()))
    if case.is_cyclic:
        cyclic = [epoch for epoch, cut in record.cuts.items() if cut.policy == Mode.ALIGNED.value]
        counts["cyclic_cuts"] = len(cyclic)
        counts["cyclic_cuts_with_log"] = len(record.cuts_with_log.intersection(cyclic))
    summary.counts += Counter(counts)
    summary.topologies[case.name] += 1
    summary.policies[case.policy] += 1
    summary.faults += outcome.faults
    if outcome.violations:
        violations = [str(violation) for violation in outcome.violations]
        seed = outcome.seed if pair is None else pair
        summary.failed.append(Failed(seed, outcome.steps, violations, of_pipelines=pair is not None))


def _batches_of_columns(cut: Cut) -> int:
    """How many batches of columns a cut holds in logs."""
    inputs = [received for snapshot in cut.snapshots.values() for received in snapshot.inputs]
    return sum(entry.payload[:1] == COLUMNS for received in inputs for entry in received.log)


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
