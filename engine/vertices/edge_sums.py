"""Sums of what edges carry, by compiled code, if numba is installed: one pass over all edges of a task.

A processor spends most of such a pass waiting: for one addition before the next one, and where it did not expect a row
to end. So eight rows that are equally long are summed at once. Rows are in the order of their lengths, long ones in
pieces; what a piece lacks to the length of its neighbours is filled up with edges that carry 0.

The values that are sent are put in the order of degrees first: what is read most often of an array that is larger than
the processor's cache is then close together, and stays there.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EDGES_MIN = 2_000_000
"""Of fewer edges, the sums of a hundred rounds take less time than compiling, which takes up to a second."""

PIECE_EDGES = 256
"""Long enough that a piece costs little, and short enough that little is filled up."""

_LANES = 8
"""How many rows `_add_up` sums at once."""


@cache
def can_compile() -> bool:
    """Whether numba is installed, can be imported, and is not told to compile nothing."""
    if find_spec("numba") is None:
        return False
    try:
        numba = import_module("numba")
    except Exception as error:  # noqa: BLE001  # whatever is wrong with it: NumPy is used instead
        print(f"backedge: sums over edges are not compiled: numba cannot be imported: {error}", file=sys.stderr)
        return False
    return not numba.config.DISABLE_JIT


class EdgeSums:
    """Edges by row: those of row `r` come from the vertices `sources[row_starts[r]:row_starts[r + 1]]`."""

    def __init__(self, sources: Array, row_starts: Array, degrees: Array) -> None:
        vertices, self._rows_count = len(degrees), len(row_starts) - 1
        pieces = -(-np.diff(row_starts) // PIECE_EDGES)
        rows = np.repeat(np.arange(self._rows_count), pieces)
        firsts = row_starts[rows] + PIECE_EDGES * (np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        lengths = np.minimum(row_starts[rows + 1] - firsts, PIECE_EDGES)
        # Small numbers are sorted many times as fast.
        order = np.argsort((PIECE_EDGES - lengths).astype(np.uint16), kind="stable")
        # By block and lane: the row of each piece. What is left of the last block adds to a row behind all others.
        self._rows = np.full(-(-len(rows) // _LANES) * _LANES, self._rows_count, np.uint32)
        self._rows[: len(rows)] = rows[order]
        self._rows = self._rows.reshape(-1, _LANES)
        self._block_lengths = lengths[order][::_LANES].astype(np.uint32)
        # The place of each edge's source in the order of degrees; behind all of them is one that carries 0.
        self._by_degree = np.argsort(-degrees, kind="stable")
        places = np.empty(vertices, np.uint32)
        places[self._by_degree] = np.arange(vertices, dtype=np.uint32)
        self._places = np.full((int(self._block_lengths.sum()), _LANES), vertices, np.uint32)
        block_starts = np.cumsum(self._block_lengths, dtype=np.int64) - self._block_lengths
        _compiled(_lay_out)(firsts[order], lengths[order], block_starts, sources, places, self._places)
        self._sent_by_degree = np.empty(0)

    def of(self, sent: Array) -> Array:
        """The sum of what reaches each row, if each vertex sends its item of `sent`."""
        if self._sent_by_degree.dtype != sent.dtype or not len(self._sent_by_degree):
            self._sent_by_degree = np.zeros(len(sent) + 1, sent.dtype)
        # Arrays of the user may be strided or read-only, and each kind would be compiled for.
        sent.take(self._by_degree, out=self._sent_by_degree[:-1], mode="clip")
        sums = np.zeros(self._rows_count + 1, sent.dtype)
        _compiled(_add_up)(self._sent_by_degree, self._block_lengths, self._places, self._rows, sums)
        return sums[:-1]


@cache
def _compiled(function: Any) -> Any:
    # Threads that write a cut go on in the meantime.
    return import_module("numba").njit(nogil=True)(function)


def _lay_out(
    firsts: Array, lengths: Array, block_starts: Array, sources: Array, places: Array, laid_out: Array
) -> None:
    for piece in range(len(firsts)):
        at, lane = block_starts[piece // _LANES], piece % _LANES
        for edge in range(firsts[piece], firsts[piece] + lengths[piece]):
            laid_out[at, lane] = places[sources[edge]]
            at += 1


def _add_up(sent: Array, block_lengths: Array, places: Array, rows: Array, sums: Array) -> None:
    zero = sent[len(sent) - 1]
    start = 0
    for block in range(len(block_lengths)):
        end = start + np.int64(block_lengths[block])
        # Variables, unlike the items of an array, stay in registers.
        a = b = c = d = e = f = g = h = zero
        for edges in range(start, end):
            at = places[edges]
            a += sent[at[0]]
            b += sent[at[1]]
            c += sent[at[2]]
            d += sent[at[3]]
            e += sent[at[4]]
            f += sent[at[5]]
            g += sent[at[6]]
            h += sent[at[7]]
        start = end
        row = rows[block]
        sums[row[0]] += a
        sums[row[1]] += b
        sums[row[2]] += c
        sums[row[3]] += d
        sums[row[4]] += e
        sums[row[5]] += f
        sums[row[6]] += g
        sums[row[7]] += h
