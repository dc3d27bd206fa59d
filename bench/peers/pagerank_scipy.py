"""PageRank in one process: a sparse matrix times the ranks, once a round."""

from __future__ import annotations

import time

import numpy as np

from bench.graph_input import Block, Homes, next_ranks, read_graph
from bench.workloads import RankWorkload


def run(workload: RankWorkload) -> float:
    """Millions of edges a second."""
    sources, targets = read_graph(workload.folder)
    block = Block(0, Homes(workload.pages, 1), sources, targets)
    began_s = 0.0
    for round in range(workload.warm_up_rounds + workload.rounds):
        if round == workload.warm_up_rounds:
            began_s = time.perf_counter()
        block.ranks = next_ranks(block.shares()[0])
    seconds = time.perf_counter() - began_s
    np.save(workload.result("scipy"), block.ranks)
    return workload.edges * workload.rounds / seconds / 1e6
