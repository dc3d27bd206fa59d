"""A keyed state of opaque values of 1 KB in two tasks on Ray: what a cut of all of it takes, and the peak of memory.

The values cannot be compressed. Once all keys have one, the source reads a few of the keys again and again, and the cut
is taken meanwhile: the first of the run, which holds everything. The peak is that of each task's process, from its
start to the end of the cut; and that of a process that takes the cut back, which then takes another one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

from backedge import Collect, Flow, Poll
from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from bench.measuring import warm_page_cache
from bench.ours import BenchError, begin, peak_mb
from bench.recover import wait_for
from bench.restore import NO_CUTS_S
from bench.workloads import OpaqueWorkload, opaque_value

JOB = "opaque"
TASKS = 2
READ_AT_ONCE = 2_000
READ_AGAIN = 100
EVERY_S = 0.02
OPTIONS: dict[str, Any] = {"parallelism": TASKS, "actors": "slice"}


def cut(workload: OpaqueWorkload) -> tuple[float, float]:
    """The seconds that a cut of everything takes, and the peak memory of the larger task in MB, restore included."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        seconds, cut_mb = _cut(workload, folder, OPTIONS)
        _, restored_mb = _cut(workload, folder, {**OPTIONS, "resume": "latest"})
    return seconds, max(cut_mb, restored_mb)


def _cut(workload: OpaqueWorkload, folder: str, options: dict[str, Any]) -> tuple[float, float]:
    job = begin(make_flow(workload), folder, NO_CUTS_S, options)
    try:
        before = 0 if "resume" in options else 2 * workload.keys
        wait_for(lambda: job.status().total().records > before + READ_AGAIN, "all keys have a value")
        warm_page_cache(folder, workload.mb)
        began_s = time.monotonic()
        epoch = Epoch(job.cut())
        took_s = time.monotonic() - began_s
        size_mb = CutStore(folder, JOB).manifest_of(epoch).size / 1e6
        if size_mb < workload.mb:
            raise BenchError(f"a cut of {workload.mb:.0f} MB takes {size_mb:.0f} MB on disk: it lacks values")
        return took_s, max(map(peak_mb, job.status().pids.values()))
    finally:
        job.cancel()


def make_flow(workload: OpaqueWorkload) -> Flow:
    """A value for every key, which stays."""
    keys, seed = workload.keys, workload.seed

    def read(position: int) -> tuple[Sequence[int], int]:
        if position < keys:
            after = min(position + READ_AT_ONCE, keys)
            return range(position, after), after
        # A read that finds nothing pauses the source.
        return range(READ_AGAIN if position % 2 else 0), position + 1

    def keep(value: bytes, key: int) -> tuple[bytes, int]:
        return value or opaque_value(key, seed), key

    flow = Flow(JOB)
    kept = flow.read(Poll(read, every=EVERY_S, start=0), name="keys").key_by(lambda key: key)
    stored = kept.stateful_map(keep, initial=b"", name="values")
    stored.filter(lambda key: key < 0, name="chosen").write(Collect(), name="none")
    return flow
