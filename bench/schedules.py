"""The cost of a step of the simulator, and the number of schedules that it runs per second: part of `bench core`.

Small topologies are the generated flows of SMALL (chains, diamonds, loops: everything but iterations in rounds) with 2
or 3 records per source, parallelism 1 or 2 (up to 3 after a restore), and up to 3 crashes in addition to the other
faults. A schedule includes everything that belongs to it: drawing and placing the flow, the run, and the checker's
verdict. Iterations are measured separately, because their schedules have several times as many steps: markers end every
round.

A step is one event: a batch arrives, a file is written, a task dies. The limit applies to the cost of a step. The rate
has no limit, because it falls with each fault that is added to the schedules, which then take more steps.

Two processes run at a time. All figures are CPU time, so other work on the machine does not count.

Peer: the plain interpreter on the same flows and inputs, without tasks, snapshots and faults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.measuring import Case
from proof.generated_flows import IN_ROUNDS, NAMES, generate
from proof.plain.interpreter import reference
from proof.runner import run_case

SMALL = tuple(name for name in NAMES if name not in IN_ROUNDS)
ROUNDS = tuple(name for name in NAMES if name in IN_ROUNDS)
CRASHES = 3
PROCESSES = 2
STEP = "simulated step"
PEER = "plain_interpreter_per_s"


Share = tuple[Sequence[str], int, int]
"""Topologies, the first seed, and the number of seeds."""


@dataclass(frozen=True)
class Work:
    """The cost of some schedules: CPU seconds, and steps of the simulator."""

    cpu_s: float
    steps: int


def run_schedules(share: Share) -> Work:
    """Run these schedules; a violation is not worth timing."""
    names, first, count = share
    steps = 0
    started = time.process_time()
    for seed in range(first, first + count):
        name = names[seed % len(names)]
        outcome, _ = run_case(generate(random.Random(seed), name), seed, CRASHES)
        if outcome.violations:
            raise RuntimeError(f"small '{name}', seed {seed}: {outcome.violations[0]}")
        steps += outcome.steps
    return Work(time.process_time() - started, steps)


def run_plain(share: Share) -> Work:
    """Run the same flows without a protocol."""
    names, first, count = share
    started = time.process_time()
    for seed in range(first, first + count):
        case = generate(random.Random(seed), names[seed % len(names)])
        reference(case.plan, case.inputs)
    return Work(time.process_time() - started, 0)


class Crew:
    """Two processes that share the work."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.step_us = 0.0
        """CPU time per step in the latest measurement."""

    def rate(self, run: Callable[[Share], Work], names: Sequence[str], first: int, count: int) -> float:
        """Schedules per second of CPU time of both processes."""
        each = count // PROCESSES
        shares: list[Share] = [(names, first + number * each, each) for number in range(PROCESSES)]
        parts = list(self.pool.map(run, shares))
        cpu_s, steps = sum(part.cpu_s for part in parts), sum(part.steps for part in parts)
        if steps:
            self.step_us = cpu_s / steps * 1e6
        return each * PROCESSES / (cpu_s / PROCESSES)


def cases(crew: Crew, seed: int, small: int = 100, in_rounds: int = 24) -> dict[str, Case]:
    """Measure `small` and `in_rounds` schedules per turn. The cost of a step belongs to the rate before it."""
    return {
        "small_per_s": lambda: crew.rate(run_schedules, SMALL, seed, small),
        STEP: lambda: crew.step_us,
        "in_rounds_per_s": lambda: crew.rate(run_schedules, ROUNDS, seed, in_rounds),
        PEER: lambda: crew.rate(run_plain, SMALL, seed, small),
    }
