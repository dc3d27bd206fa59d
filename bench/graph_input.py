"""R-MAT graphs and grids, their blocks by task, and the step of PageRank that ours and the peers share.

scipy is imported by name: only this benchmark needs it, and `make setup` installs it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge import Flow, Items, Stream, tasks_of_keys

EDGES_PER_PAGE = 16
EDGES_AT_ONCE = 1_000_000
DAMPING = 0.85
QUADRANTS = (0.57, 0.76, 0.95)
"""The cumulated chances of the quadrants of R-MAT, as in Graph 500."""

Numbers = npt.NDArray[Any]


def write_graph(folder: str, scale: int, seed: int) -> int:
    """Write the distinct edges of a graph with 2**scale pages; return their number.

    Every page links to the next one as well, so that none is without links.
    """
    pages, generator = 1 << scale, np.random.default_rng(seed)
    edges = np.zeros(EDGES_PER_PAGE * pages, np.int64)
    for _ in range(scale):
        chance = generator.random(len(edges))
        first, second, third = QUADRANTS
        source = chance >= second
        target = ((chance >= first) & ~source) | (chance >= third)
        edges = edges * 4 + source * 2 + target
    sources, targets = _every_second_bit(edges >> 1, scale), _every_second_bit(edges, scale)
    every = np.arange(pages)
    both = np.unique(np.concatenate([sources * pages + targets, every * pages + (every + 1) % pages]))
    np.save(Path(folder) / "sources.npy", (both // pages).astype(np.int32))
    np.save(Path(folder) / "targets.npy", (both % pages).astype(np.int32))
    return len(both)


def write_grid(folder: str, side: int, seed: int) -> int:
    """Write the edges of a grid, to the right and down, with weights from 1 to 10; return their number."""
    places = np.arange(side * side, dtype=np.int32).reshape(side, side)
    np.save(Path(folder) / "sources.npy", np.concatenate([places[:, :-1].ravel(), places[:-1].ravel()]))
    np.save(Path(folder) / "targets.npy", np.concatenate([places[:, 1:].ravel(), places[1:].ravel()]))
    count = 2 * side * (side - 1)
    weights = np.random.default_rng(seed).integers(1, 11, count).astype(np.float64)
    np.save(Path(folder) / "weights.npy", weights)
    return count


def read_edges(flow: Flow, folder: str, edges: int, *, is_weighted: bool = False) -> Stream[Any]:
    """A stream of the edges that were written, as columns of many edges at a time."""
    columns = {"source": "sources", "target": "targets", **({"weight": "weights"} if is_weighted else {})}

    def edges_from(batch: dict[str, Any]) -> dict[str, Any]:
        parts = [slice(start, start + EDGES_AT_ONCE) for start in batch["start"].tolist()]
        files = {name: np.load(Path(folder) / f"{file}.npy", mmap_mode="r") for name, file in columns.items()}
        return {name: np.concatenate([column[part] for part in parts]) for name, column in files.items()}

    starts = flow.read(Items([{"start": start} for start in range(0, edges, EDGES_AT_ONCE)]), name="starts")
    return starts.map_batches(edges_from, batch_format="numpy", batch_size=1, name="edges")


def read_weights(folder: str) -> Numbers:
    """The weights of the edges."""
    return np.load(Path(folder) / "weights.npy")


def read_graph(folder: str) -> tuple[Numbers, Numbers]:
    """The sources and targets of the edges."""
    return np.load(Path(folder) / "sources.npy"), np.load(Path(folder) / "targets.npy")


def _every_second_bit(numbers: Numbers, count: int) -> Numbers:
    found = np.zeros(len(numbers), np.int64)
    for bit in range(count):
        found |= ((numbers >> (2 * bit)) & 1) << bit
    return found


def matrix(rows: Numbers, columns: Numbers, weights: Numbers, shape: tuple[int, int]) -> Any:
    """A sparse matrix by rows."""
    return importlib.import_module("scipy.sparse").csr_matrix((weights, (rows, columns)), shape=shape)


def next_ranks(shares: Numbers) -> Numbers:
    """The ranks of pages that were given these shares."""
    return 1 - DAMPING + DAMPING * shares


class Homes:
    """The task of each page among `count`, as `key_by` gives it, and its row there."""

    def __init__(self, pages: int, count: int) -> None:
        self.tasks = tasks_of_keys(np.arange(pages), count)
        self.pages = [np.flatnonzero(self.tasks == task) for task in range(count)]
        self.rows = np.empty(pages, np.int32)
        for own in self.pages:
            self.rows[own] = np.arange(len(own))


class Block:
    """The ranks of the pages of one task, and their links as a matrix to each task."""

    def __init__(self, index: int, homes: Homes, sources: Numbers, targets: Numbers) -> None:
        """Takes the links of its pages."""
        own = homes.rows[sources]
        degrees = np.bincount(own, minlength=len(homes.pages[index]))
        self.ranks = np.ones(len(degrees))
        self.parts: list[Any] = []
        for task, pages in enumerate(homes.pages):
            there = homes.tasks[targets] == task
            weights = 1.0 / degrees[own[there]]
            self.parts.append(matrix(homes.rows[targets[there]], own[there], weights, (len(pages), len(degrees))))

    def shares(self) -> list[Numbers]:
        """What the pages of each task are given by these."""
        return [part @ self.ranks for part in self.parts]
