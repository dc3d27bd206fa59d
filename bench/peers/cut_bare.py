"""The least that a cut can be: a process for each task pickles its dict into a file, and makes the file durable."""

from __future__ import annotations

import os
import pickle
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.measuring import warm_page_cache
from bench.peers.sides import run_sides
from bench.workloads import OpaqueWorkload, opaque_value


def run(workload: OpaqueWorkload) -> float:
    """Seconds, until the slower of the processes is through."""
    sides = [(workload, index) for index in range(workload.tasks)]
    return max(run_sides(_side, sides, len(sides)))


def _side(tell: Connection, workload: OpaqueWorkload, index: int) -> None:
    state = {key: opaque_value(key, workload.seed) for key in range(index, workload.keys, workload.tasks)}
    path = Path(workload.folder, f"bare-{index}")
    warm_page_cache(workload.folder, workload.mb / workload.tasks)
    started_s = time.perf_counter()
    with path.open("wb") as file:
        pickle.dump(state, file, 5)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.perf_counter() - started_s
    path.unlink()
    tell.send(took_s)
