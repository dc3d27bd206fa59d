"""A superstep of two Ray actors by hand, where one leads: it sends its array along and gets the other's as the answer.

One call a round instead of two and a driver; that works for two actors and no more.
"""

from __future__ import annotations

from backedge.engine.on_ray.cluster import ray
from bench.peers.superstep_ray import Part
from bench.workloads import RoundWorkload


def run(workload: RoundWorkload) -> float:
    """Microseconds a round."""
    part = ray.remote(Part).options(num_cpus=0)
    here, there = part.remote(workload.values), part.remote(workload.values)
    try:
        return ray.get(here.lead.remote(there, workload.seconds, workload.warm_up_rounds))
    finally:
        ray.kill(here)
        ray.kill(there)
