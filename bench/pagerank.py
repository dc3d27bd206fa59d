"""PageRank on an R-MAT graph, as a vertex program, with a cut every second.

Parallelism 2, a process per slice. Loading is not measured: the clock starts after the warm-up rounds. Cuts hold links
and ranks. All cases must end with the same ranks.

Peers: scipy, one process; ray, two Ray actors by hand with sparse blocks, whose arrays travel through Ray; spark, joins
and sums on frames, at scales up to 18 and for fewer rounds, because it takes a second for each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from backedge import Flow, VertexProgram, Vertices
from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.io.files.file_formats import Parquet
from bench.graph_input import next_ranks, read_edges, write_graph
from bench.measuring import Report, Samples, beside_peers, ours_and_peers
from bench.options import Options
from bench.ours import BenchError, run_to_end
from bench.peers import pagerank_ray, pagerank_scipy, pagerank_spark, peers
from bench.session import session
from bench.workloads import RankWorkload

SCALE = 18
SPARK_SCALE_MAX = 18
LIMITS: Mapping[int, Mapping[str, float]] = {18: {"ray": 1.2, "spark": 50}, 20: {"ray": 1.1, "scipy": 1.0}}
"""Scale -> the least ratios; other scales have none."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    scale = options.scale or SCALE
    runs = {"ray": pagerank_ray.run, "scipy": pagerank_scipy.run}
    if scale <= SPARK_SCALE_MAX:
        runs["spark"] = pagerank_spark.run
    known = peers(runs, options.peer)
    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder, session():
        edges = write_graph(folder, scale, options.seed)
        # Long enough for some cuts, at the speed that this should have.
        rounds = max(2, round((options.seconds or 4.0) * 3e8 / edges))
        workload = RankWorkload(folder=folder, pages=1 << scale, edges=edges, rounds=rounds)
        cuts: list[int] = []
        found = ours_and_peers(lambda: measure(workload, cuts), workload, known, options.turns)
        check_ranks(workload, "ours", *(name for name in ("ray", "scipy") if options.peer is None))
    return compare(found, scale, edges, min(cuts[-options.turns :]))


def compare(found: dict[str, Samples], scale: int, edges: int, cuts: int) -> Report:
    """How many times faster ours is than the peers."""
    more = {"scale": scale, "edges": edges, "cuts_min": cuts}
    return beside_peers("pagerank", "M edges/s", found, LIMITS.get(scale, {}), is_rate=True, more=more)


def check_ranks(workload: RankWorkload, first: str, *others: str) -> None:
    """Raise unless all have computed the same ranks."""
    ranks = np.load(workload.result(first))
    for other in others:
        theirs = np.load(workload.result(other))
        if not np.allclose(ranks, theirs, rtol=1e-9, atol=0):
            worst = float(np.abs(ranks - theirs).max())
            raise BenchError(f"the ranks of {first} and {other} differ by up to {worst}: one of them is wrong")


def measure(workload: RankWorkload, cuts: list[int]) -> float:
    """Millions of edges a second, from the end of the warm-up to the last round, at the slower task."""
    output = tempfile.mkdtemp(dir=workload.folder)
    result = run_to_end(make_flow(workload, f"{output}/ranks"), every=1.0, parallelism=2, actors="slice")
    cuts.append(result.snapshots)
    rows = parquet().read_table(f"{output}/ranks")
    ranks = np.empty(workload.pages)
    ranks[rows["vertex"].to_numpy()] = rows["rank"].to_numpy()
    np.save(workload.result("ours"), ranks)
    return workload.edges * workload.rounds / arrow().compute.max(rows["seconds"]).as_py() / 1e6


def make_flow(workload: RankWorkload, output: str) -> Flow:
    """Reads the links, ranks the pages, and writes their ranks."""
    flow = Flow("pagerank")
    links = read_edges(flow, workload.folder, workload.edges)
    rounds = workload.warm_up_rounds + workload.rounds
    ranks = flow.vertex_program(
        Rank, links, name="rank", rounds=rounds, warm_up_rounds=workload.warm_up_rounds, last_round=rounds
    )
    ranks.write(Parquet(output), name="ranks")
    return flow


class Rank(VertexProgram):
    """Ranks, and at the end how long it took since the warm-up."""

    def __init__(self, warm_up_rounds: int, last_round: int) -> None:
        self.warm_up_rounds = warm_up_rounds
        self.last_round = last_round
        self.began_s = 0.0

    def start(self, vertices: Vertices) -> dict[str, Any]:
        """Every page has rank 1."""
        return {"rank": np.ones(len(vertices))}

    def send(self, vertices: Vertices) -> Any:
        """A page divides its rank among its links."""
        return vertices["rank"] / vertices.degrees

    def apply(self, vertices: Vertices, received: Any) -> dict[str, Any]:
        """The next rank."""
        if vertices.round == self.warm_up_rounds:
            self.began_s = time.perf_counter()
        ranks = {"rank": next_ranks(received)}
        if vertices.round == self.last_round:
            ranks["seconds"] = np.full(len(vertices), time.perf_counter() - self.began_s)
        return ranks
