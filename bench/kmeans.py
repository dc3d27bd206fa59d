"""K-means: 400,000 points of 16 numbers, 16 centres. Centres move to the mean of the points that are nearest to them.

Peers: ray, two Ray actors by hand that a driver calls with the centres; scikit, KMeans of scikit-learn in one process
and one thread with Lloyd's algorithm and the same first centres, if it is installed. `bench/fitting.py` says what is
measured.
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import numpy as np

from bench import fitting
from bench.measuring import Report
from bench.options import Options
from bench.peers import fit_ray, kmeans_scikit
from bench.session import one_thread, session
from bench.workloads import FitWorkload, Floats

LIMITS = {"ray": 1.2, "scikit": 0.8}
ROWS, COLUMNS, CENTRES = 400_000, 16, 16
CHUNK_ROWS = 4_096
"""Few enough that their distances to the centres stay in the cache of a core."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    known = {"ray": fit_ray.run}
    absent = {"absent": {"scikit": "not installed; make bench installs it"}}
    if kmeans_scikit.is_installed():
        known["scikit"], absent = kmeans_scikit.run, {}
    rows = options.records or ROWS
    with tempfile.TemporaryDirectory(prefix="bench-kmeans-") as folder, one_thread(), session():
        write_points(folder, rows, options.seed)
        workload = FitWorkload(folder, Centres, rounds=max(2, round(20 * (options.seconds or 4.0))))
        return fitting.run("kmeans", workload, known, LIMITS, options, rows=rows, **absent)


def write_points(folder: str, rows: int, seed: int) -> None:
    """Draw the points; the first ones are the centres at the start."""
    points = np.random.default_rng(seed).random((rows, COLUMNS))
    np.save(f"{folder}/points.npy", points)
    np.save(f"{folder}/first.npy", points[:CENTRES].ravel())


class Centres:
    """The points of a task. A contribution is the sum and the number of points by centre."""

    def __init__(self, folder: str, task: int, tasks: int) -> None:
        points = np.load(f"{folder}/points.npy", mmap_mode="r")[task::tasks]
        self.points = np.column_stack([points, np.ones(len(points))])
        # As a sparse matrix, the points of each centre have ones, one in each column.
        self.ones, self.ends = np.ones(len(points)), np.arange(len(points) + 1, dtype=np.int32)
        self.nearest = np.empty(len(points), np.int32)

    def part(self, parameters: Floats, round: int) -> Floats:
        """Find the nearest centre of each point: the one with the least |c|^2 / 2 - cp."""
        sparse: Any = importlib.import_module("scipy.sparse")
        centres = parameters.reshape(-1, COLUMNS)
        scale = np.column_stack([-centres, (centres**2).sum(axis=1) / 2])
        for start in range(0, len(self.points), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            self.nearest[rows] = (self.points[rows] @ scale.T).argmin(axis=1)
        # All sums at once: for each chunk, to make a matrix would take longer than to add up.
        shape = len(centres), len(self.points)
        return (sparse.csc_array((self.ones, self.nearest, self.ends), shape) @ self.points).ravel()

    @staticmethod
    def moved(parameters: Floats, total: Floats) -> Floats:
        """Every centre that has points moves to their mean."""
        sums = total.reshape(-1, COLUMNS + 1)
        counts = sums[:, -1:]
        return np.where(counts > 0, sums[:, :-1] / np.maximum(counts, 1), parameters.reshape(-1, COLUMNS)).ravel()
