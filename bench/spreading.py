"""What `components` and `paths` share: the lowest value spreads over a graph, ours beside the peers.

Parallelism 2, a process per slice, a cut every second. The clock starts after the first round, in which vertices become
known, and stops in the last one, in which nothing changes. All cases must end with the same values.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.graph_input import read_edges
from bench.measuring import Report, beside_peers, ours_and_peers
from bench.options import Options
from bench.ours import BenchError, run_to_end
from bench.peers import peers
from bench.workloads import SpreadWorkload
from engine.files.arrow import arrow, parquet
from engine.files.file_formats import Parquet
from graphs import Flow, VertexProgram, Vertices

clock: dict[str, float] = {}
"""When the clock of this process started, and the time of the last round."""

Peers = Mapping[str, Callable[[SpreadWorkload], float]]


def run(
    bench: str, workload: SpreadWorkload, known: Peers, limits: Mapping[str, float], options: Options, **more: Any
) -> Report:
    """Measure ours and the peers in turns."""
    cuts: list[int] = []
    found = ours_and_peers(lambda: measure(workload, cuts), workload, peers(known, options.peer), options.turns)
    check_values(workload, "ours", *(name for name in known if options.peer is None))
    figures = {**more, "edges": workload.edges, "cuts_min": min(cuts[-options.turns :])}
    return beside_peers(bench, "M edges/s", found, limits, is_rate=True, more=figures)


def check_values(workload: SpreadWorkload, first: str, *others: str) -> None:
    """Raise unless all have come to the same values."""
    values = np.load(workload.result(first))
    for other in others:
        differing = int(np.count_nonzero(values != np.load(workload.result(other))))
        if differing:
            raise BenchError(f"{differing} values of {first} and {other} differ: one of them is wrong")


def measure(workload: SpreadWorkload, cuts: list[int]) -> float:
    """Millions of edges a second, at the slower task."""
    output = tempfile.mkdtemp(dir=workload.folder)
    result = run_to_end(make_flow(workload, f"{output}/values"), every=1.0, parallelism=2, actors="slice")
    cuts.append(result.snapshots)
    rows = parquet().read_table(f"{output}/values")
    values = np.empty(workload.vertices)
    values[rows["vertex"].to_numpy()] = rows["lowest"].to_numpy()
    np.save(workload.result("ours"), values)
    return workload.edges / arrow().compute.max(rows["seconds"]).as_py() / 1e6


def make_flow(workload: SpreadWorkload, output: str) -> Flow:
    """Reads the edges, lets the lowest values spread, and writes them."""
    is_weighted = workload.root is not None
    flow = Flow("spreading")
    edges = read_edges(flow, workload.folder, workload.edges, is_weighted=is_weighted)
    weight = "weight" if is_weighted else None
    program = Shortest if is_weighted else Lowest
    values = flow.vertex_program(program, edges, undirected=True, weight=weight, name="lowest", root=workload.root or 0)
    values.map_batches(with_seconds, batch_format="numpy", name="seconds").write(Parquet(output), name="values")
    return flow


def with_seconds(batch: dict[str, Any]) -> dict[str, Any]:
    """How long the rounds took in this process."""
    return {**batch, "seconds": np.full(len(batch["vertex"]), clock["now_s"] - clock["began_s"])}


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
        clock["now_s"] = time.perf_counter()
        if vertices.round == 1:
            clock["began_s"] = clock["now_s"]
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
        return sent + weights
