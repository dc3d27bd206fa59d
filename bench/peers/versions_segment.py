"""Weights in shared memory, by hand: one process writes them, tells four others through pipes, and waits for all sums.

As many segments as versions are kept take turns. Nothing is kept on disk, and nothing survives a death.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from bench.workloads import VersionsWorkload


def run(workload: VersionsWorkload) -> float:
    """Milliseconds a round."""
    context = get_context("spawn")
    segments = [SharedMemory(create=True, size=8 * workload.values) for _ in range(workload.keep)]
    names = [segment.name for segment in segments]
    pipes = [context.Pipe() for _ in range(workload.workers)]
    workers = [context.Process(target=work, args=(far, names, workload.values), daemon=True) for _, far in pipes]
    try:
        for worker in workers:
            worker.start()
        return learn([near for near, _ in pipes], segments, workload)
    finally:
        for near, _ in pipes:
            near.send(-1)
        for worker in workers:
            worker.join()
        for segment in segments:
            segment.close()
            segment.unlink()


def learn(workers: Sequence[Connection], segments: Sequence[SharedMemory], workload: VersionsWorkload) -> float:
    """Publish until time is up."""
    places: list[Any] = [_array(segment, workload.values) for segment in segments]
    weights = np.zeros(workload.values)
    rounds, began_s, now_s = -workload.warm_up_rounds, 0.0, 0.0
    while rounds < 1 or now_s - began_s < workload.seconds:
        weights += 1
        places[rounds % workload.keep][:] = weights
        for worker in workers:
            worker.send(rounds % workload.keep)
        for worker in workers:
            worker.recv()
        now_s = time.perf_counter()
        rounds += 1
        if rounds == 0:
            began_s = now_s
    del places
    return (now_s - began_s) / rounds * 1e3


def work(learner: Connection, names: Sequence[str], values: int) -> None:
    """Sum what the learner names."""
    segments = [SharedMemory(name) for name in names]
    places = [_array(segment, values) for segment in segments]
    while (number := learner.recv()) >= 0:
        learner.send(float(places[number].sum()))
    del places
    for segment in segments:
        segment.close()


def _array(segment: SharedMemory, values: int) -> Any:
    return np.ndarray(values, buffer=segment.buf)
