"""A logistic regression by mini-batches: each round takes a quarter of 1.6 million rows of 16 numbers.

Peers: ray, two Ray actors by hand that a driver calls with the weights; numpy, the same arithmetic in one process and
one thread. It is not SGDClassifier of scikit-learn, which moves the weights after every single row: two tasks cannot do
the same arithmetic. `bench/fitting.py` says what is measured.
"""

from __future__ import annotations

import tempfile

import numpy as np

from bench import fitting
from bench.measuring import Report
from bench.options import Options
from bench.peers import fit_numpy, fit_ray
from bench.session import one_thread, session
from bench.workloads import FitWorkload, Floats

LIMITS = {"ray": 1.2, "numpy": 0.8}
ROWS, COLUMNS, BATCHES = 1_600_000, 16, 4
RATE = 0.5


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    known = {"ray": fit_ray.run, "numpy": fit_numpy.run}
    rows = options.records or ROWS
    with tempfile.TemporaryDirectory(prefix="bench-sgd-") as folder, one_thread(), session():
        write_rows(folder, rows, options.seed)
        workload = FitWorkload(folder, Weights, rounds=max(2, round(40 * (options.seconds or 4.0))))
        return fitting.run("sgd", workload, known, LIMITS, options, rows=rows)


def write_rows(folder: str, rows: int, seed: int) -> None:
    """Draw rows and their classes; all weights are 0 at the start. Tasks have equal shares of each mini-batch."""
    if rows % (2 * BATCHES):
        raise ValueError(f"{rows} records cannot be halved in {BATCHES} mini-batches: give a multiple of {2 * BATCHES}")
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, COLUMNS))
    chances = 1 / (1 + np.exp(-values @ generator.normal(size=COLUMNS)))
    np.save(f"{folder}/values.npy", values)
    np.save(f"{folder}/classes.npy", (generator.random(rows) < chances).astype(np.float64))
    np.save(f"{folder}/first.npy", np.zeros(COLUMNS))


class Weights:
    """The rows of a task. A contribution is the gradient and the number of rows."""

    def __init__(self, folder: str, task: int, tasks: int) -> None:
        values, classes = (np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("values", "classes"))
        self.values = np.ascontiguousarray(values[task::tasks])
        self.classes = np.ascontiguousarray(classes[task::tasks])

    def part(self, parameters: Floats, round: int) -> Floats:
        """The gradient of the rows of this round."""
        count = len(self.values) // BATCHES
        rows = slice(round % BATCHES * count, (round % BATCHES + 1) * count)
        values = self.values[rows]
        errors = 1 / (1 + np.exp(-(values @ parameters))) - self.classes[rows]
        return np.append(errors @ values, count)

    @staticmethod
    def moved(parameters: Floats, total: Floats) -> Floats:
        """A step against the mean gradient."""
        return parameters - RATE * total[:-1] / total[-1]
