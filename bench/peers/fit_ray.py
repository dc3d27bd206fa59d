"""A model fitted by two Ray actors by hand: a driver sends them the parameters, and adds up what they return."""

from __future__ import annotations

import time

import numpy as np

from backedge.engine.on_ray.cluster import ray
from bench.workloads import FitWorkload


def run(workload: FitWorkload) -> float:
    """Milliseconds a round."""
    model = ray.remote(workload.model).options(num_cpus=0)
    shares = [model.remote(workload.folder, task, 2) for task in range(2)]
    try:
        parameters = workload.first()
        began_s = 0.0
        for round in range(workload.warm_up_rounds + workload.rounds):
            if round == workload.warm_up_rounds:
                began_s = time.perf_counter()
            first, second = ray.get([share.part.remote(parameters, round) for share in shares])
            parameters = workload.model.moved(parameters, first + second)
        seconds = time.perf_counter() - began_s
        np.save(workload.result("ray"), parameters)
        return seconds / workload.rounds * 1e3
    finally:
        for share in shares:
            ray.kill(share)
