"""K-means: 400,000 points of 16 numbers, 16 centres. Centres move to the mean of the points that are nearest to them.

Peers: ray, two Ray actors by hand that a driver calls with the centres; scikit, KMeans of scikit-learn in one process
and one thread with Lloyd's algorithm and the same first centres, if it is installed. `bench/fitting.py` says what is
measured. Ours and ray call the same function, which numba compiles in the warm-up rounds; scikit has compiled code of
its own, so its ratio says as much about this function as about what surrounds it.
"""

from __future__ import annotations

import importlib
import tempfile
from functools import cache
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
BLOCK_POINTS = 256
"""Few enough that they stay in the cache of a core while they are compared with each centre."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    known = {"ray": fit_ray.run}
    absent = {"absent": {"scikit": "not installed; make bench installs it"}}
    if kmeans_scikit.is_installed():
        known["scikit"], absent = kmeans_scikit.run, {}
    rows = options.records or ROWS
    with tempfile.TemporaryDirectory(prefix="bench-kmeans-") as folder, one_thread(), session():
        write_points(folder, rows, options.seed)
        workload = FitWorkload(folder, Centres, rounds=max(2, round(50 * (options.seconds or 4.0))))
        return fitting.run("kmeans", workload, known, LIMITS, options, rows=rows, **absent)


def write_points(folder: str, rows: int, seed: int) -> None:
    """Draw the points; the first ones are the centres at the start."""
    points = np.random.default_rng(seed).random((rows, COLUMNS))
    np.save(f"{folder}/points.npy", points)
    np.save(f"{folder}/first.npy", points[:CENTRES].ravel())


class Centres:
    """The points of a task. A contribution is the sum and the number of points by centre.

    - points: by block, coordinate and place in the block, so that a processor computes with several points at once.
    """

    def __init__(self, folder: str, task: int, tasks: int) -> None:
        own = np.load(f"{folder}/points.npy", mmap_mode="r")[task::tasks]
        self.count = len(own)
        self.points = np.zeros((-(-len(own) // BLOCK_POINTS), COLUMNS, BLOCK_POINTS))
        for start in range(0, len(own), BLOCK_POINTS):
            block = own[start : start + BLOCK_POINTS].T
            self.points[start // BLOCK_POINTS, :, : block.shape[1]] = block

    def part(self, parameters: Floats, round: int) -> Floats:
        """Find the nearest centre of each point: the one with the least |c|^2 / 2 - cp."""
        centres = parameters.reshape(-1, COLUMNS)
        total = np.zeros((len(centres), COLUMNS + 1))
        _compiled()(self.points, self.count, centres, (centres**2).sum(axis=1) / 2, total)
        return total.ravel()

    @staticmethod
    def moved(parameters: Floats, total: Floats) -> Floats:
        """Every centre that has points moves to their mean."""
        sums = total.reshape(-1, COLUMNS + 1)
        counts = sums[:, -1:]
        return np.where(counts > 0, sums[:, :-1] / np.maximum(counts, 1), parameters.reshape(-1, COLUMNS)).ravel()


@cache
def _compiled() -> Any:
    return importlib.import_module("numba").njit(fastmath={"contract"})(_add_to_nearest)


def _add_to_nearest(points: Floats, count: int, centres: Floats, halves: Floats, total: Floats) -> None:
    """Add each point to the row of its nearest centre in `total`, and 1 to the last column."""
    least, nearest = np.empty(BLOCK_POINTS), np.empty(BLOCK_POINTS, np.int64)
    for block in range(len(points)):
        point = points[block]
        least[:], nearest[:] = np.inf, 0
        for centre in range(len(centres)):
            for place in range(BLOCK_POINTS):
                score = halves[centre]
                for column in range(COLUMNS):
                    score -= centres[centre, column] * point[column, place]
                if score < least[place]:
                    least[place], nearest[place] = score, centre
        for place in range(min(BLOCK_POINTS, count - block * BLOCK_POINTS)):
            for column in range(COLUMNS):
                total[nearest[place], column] += point[column, place]
            total[nearest[place], COLUMNS] += 1
