"""Divides the rows of columns among targets, which are the tasks of an edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from backedge.engine.batches.columns import Columns

FEW_TARGETS = 3
"""Up to this number of targets, looking for the rows of each takes less time than sorting."""

Positions = npt.NDArray[np.integer[Any]]


class Piece(Struct, frozen=True):
    """Rows that are taken from columns together, and which of them go to each target.

    - positions: of these rows; None for all rows in their order, which are not copied.
    - keys: those of the taken columns that are known already.
    """

    positions: Positions | None
    slices: Sequence[tuple[int, slice]]
    keys: Mapping[str, Any] = {}

    def with_keys(self, keys: Columns) -> Piece:
        """The same with these columns, as they are before rows are taken from them."""
        if self.positions is None:
            return self
        taken = keys.take(self.positions)
        return replace(self, keys=dict(zip(taken.names, taken.batch.columns, strict=True)))


class Division:
    """The rows of each target. It applies to any columns with as many rows.

    - size: in bytes.

    >>> from backedge.engine.batches.arrow import arrow
    >>> columns = Columns(arrow().record_batch({"n": [1, 2, 3]}))
    >>> [(target, list(part)) for target, part in Division.among(np.array([2, 0, 2]), 3).parts(columns)]
    [(0, [{'n': 2}]), (2, [{'n': 1}, {'n': 3}])]
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    @staticmethod
    def among(targets: Positions, count: int) -> Division:
        """Divide rows by the target of each, of which there are `count`."""
        # Numbers of few bits are compared and sorted several times as fast.
        small = targets.astype(np.min_scalar_type(count), copy=False)
        # Rows already in the order of their targets, such as one large row for each, are not copied.
        is_ordered = bool((small[1:] >= small[:-1]).all())
        if not is_ordered and count <= FEW_TARGETS:
            found = ((target, np.flatnonzero(small == target)) for target in range(count))
            return Division([Piece(rows, [(target, slice(0, len(rows)))]) for target, rows in found if len(rows)])
        # For many targets: sort once, then slice.
        counts = np.bincount(targets, minlength=count)
        ends = np.cumsum(counts).tolist()
        slices = [
            (n, slice(end - rows, end)) for n, (rows, end) in enumerate(zip(counts.tolist(), ends, strict=True)) if rows
        ]
        return Division([Piece(None if is_ordered else np.argsort(small, kind="stable"), slices)])

    def parts(self, columns: Columns) -> Iterator[tuple[int, Columns]]:
        """The rows of each target; targets without rows are left out."""
        for piece in self._pieces:
            rows = columns if piece.positions is None else columns.take(piece.positions, piece.keys)
            for target, own in piece.slices:
                yield target, rows[own]

    @property
    def size(self) -> int:
        return sum(piece.positions.nbytes for piece in self._pieces if piece.positions is not None)

    def with_keys(self, columns: Columns, names: Sequence[str]) -> Division:
        """The same for columns with the same keys as these. `names`: those of the keys, which are not taken again."""
        keys = Columns(columns.batch.select(names))
        return Division([piece.with_keys(keys) for piece in self._pieces])
