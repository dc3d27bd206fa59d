"""PageRank by two Ray actors by hand: sparse blocks, and shares that travel as arrays through Ray.

The driver calls both and hands on the results by reference, as one writes it for any number of actors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from backedge.engine.on_ray.cluster import ray
from bench.graph_input import Block, Homes, next_ranks, read_graph
from bench.workloads import RankWorkload


class Part:
    """One of the two actors."""

    def __init__(self, index: int, workload: RankWorkload) -> None:
        sources, targets = read_graph(workload.folder)
        homes = Homes(workload.pages, 2)
        own = homes.tasks[sources] == index
        self.index = index
        self.block = Block(index, homes, sources[own], targets[own])
        self.kept: Any = None

    def start(self) -> Any:
        """The shares of the first round, those for the other actor."""
        shares = self.block.shares()
        self.kept = shares[self.index]
        return shares[1 - self.index]

    def step(self, theirs: Any) -> Any:
        """A round: the shares of the next one for the other actor."""
        self.block.ranks = next_ranks(self.kept + theirs)
        return self.start()

    def ranks(self) -> Any:
        """The ranks of its pages."""
        return self.block.ranks


def run(workload: RankWorkload) -> float:
    """Millions of edges a second."""
    part = ray.remote(Part).options(num_cpus=0)
    parts = [part.remote(index, workload) for index in range(2)]
    try:
        own, other = (part.start.remote() for part in parts)
        ray.get([own, other])
        began_s = 0.0
        for round in range(workload.warm_up_rounds + workload.rounds):
            if round == workload.warm_up_rounds:
                began_s = time.perf_counter()
            own, other = parts[0].step.remote(other), parts[1].step.remote(own)
            # Both are awaited, as somebody must who decides whether there is another round.
            ray.wait([own, other], num_returns=2, fetch_local=False)
        seconds = time.perf_counter() - began_s
        ranks = np.empty(workload.pages)
        for pages, one in zip(Homes(workload.pages, 2).pages, parts, strict=True):
            ranks[pages] = ray.get(one.ranks.remote())
        np.save(workload.result("ray"), ranks)
        return workload.edges * workload.rounds / seconds / 1e6
    finally:
        for one in parts:
            ray.kill(one)
