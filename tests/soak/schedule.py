"""The faults of a soak, drawn from its seed: when each happens, to which flow, and how long it lasts."""

from __future__ import annotations

import random
from dataclasses import dataclass

STEADY = "steady"
"""This flow runs as long as the soak, and loses no process: what grows in a long run shows in it."""

MORTAL = ("disk", "rounds", "columns", "calls", "postgres", "objects", "detached", "rescaled")
STOPPABLE = tuple(name for name in MORTAL if name != "detached")
"""Whoever stops a detached run has to start it again from another process."""

FAULTS: dict[str, tuple[str, ...]] = {
    "task killed": MORTAL,
    "supervisor killed": MORTAL,
    "driver killed": ("detached",),
    "task stands still": (STEADY, *MORTAL),
    "supervisor stands still": MORTAL,
    "connections reset": MORTAL,
    "stopped and resumed": STOPPABLE,
    "rescaled": ("rescaled",),
    "disk full": ("disk",),
    "disk slow": ("machine",),
    "clock jumps": ("machine",),
    "reply of the store lost": ("objects",),
    "request of the store lost": ("objects",),
    "store busy": ("objects",),
    "store away": ("objects",),
    "client of the database killed": ("postgres",),
    "database killed": ("postgres",),
    "connection to the database reset": ("postgres",),
}
"""Each fault, and the flows that it may befall; the machine is all of them."""

FIRST_S = 12.0
GAP_S = 4.0
LASTS_S = (1.0, 12.0)


@dataclass(frozen=True)
class Planned:
    """One fault. `chance`, from 0 to 1, chooses among what is there by then: a process, a number of tasks, a step."""

    at_s: float
    fault: str
    target: str
    chance: float
    lasts_s: float


def schedule(seed: int, seconds: float) -> list[Planned]:
    """The faults of so many seconds, in order. Each comes once before any comes twice.

    >>> schedule(7, 60) == schedule(7, 60), schedule(7, 60) == schedule(8, 60), len(schedule(7, 3600)) > 700
    (True, False, True)
    """
    rng = random.Random(seed)
    found: list[Planned] = []
    bag: list[str] = []
    at_s = FIRST_S
    while at_s < seconds:
        if not bag:
            bag = rng.sample(list(FAULTS), len(FAULTS))
        fault = bag.pop()
        planned = Planned(round(at_s, 2), fault, rng.choice(FAULTS[fault]), rng.random(), rng.uniform(*LASTS_S))
        found.append(planned)
        at_s += rng.uniform(0.5, 1.5) * GAP_S
    return found
