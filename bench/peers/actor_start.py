"""What Ray takes to start one actor with nothing in it, and to have it answer a call."""

from __future__ import annotations

import time
from typing import Any, cast

import ray as untyped_ray

from bench.workloads import StartWorkload

ray = cast(Any, untyped_ray)


class Empty:
    """An actor with nothing in it."""

    def is_there(self) -> bool:
        """Answers when the actor has started."""
        return True


def run(workload: StartWorkload) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    actor = ray.remote(Empty).options(num_cpus=0).remote()
    try:
        ray.get(actor.is_there.remote())
        return (time.perf_counter() - started) * 1e3
    finally:
        ray.kill(actor)
