"""The lowest value spreads over a graph, by two Ray actors by hand, whose arrays travel through Ray.

An actor only follows the edges of vertices that have changed, unless many have. The driver calls both, hands on the
results by reference, and asks for the numbers of changed vertices, by which it knows the end.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from backedge.engine.on_ray.cluster import ray
from bench.graph_input import Homes, read_graph, read_weights
from bench.workloads import SpreadWorkload

FEW = 8

Message = tuple[Any, Any]
"""Rows and values; the rows are None for all of them."""


class Edges:
    """The edges from the vertices of one actor to those of one actor."""

    def __init__(self, sources: Any, targets: Any, weights: Any, vertices: int) -> None:
        self.by_source = np.argsort(sources, kind="stable")
        self.targets, self.weights = targets[self.by_source], weights[self.by_source]
        self.degrees = np.bincount(sources, minlength=vertices)
        self.ends = np.cumsum(self.degrees)
        order = np.lexsort((sources, targets))
        self.dense_sources, self.dense_weights = sources[order], weights[order]
        self.rows, self.starts = np.unique(targets[order], return_index=True)

    def sent(self, values: Any, changed: Any) -> Message:
        """What these vertices send, combined by target."""
        counts = self.degrees[changed]
        total = int(counts.sum())
        if total * FEW > len(self.targets):
            carried = values[self.dense_sources] + self.dense_weights
            return self.rows, np.minimum.reduceat(carried, self.starts)
        places = np.arange(total) + np.repeat(self.ends[changed] - np.cumsum(counts), counts)
        return self.targets[places], np.repeat(values[changed], counts) + self.weights[places]


class Part:
    """One of the two actors."""

    def __init__(self, index: int, workload: SpreadWorkload) -> None:
        self.index = index
        sources, targets = read_graph(workload.folder)
        is_weighted = workload.root is not None
        weights = read_weights(workload.folder) if is_weighted else np.zeros(len(sources))
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
        weights = np.concatenate([weights, weights])
        homes = Homes(workload.vertices, 2)
        own = homes.tasks[sources] == index
        sources, targets, weights = homes.rows[sources[own]], targets[own], weights[own]
        self.vertices = homes.pages[index]
        self.edges: list[Edges] = []
        for task in range(2):
            there = homes.tasks[targets] == task
            self.edges.append(Edges(sources[there], homes.rows[targets[there]], weights[there], len(self.vertices)))
        if workload.root is None:
            self.lowest = self.vertices.astype(np.float64)
            self.changed = np.arange(len(self.vertices))
        else:
            self.lowest = np.where(self.vertices == workload.root, 0.0, np.inf)
            self.changed = np.flatnonzero(self.vertices == workload.root)
        self.kept: Any = None

    def start(self) -> tuple[Any, int]:
        """What goes to the other actor, and how many vertices have changed."""
        self.kept = self.edges[self.index].sent(self.lowest, self.changed)
        return self.edges[1 - self.index].sent(self.lowest, self.changed), len(self.changed)

    def step(self, theirs: Message) -> tuple[Any, int]:
        """A round."""
        changed: list[Any] = []
        for rows, values in (self.kept, theirs):
            before = self.lowest[rows]
            np.minimum.at(self.lowest, rows, values)
            changed.append(rows[self.lowest[rows] != before])
        self.changed = np.unique(np.concatenate(changed))
        return self.start()

    def values(self) -> Any:
        """The values of its vertices."""
        return self.lowest


def run(workload: SpreadWorkload) -> float:
    """Millions of edges a second."""
    part = ray.remote(Part).options(num_cpus=0)
    parts = [part.remote(index, workload) for index in range(2)]
    try:
        (own, own_count), (other, other_count) = (part.start.options(num_returns=2).remote() for part in parts)
        began_s, rounds = 0.0, 0
        while sum(ray.get([own_count, other_count])):
            (own, own_count), (other, other_count) = (
                part.step.options(num_returns=2).remote(theirs)
                for part, theirs in zip(parts, (other, own), strict=True)
            )
            if not rounds:
                ray.get([own_count, other_count])
                began_s = time.perf_counter()
            rounds += 1
        seconds = time.perf_counter() - began_s
        values = np.empty(workload.vertices)
        for vertices, one in zip(Homes(workload.vertices, 2).pages, parts, strict=True):
            values[vertices] = ray.get(one.values.remote())
        np.save(workload.result("ray"), values)
        return workload.edges / seconds / 1e6
    finally:
        for one in parts:
            ray.kill(one)
