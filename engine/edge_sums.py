"""Sums of what edges carry, by compiled code, if numba is installed: one pass over all edges of a task.

A processor spends most of such a pass waiting: for one addition before the next one, and where it did not expect a row
to end. So eight rows that are equally long are summed at once. Rows are in the order of their lengths, long ones in
pieces; what a piece lacks to the length of its neighbours is filled up with edges that carry 0.

The values that are sent are put in the order of degrees first: what is read most often of an array that is larger than
the processor's cache is then close together, and stays there.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EDGES_MIN = 2_000_000
"""Of fewer edges, the sums of fifty rounds take less time than compiling, which takes half a second."""

PIECE_EDGES = 256
"""Long enough that a piece costs little, and short enough that little is filled up."""

_LANES = 8


def can_compile() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


class EdgeSums:
    """Edges by row: those of row `r` come from the vertices `sources[row_starts[r]:row_starts[r + 1]]`.

    >>> sums = EdgeSums(np.array([0, 1, 1], np.int32), np.array([0, 2, 3]), np.array([1, 2]))
    >>> sums.of(np.array([0.5, 3.0])).tolist()
    [3.5, 3.0]
    """

    def __init__(self, sources: Array, row_starts: Array, degrees: Array) -> None:
        vertices, self._rows_count = len(degrees), len(row_starts) - 1
        pieces = -(-np.diff(row_starts) // PIECE_EDGES)
        rows = np.repeat(np.arange(self._rows_count), pieces)
        firsts = row_starts[rows] + PIECE_EDGES * (np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        lengths = np.minimum(row_starts[rows + 1] - firsts, PIECE_EDGES)
        # Small numbers are sorted many times as fast.
        order = np.argsort((PIECE_EDGES - lengths).astype(np.uint16), kind="stable")
        # By lane: the rows of each block of pieces. What is left of the last block adds to a row behind all others.
        self._rows = np.full(-(-len(rows) // _LANES) * _LANES, self._rows_count, np.uint32)
        self._rows[: len(rows)] = rows[order]
        self._rows = self._rows.reshape(-1, _LANES)
        self._lengths = lengths[order][::_LANES]
        # The place of each edge's source in the order of degrees; behind all of them is one that carries 0.
        self._by_degree = np.argsort(-degrees, kind="stable").astype(np.uint32)
        places = np.empty(vertices, np.uint32)
        places[self._by_degree] = np.arange(vertices, dtype=np.uint32)
        self._places = np.full((int(self._lengths.sum()), _LANES), vertices, np.uint32)
        block_starts = np.cumsum(self._lengths) - self._lengths
        _compiled(_lay_out)(firsts[order], lengths[order], block_starts, sources, places, self._places)
        self._sent = np.empty(0)

    def of(self, sent: Array) -> Array:
        """The sum of what reaches each row, if each vertex sends its item of `sent`."""
        if self._sent.dtype != sent.dtype or not len(self._sent):
            self._sent = np.zeros(len(sent) + 1, sent.dtype)
        sums = np.zeros(self._rows_count + 1, sent.dtype)
        _compiled(_add_up)(sent, self._by_degree, self._lengths, self._places, self._rows, self._sent, sums)
        return sums[:-1]


@cache
def _compiled(function: Any) -> Any:
    # Threads that write a cut go on in the meantime.
    return import_module("numba").njit(nogil=True)(function)


def _lay_out(
    firsts: Array, lengths: Array, block_starts: Array, sources: Array, places: Array, laid_out: Array
) -> None:
    for piece in range(len(firsts)):
        at, lane = block_starts[piece // 8], piece % 8
        for edge in range(firsts[piece], firsts[piece] + lengths[piece]):
            laid_out[at, lane] = places[sources[edge]]
            at += 1


def _add_up(
    sent: Array, by_degree: Array, lengths: Array, places: Array, rows: Array, ordered: Array, sums: Array
) -> None:
    for place in range(len(by_degree)):
        ordered[place] = sent[by_degree[place]]
    zero = ordered[len(by_degree)]
    start = 0
    for block in range(len(lengths)):
        # Variables, unlike the items of an array, stay in registers.
        a = b = c = d = e = f = g = h = zero
        for edges in range(start, start + lengths[block]):
            at = places[edges]
            a += ordered[at[0]]
            b += ordered[at[1]]
            c += ordered[at[2]]
            d += ordered[at[3]]
            e += ordered[at[4]]
            f += ordered[at[5]]
            g += ordered[at[6]]
            h += ordered[at[7]]
        start += lengths[block]
        row = rows[block]
        sums[row[0]] += a
        sums[row[1]] += b
        sums[row[2]] += c
        sums[row[3]] += d
        sums[row[4]] += e
        sums[row[5]] += f
        sums[row[6]] += g
        sums[row[7]] += h
