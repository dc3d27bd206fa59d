"""What the vertices of a task receive in a round: one value for each, combined as it arrives, or all of them.

Both are filed by key group, so that they can be restored by a task with other groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from backedge.engine.vertices.edges import COMBINES, Array, identity
from backedge.graphs.exact_numbers import check_sums, largest
from backedge.graphs.vertex_program import Messages


class CombinedInbox:
    """One value for each vertex."""

    def __init__(self, vertices: int, combine: str, message: np.dtype[Any]) -> None:
        self._vertices = vertices
        self._combine = COMBINES[combine]
        self._nothing = identity(combine, message)
        self._values = np.full(vertices, self._nothing)
        self._is_empty = True
        # Of sums of integers: the largest that there can be.
        self._sum_max = 0 if combine == "sum" and message.kind in "iu" else None

    def add(self, places: Array, values: Array, *, distinct_and_ordered: bool) -> None:
        """Combine values with what is there; places are distinct. Raises OverflowError if a sum exceeds its type."""
        self._is_empty = False
        if self._sum_max is not None:
            self._sum_max += largest(values)
            if self._sum_max > np.iinfo(values.dtype).max:
                before = self._values[places]
                check_sums(before + values, before.astype(np.float64) + values)
        if distinct_and_ordered and len(places) == self._vertices:
            self._combine(self._values, values, out=self._values)
        else:
            # In one pass, although no place occurs twice.
            self._combine.at(self._values, places, values)

    def take(self) -> Array:
        """The value of each vertex, which `apply` is called with. The inbox is empty afterwards."""
        taken, self._values = self._values, np.full(self._vertices, self._nothing)
        self._is_empty = True
        self._sum_max = None if self._sum_max is None else 0
        return taken

    def filed(self, starts: Array) -> list[Any]:
        """The values of each group, None for each if there are none. `starts` says where each group begins, and the
        last one ends.
        """
        if self._is_empty:
            return [None] * (len(starts) - 1)
        values = self._values.copy()
        return [values[start:end] for start, end in pairwise(starts.tolist())]

    def restore(self, filed: Mapping[int, Any]) -> None:
        """Take what was filed of each group, by the position at which it begins."""
        for first, values in filed.items():
            self._values[first : first + len(values)] = values
            self._is_empty = False
        if self._sum_max is not None:
            self._sum_max = largest(self._values)


class UncombinedInbox:
    """Any number of values for each vertex."""

    def __init__(self, message: np.dtype[Any]) -> None:
        self._message = message
        self._parts: list[tuple[Array, Array]] = []

    def add(self, places: Array, values: Array, *, distinct_and_ordered: bool) -> None:
        self._parts.append((places, values))

    def take(self) -> Messages:
        """All values in order, so that it does not matter in which order they arrived."""
        at, values = self._together()
        self._parts = []
        order = np.lexsort((values, at))
        return Messages(at[order], values[order])

    def _together(self) -> tuple[Array, Array]:
        at = np.concatenate([np.empty(0, np.int64), *(places for places, _ in self._parts)])
        return at, np.concatenate([np.empty(0, self._message), *(values for _, values in self._parts)])

    def filed(self, starts: Array) -> list[Any]:
        """The values of each group, with their positions within it."""
        if not self._parts:
            return [None] * (len(starts) - 1)
        at, values = self._together()
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        rows = pairwise(np.searchsorted(at, starts).tolist())
        firsts = starts[:-1].tolist()
        return [(at[a:b] - first, values[a:b]) for first, (a, b) in zip(firsts, rows, strict=True)]

    def restore(self, filed: Mapping[int, Any]) -> None:
        self._parts = [(at + first, values) for first, (at, values) in filed.items() if len(at)]


Inbox = CombinedInbox | UncombinedInbox
