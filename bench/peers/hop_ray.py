"""One record between two Ray actors by calls: the first calls the second and waits for its answer."""

from __future__ import annotations

from typing import Any

from backedge.engine.on_ray.cluster import ray
from bench.workloads import HopRecord, HopWorkload, hop, us_a_hop


class Side:
    """One of the two actors."""

    def hop(self, record: HopRecord) -> HopRecord:
        """What the other one calls."""
        return hop(record)

    def ping(self, other: Any, record: HopRecord, seconds: float) -> float:
        """Send the record round until time is up."""
        while record[0] < 1 or record[2] - record[1] < seconds:
            record = ray.get(other.hop.remote(record))
        return us_a_hop(record)


def run(workload: HopWorkload) -> float:
    """Microseconds for a call and its answer."""
    actor = ray.remote(Side).options(num_cpus=0)
    here, there = actor.remote(), actor.remote()
    try:
        return ray.get(here.ping.remote(there, workload.start(), workload.seconds))
    finally:
        ray.kill(here)
        ray.kill(there)
