"""K-means by scikit-learn in one process. It is optional."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import numpy as np

from bench.peers.sides import run_sides
from bench.workloads import FitWorkload


def is_installed() -> bool:
    """Whether this peer can run."""
    return importlib.util.find_spec("sklearn") is not None


def run(workload: FitWorkload) -> float:
    """Milliseconds a round, in a new process, which has the number of threads that was set."""
    return run_sides(fit, [(workload,)], answers=1)[0]


def fit(tell: Any, workload: FitWorkload) -> None:
    """Tell the figure: the difference of a long and a short fit, because every fit also copies and checks its input."""
    clusters: Any = importlib.import_module("sklearn.cluster")
    points = np.load(f"{workload.folder}/points.npy")
    first = workload.first().reshape(-1, points.shape[1])

    def fitted(rounds: int) -> tuple[float, Any]:
        means = clusters.KMeans(len(first), init=first, n_init=1, max_iter=rounds, tol=0.0, algorithm="lloyd")
        began_s = time.perf_counter()
        means.fit(points)
        return time.perf_counter() - began_s, means.cluster_centers_

    short_s, _ = fitted(workload.warm_up_rounds)
    long_s, centres = fitted(workload.warm_up_rounds + workload.rounds)
    np.save(workload.result("scikit"), centres.ravel())
    tell.send((long_s - short_s) / workload.rounds * 1e3)
