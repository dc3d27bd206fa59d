"""PageRank on an R-MAT graph: rounds of `iterate` over sparse blocks, with a cut every second.

Parallelism 2, a process per slice. The links come in as columns, each task keeps the matrix of its pages, and in each
round a task sends one array of shares to each task. Loading is not measured: the clock starts after the warm-up rounds.
The state of the cuts holds links and ranks. All three must end with the same ranks.

Peers: scipy, one process; ray, two Ray actors by hand with the same blocks, whose arrays travel through Ray.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.graph_input import Block, Homes, next_ranks, read_graph, write_graph
from bench.measuring import Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import BenchError, run_to_end
from bench.peers import pagerank_ray, pagerank_scipy, peers
from bench.session import session
from bench.workloads import RankWorkload
from graphs import Collect, Flow, Items, Stream

SCALE = 18
LIMITS: Mapping[int, Mapping[str, float]] = {18: {"ray": 1.2}, 20: {"ray": 1.1, "scipy": 1.0}}
"""Scale -> the least ratios; other scales have none."""
EDGES_AT_ONCE = 1_000_000


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    scale = options.scale or SCALE
    known = peers({"ray": pagerank_ray.run, "scipy": pagerank_scipy.run}, options.peer)
    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder, session():
        edges = write_graph(folder, scale, options.seed)
        # Long enough for some cuts, at the speed that this should have.
        rounds = max(2, round((options.seconds or 4.0) * 3e8 / edges))
        workload = RankWorkload(folder=folder, pages=1 << scale, edges=edges, rounds=rounds)
        cuts: list[int] = []
        cases: dict[str, Callable[[], float]] = {
            "ours": lambda: measure(workload, cuts),
            **{name: lambda run=run: run(workload) for name, run in known.items()},
        }
        found = interleaved(cases, options.turns)
        check_ranks(workload, "ours", *(name for name in known if options.peer is None))
    return compare(found, scale, edges, min(cuts[-options.turns :]))


def compare(found: dict[str, Samples], scale: int, edges: int, cuts: int) -> Report:
    """How many times faster ours is than the peers."""
    others = {name: samples for name, samples in found.items() if name != "ours"}
    ratios = {name: found["ours"].over(samples) for name, samples in others.items()}
    return Report(
        bench="pagerank",
        unit="M edges/s",
        turns=len(found["ours"].figures),
        figures={"ours": found["ours"]},
        peers=others,
        ratios=ratios,
        limits=at_least(ratios, LIMITS.get(scale, {})),
        ours="ours",
        more={"scale": scale, "edges": edges, "cuts_min": cuts},
    )


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
    flow = make_flow(workload)
    result = run_to_end(flow, every=1.0, parallelism=2, actors="slice")
    cuts.append(result.snapshots)
    rows = result.outputs["ranks"]
    ranks = np.empty(workload.pages)
    for pages in Homes(workload.pages, 2).pages:
        ranks[pages] = next(row["ranks"] for row in rows if row["page"] == pages[0])
    np.save(workload.result("ours"), ranks)
    seconds = max(row["seconds"] for row in rows)
    return workload.edges * workload.rounds / seconds / 1e6


def make_flow(workload: RankWorkload) -> Flow:
    """A row that travels is an array of shares for one task; its key is the first page of that task."""
    folder = workload.folder

    def links_from(batch: dict[str, Any]) -> dict[str, Any]:
        parts = [slice(start, start + EDGES_AT_ONCE) for start in batch["start"].tolist()]
        named = zip(("page", "target"), read_graph(folder), strict=True)
        return {name: np.concatenate([edges[part] for part in parts]) for name, edges in named}

    flow = Flow("pagerank")
    starts = flow.read(Items([{"start": start} for start in range(0, workload.edges, EDGES_AT_ONCE)]), name="starts")
    links = starts.map_batches(links_from, batch_format="numpy", batch_size=1, name="links").key_by("page")
    first = [{"page": int(pages[0]), "seconds": 0.0, "shares": [0.0]} for pages in Homes(workload.pages, 2).pages]

    def body(shares: Stream[Any]) -> Stream[Any]:
        inputs = {"links": links, "shares": shares.key_by("page")}
        return flow.process(Rank, batch_format="numpy", workload=workload, name="rank", **inputs)

    rounds = workload.warm_up_rounds + workload.rounds
    shares = flow.iterate(flow.read(Items(first), name="first"), body, rounds=rounds, name="rounds")
    shares.key_by("page").process(AddUp, batch_format="numpy", name="add_up").write(Collect(), name="ranks")
    return flow


class Rank:
    """The matrices of a task's pages, and what these pages are given in the round."""

    inputs = ("links", "shares")

    def __init__(self, workload: RankWorkload) -> None:
        self.homes = Homes(workload.pages, 2)
        self.warm_up_rounds = workload.warm_up_rounds
        self.links: list[tuple[Any, Any]] = []
        self.block: Block | None = None
        self.given: Any = 0.0
        self.began_s = 0.0

    def on_batch(self, ctx: Any, input: str, batch: dict[str, Any]) -> None:
        """Links of own pages, or what these are given."""
        if input == "links":
            self.links.append((batch["page"], batch["target"]))
        elif ctx.round != (0,):
            self.given = self.given + batch["shares"].sum(axis=0)

    def on_round_end(self, ctx: Any) -> None:
        """Compute the ranks, and send each task its shares."""
        if self.block is None:
            sources, targets = (np.concatenate(parts) for parts in zip(*self.links, strict=True))
            self.block, self.links = Block(ctx.task_index, self.homes, sources, targets), []
        else:
            self.block.ranks, self.given = next_ranks(self.given), 0.0
        shares = self.block.shares()
        if ctx.round == (self.warm_up_rounds - 1,):
            self.began_s = time.perf_counter()
        seconds = np.array([time.perf_counter() - self.began_s])
        for pages, part in zip(self.homes.pages, shares, strict=True):
            ctx.emit_batch({"page": pages[:1], "seconds": seconds, "shares": part[np.newaxis]})

    def capture(self) -> Any:
        """Everything."""
        return self.links, self.block, self.given, self.began_s

    def restore(self, state: Any) -> None:
        """Everything."""
        self.links, self.block, self.given, self.began_s = state


class AddUp:
    """The last round: what the pages of a task are given, as ranks."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.seconds = 0.0

    def on_batch(self, ctx: Any, batch: dict[str, Any]) -> None:
        """Shares for the pages of this task."""
        self.seconds = max(self.seconds, float(batch["seconds"].max()))
        for page, shares in zip(batch["page"].tolist(), batch["shares"], strict=True):
            self.given[page] = self.given.get(page, 0.0) + shares

    def on_end(self, ctx: Any) -> None:
        """All shares are here."""
        ctx.emit_batch(
            [{"page": page, "seconds": self.seconds, "ranks": next_ranks(given)} for page, given in self.given.items()]
        )

    def capture(self) -> Any:
        """Everything."""
        return self.given, self.seconds

    def restore(self, state: Any) -> None:
        """Everything."""
        self.given, self.seconds = state
