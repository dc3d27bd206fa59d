"""Weights that a loop publishes in each round and four workers read, beside a segment of shared memory by hand.

The learner changes 20 MB of weights and publishes them, each worker sums them, and when all have, the next round
begins. Ours keeps the versions in a cut every second, and the segments keep nothing.

Also measured: ours without cuts, and with weights that are one number. Memory is what a worker has for itself, beyond
that of a worker whose weights are one number.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from backedge import Collect, Context, Flow, Items, Process
from bench.measuring import Limit, Report, Samples, beside_peers, interleaved
from bench.options import Options
from bench.ours import run_to_end
from bench.peers import peers, versions_segment
from bench.session import session
from bench.workloads import VersionsWorkload

LIMITS = {"segment": 0.6}
MORE_MB_MAX = 30.0

Told = tuple[int, float, float]


def run(options: Options) -> Report:
    """Measure ours and the segment in turns, and ours without the weights for its memory."""
    workload = VersionsWorkload(seconds=options.seconds or 5.0)
    known = peers({"segment": versions_segment.run}, options.peer)
    private: dict[str, list[float]] = {}

    def measure(name: str, values: int, every: float | None = 1.0) -> float:
        ms, mb = measured(workload, values, every)
        private.setdefault(name, []).append(mb)
        return ms

    with session():
        found = interleaved(
            {
                "ours": lambda: measure("ours", workload.values),
                "segment": lambda: known["segment"](workload),
                "without_cuts": lambda: measure("without_cuts", workload.values, None),
                "number": lambda: measure("number", 1),
            },
            options.turns,
        )
    return compare(found, median(private["ours"]) - median(private["number"]))


def compare(found: dict[str, Samples], more_mb: float) -> Report:
    """How many times faster ours is than the segment, and whether a worker has a copy of the weights for itself."""
    report = beside_peers("versions", "ms a round", found, LIMITS, is_rate=False, more={"more_mb": round(more_mb, 1)})
    memory = Limit(f"more_mb: {more_mb:.1f}, at most {MORE_MB_MAX:.0f}", more_mb <= MORE_MB_MAX)
    return replace(report, limits=(*report.limits, memory))


def measured(workload: VersionsWorkload, values: int, every: float | None) -> tuple[float, float]:
    """Milliseconds a round, and the megabytes that a worker has for itself at the end."""
    result = run_to_end(make_flow(workload, values), every=every, parallelism=1, actors="task")
    rounds = result.outputs["rounds"]
    return fmean(ms for ms, _ in rounds), fmean(mb for _, mb in rounds)


def make_flow(workload: VersionsWorkload, values: int) -> Flow:
    flow = Flow("versions")
    weights = flow.versions("weights", keep=workload.keep)
    back = flow.loop("back", of=Told)

    class Learn(Process[Any, Any]):
        """Publishes when all workers have read what was published before."""

        def __init__(self) -> None:
            self.weights = np.zeros(values)

        def on_record(self, ctx: Context[Any], value: Any) -> None:
            waiting, rounds, began_s = ctx.state.get((0, -workload.warm_up_rounds, 0.0))
            if waiting > 1:
                ctx.state.set((waiting - 1, rounds, began_s))
                return
            now_s = time.perf_counter()
            if rounds > 0 and now_s - began_s >= workload.seconds:
                ctx.emit((-1, (now_s - began_s) / rounds * 1e3))
                return
            self.weights += 1
            ctx.emit((ctx.publish(weights, self.weights), 0.0))
            ctx.state.set((workload.workers, rounds + 1, now_s if rounds == 0 else began_s))

    def work(told: tuple[int, float]) -> tuple[int, float, float]:
        number, ms = told
        return (number, float(weights[number].sum()), 0.0) if number > 0 else (number, ms, private_mb())

    told = flow.read(Items([(0, 0.0, 0.0)]), name="begin").merge(back).process(Learn, name="learn", parallelism=1)
    worked = told.broadcast().map(work, name="work", parallelism=workload.workers)
    again, over = worked.split(lambda read: read[0] > 0, name="again", parallelism=workload.workers)
    back.feed(again)
    over.map(lambda read: read[1:], name="last").write(Collect(), name="rounds")
    return flow


def private_mb() -> float:
    """The memory of this process that no other one shares."""
    found = re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
    return sum(map(int, found)) / 1e3
