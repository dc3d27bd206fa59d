"""What `components` and `paths` share: the lowest value spreads over a graph, ours beside the peers.

Parallelism 2, a process per slice, a cut every second. The clock starts after the first round, in which vertices become
known, and stops in the last one, in which nothing changes. Without rounds, it starts with the first values that are
sent and stops with the last ones. All cases must end with the same values.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from backedge import Flow, VertexProgram, Vertices
from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.io.files.file_formats import Parquet
from bench.graph_input import read_edges
from bench.measuring import Case, Report, beside_peers, interleaved
from bench.options import Options
from bench.ours import BenchError, run_to_end
from bench.peers import peers
from bench.workloads import SpreadWorkload

clock: dict[str, float] = {}
"""When the clock of this process started, the time of the last step, and its round."""

work = {"followed": 0}
"""How many values went along an edge in this process, if edges have weights."""

Peers = Mapping[str, Callable[[SpreadWorkload], float]]


@dataclass
class Counts:
    """What was counted in each turn: cuts, and the work of ours, in values that went along an edge."""

    cuts: list[int] = field(default_factory=list[int])
    followed: list[int] = field(default_factory=list[int])


def run(
    bench: str, workload: SpreadWorkload, known: Peers, limits: Mapping[str, float], options: Options, **more: Any
) -> Report:
    """Measure ours, in rounds and free-running, and the peers in turns."""
    rounds, free = Counts(), Counts()
    cases: dict[str, Case] = {
        "ours": partial(measure, workload, "ours", rounds),
        "free_running": partial(measure, workload, "free_running", free),
    }
    for name, peer in peers(known, options.peer).items():
        cases[name] = partial(peer, workload)
    found = interleaved(cases, options.turns)
    check_values(workload, "ours", "free_running", *(name for name in known if options.peer is None))
    free_running = found.pop("free_running")
    figures: dict[str, Any] = {**more, "edges": workload.edges, "cuts_min": min(rounds.cuts[-options.turns :])}
    figures["free_running_over_rounds"] = round(free_running.over(found["ours"]), 3)
    if workload.root is not None:
        figures["followed"] = {"ours": median(rounds.followed), "free_running": median(free.followed)}
    report = beside_peers(bench, "M edges/s", found, limits, is_rate=True, more=figures)
    return replace(report, figures={"ours": found["ours"], "free_running": free_running})


def check_values(workload: SpreadWorkload, first: str, *others: str) -> None:
    """Raise unless all have come to the same values."""
    values = np.load(workload.result(first))
    for other in others:
        differing = int(np.count_nonzero(values != np.load(workload.result(other))))
        if differing:
            raise BenchError(f"{differing} values of {first} and {other} differ: one of them is wrong")


def measure(workload: SpreadWorkload, case: str, counts: Counts) -> float:
    """Millions of edges a second, at the slower task."""
    output = tempfile.mkdtemp(dir=workload.folder)
    flow = make_flow(workload, f"{output}/values", free_running=case == "free_running")
    result = run_to_end(flow, every=1.0, parallelism=2, actors="slice")
    rows = parquet().read_table(f"{output}/values")
    values = np.empty(workload.vertices)
    values[rows["vertex"].to_numpy()] = rows["lowest"].to_numpy()
    np.save(workload.result(case), values)
    followed = rows.group_by("process").aggregate([("followed", "max")])
    counts.cuts.append(result.snapshots)
    counts.followed.append(arrow().compute.sum(followed["followed_max"]).as_py())
    return workload.edges / arrow().compute.max(rows["seconds"]).as_py() / 1e6


def make_flow(workload: SpreadWorkload, output: str, *, free_running: bool = False) -> Flow:
    """Reads the edges, lets the lowest values spread, and writes them."""
    is_weighted = workload.root is not None
    flow = Flow("spreading")
    edges = read_edges(flow, workload.folder, workload.edges, is_weighted=is_weighted)
    weight = "weight" if is_weighted else None
    program = Shortest if is_weighted else Lowest
    values = flow.vertex_program(
        program,
        edges,
        name="lowest",
        undirected=True,
        weight=weight,
        free_running=free_running,
        root=workload.root or 0,
    )
    values.map_batches(with_work, batch_format="numpy", name="work").write(Parquet(output), name="values")
    return flow


def with_work(batch: dict[str, Any]) -> dict[str, Any]:
    """How long it took in this process, and how much work it was."""
    counted = {"seconds": clock["now_s"] - clock["began_s"], "followed": work["followed"], "process": os.getpid()}
    return batch | {name: np.full(len(batch["vertex"]), figure) for name, figure in counted.items()}


class Lowest(VertexProgram):
    """Every vertex starts with its own number."""

    combine, best = "min", "lowest"

    def __init__(self, root: int) -> None:
        self.root = root

    def start(self, vertices: Vertices) -> dict[str, Any]:
        """Its own number."""
        return {"lowest": vertices.ids.astype(np.float64)}

    def send(self, vertices: Vertices) -> Any:
        """The lowest number. Looks at the clock."""
        now_s = clock["now_s"] = time.perf_counter()
        # A round may have several steps.
        if "began_s" not in clock or clock["round"] < vertices.round == 1:
            clock["began_s"] = now_s
        clock["round"] = vertices.round
        return vertices["lowest"]


class Shortest(Lowest):
    """Only the root has a value."""

    def start(self, vertices: Vertices) -> dict[str, Any]:
        """No vertex but the root has a way."""
        is_root = vertices.ids == self.root
        vertices.active = is_root
        return {"lowest": np.where(is_root, 0.0, np.inf)}

    def along(self, sent: Any, weights: Any) -> Any:
        """The length at the end of an edge."""
        work["followed"] += len(sent)
        return sent + weights
