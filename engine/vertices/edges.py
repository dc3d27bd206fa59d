"""The outgoing edges of a task's vertices, as arrays, and what they carry in one round.

Each distinct target is a row; rows are in the order of key groups, and within a group of vertices. So what is sent to a
task is one slice. The edges of a row are neighbours in memory (CSR), so a full round is one pass over all edges. In a
round with few active vertices only their edges are looked at, through an index by source.

Sums over many edges that carry what was sent are compiled if numba is installed (`edge_sums.py`): that takes a third of
the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.engine.vertices.edge_sums import EDGES_MIN, EdgeSums, can_compile
from backedge.graphs.exact_numbers import check_sums, largest
from backedge.graphs.routing import KEY_GROUPS, key_groups

Array = npt.NDArray[Any]
Along = Callable[[Array, Array | None], Array]

COMBINES: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}

_COMPILED = frozenset(map(np.dtype, (np.float64, np.int64)))

PIECE_EDGES = 65_536
"""The edges that are looked at together. Their values take half a megabyte."""

FEW = 8
"""If the active vertices have less than one edge in so many, only their edges are looked at."""


def identity(combine: str, kind: npt.DTypeLike) -> Any:
    """The value that changes nothing when it is combined with another one."""
    dtype: Any = np.dtype(kind)
    if combine == "sum":
        return dtype.type(0)
    if dtype.kind == "f":
        return dtype.type(np.inf if combine == "min" else -np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.max if combine == "min" else limits.min)


def by_group(groups: Array) -> tuple[Array, Array]:
    """The positions of these key groups in order, and where each group begins there, and the last one ends."""
    order = np.argsort(groups, kind="stable")
    return order, np.searchsorted(groups[order], np.arange(KEY_GROUPS + 1))


def in_group_order(ids: Array) -> tuple[Array, Array]:
    """The vertices in the order of their key groups, each once; and where each group begins, and the last one ends.

    >>> ids, starts = in_group_order(np.array([8, 7, 8]))
    >>> sorted(ids.tolist()), len(starts), int(starts[-1])
    ([7, 8], 129, 2)
    """
    ids = np.unique(ids)
    order, starts = by_group(key_groups(ids))
    return ids[order], starts


def ranges(firsts: Array, counts: Array) -> Array:
    """The numbers in several ranges, one range after the other.

    >>> ranges(np.array([10, 50]), np.array([2, 3])).tolist()
    [10, 11, 50, 51, 52]
    """
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + counts, counts)


class Lookup:
    """Positions of vertices.

    >>> Lookup(np.array([30, 10, 20])).of(np.array([10, 20, 40])).tolist()
    [1, 2, -1]
    """

    def __init__(self, ids: Array) -> None:
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def of(self, wanted: Array) -> Array:
        """The position of each vertex, -1 if it is unknown."""
        if not len(self._sorted):
            return np.full(len(wanted), -1)
        found = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[found] == wanted, self._order[found], -1)


class Marks:
    """Finds the distinct ones of some positions below `count`, in a time that depends on their number alone.

    >>> sorted(Marks(9).distinct(np.array([7, 2, 7])).tolist())
    [2, 7]
    """

    def __init__(self, count: int) -> None:
        # For each position where it occurred last. What an earlier call has left does no harm.
        self._last = np.zeros(count, np.int32)

    def distinct(self, positions: Array) -> Array:
        """The positions, each once, in any order."""
        numbers = np.arange(len(positions), dtype=np.int32)
        self._last[positions] = numbers
        return positions[self._last[positions] == numbers]


class OutEdges:
    """Edges from vertices at these positions to these targets.

    - rows: the distinct targets; one for each edge if nothing is combined. starts: where each key group begins among
      them.
    """

    def __init__(
        self, vertices: int, positions: Array, targets: Array, weights: Array | None, *, combines: bool = True
    ) -> None:
        self.degrees = np.bincount(positions, minlength=vertices)
        if combines:
            self.rows, self.starts = in_group_order(targets)
            row = Lookup(self.rows).of(targets)
            order = np.lexsort((positions, row))
            counts = np.bincount(row, minlength=len(self.rows))
        else:
            groups = key_groups(targets)
            order = np.lexsort((positions, targets, groups))
            self.rows, self.starts = targets[order], np.searchsorted(groups[order], np.arange(KEY_GROUPS + 1))
            counts = np.ones(len(order), np.int64)
        self._sources = positions[order].astype(np.int32)
        self._row_starts = np.concatenate([[0], np.cumsum(counts)])
        self._weights = None if weights is None else weights[order]
        # A place for each row, which keeps nothing from one round to the next.
        self._scratch = np.empty(0)

    def combined(
        self, sent: Array, active: Array | None, combine: str, along: Along | None
    ) -> tuple[Array | None, Array]:
        """What reaches each row, combined; and the rows, if not all of them.

        `along` is None if edges carry what was sent. Raises OverflowError if a sum of integers exceeds their type.
        """
        if not len(self._sources):
            return None, sent[:0]
        checks = combine == "sum" and sent.dtype.kind in "iu" and (along is not None or self._may_overflow(sent))
        if active is not None and self.are_few(active):
            return self._from_few(sent, np.flatnonzero(active), combine, along, checks=checks)
        if combine == "sum" and along is None and not checks and sent.dtype in _COMPILED and self._sums is not None:
            return None, self._sums.of(sent if active is None else np.where(active, sent, sent.dtype.type(0)))
        return None, self.all_combined(sent, active, combine, along, checks=checks)

    def _may_overflow(self, sent: Array) -> bool:
        """Whether a row could exceed the type of integers if each of its edges carried the largest of them."""
        return largest(sent) * self._row_edges_max > np.iinfo(sent.dtype).max

    @cached_property
    def _row_edges_max(self) -> int:
        return int(np.diff(self._row_starts).max())

    def all_combined(
        self, sent: Array, active: Array | None, combine: str, along: Along | None, *, checks: bool = False
    ) -> Array:
        """The same for all rows, by looking at all edges, in pieces whose values stay in the processor's cache."""
        if not len(self._sources):
            return sent[:0]
        if active is not None and along is None:
            sent = np.where(active, sent, identity(combine, sent.dtype))
        pieces = [self._combined_piece(rows, sent, active, combine, along, checks=checks) for rows in self._pieces]
        return np.concatenate(pieces)

    def _combined_piece(
        self, rows: slice, sent: Array, active: Array | None, combine: str, along: Along | None, *, checks: bool
    ) -> Array:
        starts = self._row_starts[rows.start : rows.stop + 1]
        edges = slice(starts[0], starts[-1])
        sources = self._sources[edges]
        weights = None if self._weights is None else self._weights[edges]
        if along is None:
            carried = sent.take(sources)
        elif active is None:
            carried = along(sent.take(sources), weights)
        else:
            # `along` sees only what is sent, not what stands for nothing.
            sends = np.flatnonzero(active.take(sources))
            carried = np.full(len(sources), identity(combine, sent.dtype))
            carried[sends] = along(sent.take(sources.take(sends)), None if weights is None else weights[sends])
        firsts = starts[:-1] - starts[0]
        combined = COMBINES[combine].reduceat(carried, firsts)
        if checks:
            check_sums(combined.astype(carried.dtype, copy=False), np.add.reduceat(carried.astype(np.float64), firsts))
        return combined

    @cached_property
    def _pieces(self) -> list[slice]:
        """Ranges of rows with about PIECE_EDGES edges each, or one row that has more."""
        ends = np.searchsorted(self._row_starts, np.arange(0, len(self._sources), PIECE_EDGES))
        return [slice(a, b) for a, b in pairwise(np.unique(np.append(ends, len(self.rows))).tolist())]

    def are_few(self, senders: Array) -> bool:
        """Whether only the edges of these vertices, by position or as a mask, are looked at, and not all edges."""
        return int(self.degrees[senders].sum()) * FEW < len(self._sources)

    def each(self, sent: Array, active: Array | None, along: Along | None) -> tuple[Array | None, Array]:
        """What goes along each edge, if nothing is combined; and the rows, if not all of them."""
        rows = None if active is None else np.flatnonzero(active[self._sources])
        carried = sent[self._sources if rows is None else self._sources[rows]]
        if along is None:
            return rows, carried
        weights = self._weights if rows is None or self._weights is None else self._weights[rows]
        return rows, along(carried, weights)

    def by_source(self) -> tuple[Array, Array | None]:
        """The row and the weight of each edge, in the order of their sources."""
        edges = np.argsort(self._sources, kind="stable")
        rows = np.repeat(np.arange(len(self.rows), dtype=np.int32), np.diff(self._row_starts))
        return rows[edges], None if self._weights is None else self._weights[edges]

    def neighbours(self) -> tuple[Array, Array]:
        """The targets of each vertex, in order: where those of each begin, and the last ones end; and their numbers."""
        rows = np.repeat(np.arange(len(self.rows)), np.diff(self._row_starts))
        targets = self.rows[rows]
        starts = np.concatenate([[0], np.cumsum(self.degrees)])
        return starts, targets[np.lexsort((targets, self._sources))]

    def _from_few(
        self, sent: Array, senders: Array, combine: str, along: Along | None, *, checks: bool
    ) -> tuple[Array, Array]:
        rows_by_source, weights_by_source = self._by_source
        ends = self._source_ends[senders]
        counts = self.degrees[senders]
        places = ranges(ends - counts, counts)
        carried = np.repeat(sent[senders], counts)
        if along is not None:
            carried = along(carried, None if weights_by_source is None else weights_by_source[places])
        rows = rows_by_source[places]
        reached = np.sort(self._marks.distinct(rows))
        combined = self._scratch
        if len(combined) < len(self.rows) or combined.dtype != carried.dtype:
            combined = self._scratch = np.empty(len(self.rows), carried.dtype)
        combined[reached] = identity(combine, carried.dtype)
        COMBINES[combine].at(combined, rows, carried)
        if checks:
            check_sums(combined[reached], np.bincount(rows, carried, len(self.rows))[reached])
        return reached, combined[reached]

    @cached_property
    def _marks(self) -> Marks:
        return Marks(len(self.rows))

    @cached_property
    def _by_source(self) -> tuple[Array, Array | None]:
        return self.by_source()

    @cached_property
    def _source_ends(self) -> Array:
        return np.cumsum(self.degrees)

    @cached_property
    def _sums(self) -> EdgeSums | None:
        if len(self._sources) < EDGES_MIN or not can_compile():
            return None
        return EdgeSums(self._sources, self._row_starts, self.degrees)
