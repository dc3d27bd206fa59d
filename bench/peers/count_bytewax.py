"""The keyed count on bytewax, a dataflow engine in Rust for functions in Python: two processes, one thread each.

It is an optional extra: `make bench` installs it. How many records a batch of its source has is found out first. Keys
must be strings there, which is why all count words. Its state begins as None, so one function more stands around
`count_word`. Nothing is kept for a recovery.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from bench.peers.sides import run_sides
from bench.workloads import Counted, CountWorkload, count_word, is_told, word_key

BATCHES_TRIED = (500, 4_000, 16_000)
TRIAL_S = 1.0


def is_installed() -> bool:
    """Whether this peer can run."""
    return importlib.util.find_spec("bytewax") is not None


def run(workload: CountWorkload) -> float:
    """Records a second, at the best size of batches."""
    return measure(workload, best_batch(replace(workload, seconds=min(TRIAL_S, workload.seconds), warm_up_s=1.0)))


@cache
def best_batch(trial: CountWorkload) -> int:
    """The size of batches at which the peer is fastest."""
    return max(BATCHES_TRIED, key=lambda size: measure(trial, size))


def measure(workload: CountWorkload, batch: int) -> float:
    """Records a second that both processes read: no fewer than they count."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    return sum(run_sides(_side, [(index, workload, batch, addresses) for index in range(2)], 2))


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


def _side(tell: Connection, index: int, workload: CountWorkload, batch: int, addresses: list[str]) -> None:
    bytewax: Any = importlib.import_module("bytewax._bytewax")
    read: list[float] = []
    flow = make_flow(workload, batch, lambda: read.append(time.perf_counter()))
    bytewax.cluster_main(flow, addresses, index, epoch_interval=timedelta(seconds=1))
    tell.send(batch * rate(read, workload.warm_up_s, workload.seconds))


def rate(read: list[float], warm_up_s: float, seconds: float) -> float:
    """Batches a second between the end of the warm-up and that many seconds later."""
    from_s = read[0] + warm_up_s
    window = [at_s for at_s in read if from_s <= at_s <= from_s + seconds]
    return (len(window) - 1) / (window[-1] - window[0])


def make_flow(workload: CountWorkload, batch: int, tell: Callable[[], None]) -> Any:
    """The count as one writes it for bytewax."""
    dataflow: Any = importlib.import_module("bytewax.dataflow")
    inputs: Any = importlib.import_module("bytewax.inputs")
    op: Any = importlib.import_module("bytewax.operators")
    outputs: Any = importlib.import_module("bytewax.outputs")

    class Part(inputs.StatelessSourcePartition):
        """Every `step`-th record from `first` on, until time is up."""

        def __init__(self, first: int, step: int) -> None:
            self.make = workload.make()
            self.position, self.step = first, step
            self.until_s = time.perf_counter() + workload.warm_up_s + workload.seconds + 1.0

        def next_batch(self) -> list[str]:
            if time.perf_counter() >= self.until_s:
                raise StopIteration
            tell()
            start, self.position = self.position, self.position + self.step * batch
            return [self.make(at) for at in range(start, self.position, self.step)]

    class Words(inputs.DynamicSource):
        """Where records come from; the arguments are the name of the step, which part, and of how many."""

        def build(self, _name: str, index: int, count: int) -> Part:
            return Part(index, count)

    class Kept(outputs.StatelessSinkPartition):
        """What one process has been told, of which nobody asks."""

        def write_batch(self, items: list[Any]) -> None:
            """Let go of it."""

    class Told(outputs.DynamicSink):
        """Where counts go."""

        def build(self, _name: str, _index: int, _count: int) -> Kept:
            return Kept()

    flow = dataflow.Dataflow("count")
    keyed = op.key_on("key", op.input("words", flow, Words()), word_key)
    counted = op.stateful_map("count", keyed, _count)
    op.output("told", op.filter("chosen", counted, _is_told), Told())
    return flow


def _count(seen: int | None, word: str) -> tuple[int, Counted]:
    return count_word(seen or 0, word)


def _is_told(keyed: tuple[str, Counted]) -> bool:
    return is_told(keyed[1])
