"""A superstep of two Ray actors by hand: in a round each computes on the array that the other one computed before.

The driver calls both and hands on the results by reference; it waits for both before the next round, for it has to
decide whether there is one. That is how one writes it for any number of actors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from backedge.engine.on_ray.cluster import ray
from bench.workloads import RoundWorkload


class Part:
    """One of the two actors."""

    def __init__(self, values: int) -> None:
        self.array = np.zeros(values)

    def step(self, theirs: Any) -> Any:
        """A round."""
        return theirs + 1

    def swap(self, theirs: Any) -> Any:
        """A round that the other one leads: take its array, give the own."""
        own, self.array = self.array, theirs + 1
        return own

    def lead(self, other: Any, seconds: float, warm_up_rounds: int) -> float:
        """Have rounds with the other one until time is up; us a round."""
        rounds, began_s, now_s = -warm_up_rounds, 0.0, 0.0
        while rounds < 1 or now_s - began_s < seconds:
            self.array = ray.get(other.swap.remote(self.array)) + 1
            now_s = time.perf_counter()
            rounds += 1
            if rounds == 0:
                began_s = now_s
        return (now_s - began_s) / rounds * 1e6


def run(workload: RoundWorkload) -> float:
    """Microseconds a round."""
    here, there = _parts(workload)
    try:
        own = ray.get(here.step.remote(np.zeros(workload.values)))
        other = ray.get(there.step.remote(np.zeros(workload.values)))
        rounds, began_s, now_s = -workload.warm_up_rounds, 0.0, 0.0
        while rounds < 1 or now_s - began_s < workload.seconds:
            own, other = here.step.remote(other), there.step.remote(own)
            ray.get([own, other])
            now_s = time.perf_counter()
            rounds += 1
            if rounds == 0:
                began_s = now_s
        return (now_s - began_s) / rounds * 1e6
    finally:
        ray.kill(here)
        ray.kill(there)


def _parts(workload: RoundWorkload) -> tuple[Any, Any]:
    part = ray.remote(Part).options(num_cpus=0)
    return part.remote(workload.values), part.remote(workload.values)
