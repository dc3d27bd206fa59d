"""Components and shortest ways in one process, by scipy's compiled algorithms. Building the matrix is not timed."""

from __future__ import annotations

import importlib
import time

import numpy as np

from bench.graph_input import matrix, read_graph, read_weights
from bench.workloads import SpreadWorkload


def run(workload: SpreadWorkload) -> float:
    """Millions of edges a second."""
    graphs = importlib.import_module("scipy.sparse.csgraph")
    sources, targets = read_graph(workload.folder)
    size = workload.vertices
    weights = np.ones(len(sources)) if workload.root is None else read_weights(workload.folder)
    edges = matrix(sources, targets, weights, (size, size))
    began_s = time.perf_counter()
    if workload.root is None:
        _, components = graphs.connected_components(edges, directed=False)
        values = np.full(size, np.inf)
        np.minimum.at(values, components, np.arange(size, dtype=np.float64))
        values = values[components]
    else:
        values = graphs.dijkstra(edges, directed=False, indices=workload.root)
    seconds = time.perf_counter() - began_s
    np.save(workload.result("scipy"), values)
    return workload.edges / seconds / 1e6
