"""What may go wrong in a schedule, and what has gone wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from backedge.engine.simulation.checker.record import Violation
from backedge.engine.simulation.world.world import Happening


@dataclass(frozen=True)
class FaultPlan:
    """How many faults of each kind may happen in one run. How many do happen, and when, is drawn.

    Crashes are planned for steps within the expected length of the run. A crash that waits for a cut may come later,
    and does not happen if the run is over by then.

    - slow_compactions: compactions take long, and crashes wait for one, or for a cut that names one.
    """

    crashes: int = 3
    coordinator_deaths: int = 1
    transport: int = 1
    write_failures: int = 2
    lost_reports: int = 2
    aborts: int = 3
    savepoints: int = 2
    stops: int = 1
    lines: int = 6
    credits: int = 6
    zombies: bool = True
    rescale_to: int | None = None
    rescales: int = 0
    lost_append_replies: int = 1
    hung_appends: int = 1
    compactions: int = 2
    slow_compactions: bool = False
    failed_claims: int = 2
    unreadable_chains: int = 2
    unreadable_cuts: int = 1
    go_backs: int = 0

    @staticmethod
    def none() -> FaultPlan:
        counts: dict[str, Any] = {fault.name: 0 for fault in fields(FaultPlan) if fault.type == "int"}
        return FaultPlan(**counts, zombies=False)


@dataclass
class Outcome:
    """The result of one schedule."""

    seed: int
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    story: list[Happening] = field(default_factory=list[Happening])
