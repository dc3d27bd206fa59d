"""What Ray takes to start actors with nothing in them, at once, and to have each answer a call."""

from __future__ import annotations

import time

from backedge.engine.on_ray.cluster import ray
from bench.workloads import StartWorkload


class Empty:
    """An actor with nothing in it."""

    def is_there(self) -> bool:
        """Answers when the actor has started."""
        return True


def run(workload: StartWorkload) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    actors = [ray.remote(Empty).options(num_cpus=0).remote() for _ in range(workload.actors)]
    try:
        ray.get([actor.is_there.remote() for actor in actors])
        return (time.perf_counter() - started) * 1e3
    finally:
        for actor in actors:
            ray.kill(actor)
