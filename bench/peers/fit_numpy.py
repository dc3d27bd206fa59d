"""A model fitted in one process, which holds all rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.peers.sides import run_sides
from bench.workloads import FitWorkload


def run(workload: FitWorkload) -> float:
    """Milliseconds a round, in a new process, which has the number of threads that was set."""
    return run_sides(fit, [(workload,)], answers=1)[0]


def fit(tell: Any, workload: FitWorkload) -> None:
    """Fit, and tell the figure."""
    share = workload.model(workload.folder, 0, 1)
    parameters = workload.first()
    began_s = 0.0
    for round in range(workload.warm_up_rounds + workload.rounds):
        if round == workload.warm_up_rounds:
            began_s = time.perf_counter()
        parameters = share.moved(parameters, share.part(parameters, round))
    seconds = time.perf_counter() - began_s
    np.save(workload.result("numpy"), parameters)
    tell.send(seconds / workload.rounds * 1e3)
