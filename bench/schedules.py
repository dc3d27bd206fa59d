"""How many schedules a second the simulator runs: part of `bench core`.

Small topologies are the generated flows of SMALL (chains, diamonds, loops: everything but iterations in rounds) with
2 or 3 records a source, parallelism 1 or 2 (up to 3 after a restore), and up to 3 crashes besides the other faults. A
schedule counts with everything that belongs to it: drawing and placing the flow, the run, and the checker's verdict.
Iterations are told apart: a schedule of theirs has several times as many steps, as every round ends by markers.

Two processes run at a time. The rate is what two cores do in a second of their CPU time, so that it does not count
what else the machine is doing meanwhile; `by the wall clock` does.

Peer: the plain interpreter on the same flows and inputs, which has no tasks, no snapshots and no faults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.measuring import Limit, Samples, interleaved
from engine.simulation.cases import IN_ROUNDS, NAMES, generate
from engine.simulation.plain import reference
from engine.simulation.runner import run_case

SMALL = tuple(name for name in NAMES if name not in IN_ROUNDS)
ROUNDS = tuple(name for name in NAMES if name in IN_ROUNDS)
SCHEDULES_PER_S_MIN = 200
CRASHES = 3
PROCESSES = 2


@dataclass(frozen=True)
class Rates:
    """What was found, ready to go into a report."""

    figures: dict[str, Samples]
    peers: dict[str, Samples]
    ratios: dict[str, float]
    limits: tuple[Limit, ...]


Share = tuple[Sequence[str], int, int]
"""Topologies, the first seed, and how many."""


def run_schedules(share: Share) -> float:
    """CPU seconds of these schedules; a violation is not worth timing."""
    names, first, count = share
    started = time.process_time()
    for seed in range(first, first + count):
        name = names[seed % len(names)]
        outcome, _ = run_case(generate(random.Random(seed), name, small=True), seed, CRASHES)
        if outcome.violations:
            raise RuntimeError(f"small '{name}', seed {seed}: {outcome.violations[0]}")
    return time.process_time() - started


def run_plain(share: Share) -> float:
    """CPU seconds of the same flows without a protocol."""
    names, first, count = share
    started = time.process_time()
    for seed in range(first, first + count):
        case = generate(random.Random(seed), names[seed % len(names)], small=True)
        reference(case.plan, case.inputs)
    return time.process_time() - started


class Crew:
    """Two processes that share the work."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.by_the_wall_clock_per_s = 0.0

    def rate(self, work: Callable[[Share], float], names: Sequence[str], first: int, count: int) -> float:
        """How many a second of the CPU time of both; by the wall clock it is kept until the next."""
        each = count // PROCESSES
        shares: list[Share] = [(names, first + number * each, each) for number in range(PROCESSES)]
        started = time.perf_counter()
        cpu_s = sum(self.pool.map(work, shares))
        self.by_the_wall_clock_per_s = each * PROCESSES / (time.perf_counter() - started)
        return each * PROCESSES / (cpu_s / PROCESSES)


def measure_schedules(seed: int, turns: int, small: int = 100, in_rounds: int = 24) -> Rates:
    """So many schedules of each kind a turn, by processes that live as long as the measurement."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        crew = Crew(pool)
        found = interleaved(
            {
                "small_per_s": lambda: crew.rate(run_schedules, SMALL, seed, small),
                "small_by_the_wall_clock_per_s": lambda: crew.by_the_wall_clock_per_s,
                "in_rounds_per_s": lambda: crew.rate(run_schedules, ROUNDS, seed, in_rounds),
                "plain_interpreter_per_s": lambda: crew.rate(run_plain, SMALL, seed, small),
            },
            turns,
        )
    peers = {"plain_interpreter_per_s": found.pop("plain_interpreter_per_s")}
    small_per_s = found["small_per_s"]
    claim = f"small topologies: {small_per_s.median:.0f} schedules a second on 2 cores, at least {SCHEDULES_PER_S_MIN}"
    return Rates(
        figures=found,
        peers=peers,
        ratios={"plain_interpreter / small": peers["plain_interpreter_per_s"].over(small_per_s)},
        limits=(Limit(claim, small_per_s.median >= SCHEDULES_PER_S_MIN),),
    )
