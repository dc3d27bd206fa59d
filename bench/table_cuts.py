"""Cuts of a table of ten million rows: what a cut a second leaves of the speed, and for how long one holds up a batch.

The speed is measured on Ray, in two tasks. Once all rows are there, a hundredth of them keep changing, as fast as the
tasks can, with a cut a second or with none.

The stall is measured in one process and in processor time: on two busy cores, whatever else runs in between would hide
it. It is the time of the capture, and what the batch of 1,000 random rows behind it takes beyond the usual time. Beside
it is the time in which a cut takes one block of rows. (Between batches, a task takes blocks for up to 2 ms of a turn
of 20.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from backedge import Collect, Flow, Generate, Table
from backedge.engine.state.tables.table_state import BLOCK_ROWS, TableCapture, TableState
from backedge.graphs.ids import Epoch
from bench.measuring import Case, Samples, interleaved
from bench.ours import BenchError, observe, running
from bench.recover import wait_for

LIMITS = {"uncut": 0.97, "block_us": 1 / 3}
ROWS = 10_000_000
SECONDS = 5.0
WARM_UP_S = 1.0
CHANGING = 100
CHUNK_ROWS = 32_768
CUTS_BEFORE = 3
"""The first cut whose base has all rows is among these."""
CAPTURES, BATCHES, BATCH_ROWS = 9, 40, 1_000
COUNTS = Table(key={"key": "int64"}, columns={"count": "int64"})


class Counts:
    """How often each key has come."""

    table = COUNTS

    def on_batch(self, ctx: Any, rows: dict[str, Any]) -> None:
        """Count the rows."""
        ctx.table.combine(np.add, ctx.table.rows(rows["key"]), count=1)


def keys_of(rows: int, batch: dict[str, Any]) -> dict[str, Any]:
    """The keys of a chunk: all of them in turn, and then random ones of those that change."""
    (chunk,) = batch["chunk"].tolist()
    first = chunk * CHUNK_ROWS
    if first < rows:
        return {"key": np.arange(first, min(first + CHUNK_ROWS, rows))}
    return {"key": np.random.default_rng(chunk).integers(0, max(1, rows // CHANGING), CHUNK_ROWS) * CHANGING}


def make_flow(rows: int) -> Flow:
    """Counts the keys in a table."""
    flow = Flow("table")
    chunks = flow.read(Generate(lambda position: {"chunk": position}), name="chunks")
    keys = chunks.map_batches(partial(keys_of, rows), batch_format="numpy", batch_size=1, name="keys")
    keys.key_by("key").process(Counts, batch_format="numpy", name="counts").write(Collect(), name="none")
    return flow


def speed(rows: int, every: float | None, seconds: float) -> float:
    """Millions of rows a second, once all rows are there and cuts hold what changed."""
    with running(make_flow(rows), every, {"parallelism": 2, "actors": "slice"}) as job:
        wait_for(lambda: job.status().total().records > 2 * rows, "all rows are there")
        before = job.status().snapshots
        if every is not None:
            wait_for(lambda: job.status().snapshots >= before + CUTS_BEFORE, "cuts hold what changed")
        window = observe(job, WARM_UP_S, seconds)
    if every is not None and window.epochs < window.seconds / every / 2:
        raise BenchError(f"only {window.epochs} cuts in {window.seconds:.1f} s")
    return window.records_per_s / 1e6


class Stalled:
    """A table in this process, of which cuts are captured while random rows change."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows = rows
        self._random = np.random.default_rng(seed)
        self._table = TableState("counts", COUNTS)
        for first in range(0, rows, CHUNK_ROWS):
            self._table.rows(np.arange(first, min(first + CHUNK_ROWS, rows)))
        self._epoch = 0

    def stall_us(self) -> float:
        """For how long a cut holds up the work: the median of several."""
        return median(self._stall_us() for _ in range(CAPTURES))

    def block_us(self) -> float:
        """The time in which a cut takes the rows of one block."""
        blocks = self._random.integers(0, max(1, self._rows // BLOCK_ROWS), BATCHES).tolist()
        return median(_spent_us(partial(self._table.block, block, BLOCK_ROWS)) for block in blocks)

    def _stall_us(self) -> float:
        usual_us = median(self._batch_us() for _ in range(BATCHES))
        self._epoch += 1
        captures: list[TableCapture] = []
        captured_us = _spent_us(lambda: captures.append(self._table.capture(Epoch(self._epoch))))
        first_us = self._batch_us()
        captures[0].release()
        return captured_us + first_us - usual_us

    def _batch_us(self) -> float:
        keys = self._random.integers(0, self._rows, BATCH_ROWS)
        return _spent_us(lambda: self._table.combine(np.add, self._table.rows(keys), count=1))


def _spent_us(work: Callable[[], Any]) -> float:
    began_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began_ns) / 1e3


def measure(rows: int, seconds: float, seed: int, turns: int) -> dict[str, Samples]:
    """Measure all of it in turns."""
    stalled = Stalled(rows, seed)
    cases: dict[str, Case] = {
        "cut": lambda: speed(rows, 1.0, seconds),
        "uncut": lambda: speed(rows, None, seconds),
        "stall_us": stalled.stall_us,
        "block_us": stalled.block_us,
    }
    return interleaved(cases, turns, cold=dict.fromkeys(("cut", "uncut"), lambda: 0.0))
