"""PageRank in one process: a sparse matrix times the ranks, once a round."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.graph_input import Block, Homes, next_ranks, read_graph
from bench.workloads import RankWorkload


def run(workload: RankWorkload) -> float:
    """Millions of edges a second."""
    seconds, ranks = _timed(workload)
    np.save(workload.result("scipy"), ranks)
    return workload.edges * workload.rounds / seconds / 1e6


def ranks(workload: RankWorkload) -> Any:
    """The ranks after all rounds."""
    return _timed(workload)[1]


def _timed(workload: RankWorkload) -> tuple[float, Any]:
    sources, targets = read_graph(workload.folder)
    block = Block(0, Homes(workload.pages, 1), sources, targets)
    began_s = 0.0
    for round in range(workload.warm_up_rounds + workload.rounds):
        if round == workload.warm_up_rounds:
            began_s = time.perf_counter()
        block.ranks = next_ranks(block.shares()[0])
    return time.perf_counter() - began_s, block.ranks
