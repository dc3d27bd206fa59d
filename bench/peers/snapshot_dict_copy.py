"""The least that a state can be captured with: `dict.copy()` of as many keys, in a process of its own."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from statistics import median

from bench.peers.sides import run_sides
from bench.workloads import CopyWorkload

COPIES = 7


def run(workload: CopyWorkload) -> float:
    """Milliseconds a copy: the median of some, each gone before the next is made."""
    (ms,) = run_sides(_side, [(workload.keys,)], 1)
    return ms


def _side(tell: Connection, keys: int) -> None:
    state: dict[int, int] = {}
    for key in range(keys):
        state[key] = 0
    for key in range(keys):
        state[key] += 1_000_000 + key
    found: list[float] = []
    for _ in range(COPIES):
        started = time.perf_counter()
        copied = state.copy()
        found.append((time.perf_counter() - started) * 1e3)
        del copied
    tell.send(median(found))
