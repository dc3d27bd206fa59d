"""The best values of one task's vertices while they spread along its edges, in rounds or free-running.

One array holds the values of the task's own vertices and, behind them, the best value that was sent to each vertex of
other tasks. So one look at the edges of some vertices shows which of its own become better, and what is worth sending:
nothing that is no better than what was sent before. What was sent is no state: after a restore, something may be sent
twice. A task may forget it at each cut, so that a restored task sends the same as the one that went on (`forget_sent`).

Vertices whose value has become better wait on a list until they send it on. The best ones go first, because a value
that is not the best one yet would be followed by another, and by all that comes of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from backedge.engine.vertices.edges import COMBINES, Along, Array, Lookup, Marks, OutEdges, identity, ranges

SENT_SHARE = 8
"""A task sends an eighth of its list at once, the best values."""


class SpreadingValues:
    """The values of the vertices `ids`, and of what `out` reaches elsewhere.

    - bests: the values of the own vertices. Changed in place.
    - ids, starts: the vertices elsewhere, and where each key group begins among them. If `keeps_own` is false, all
      that edges reach is elsewhere: values for own vertices travel, too.

    >>> edges = OutEdges(2, np.array([0, 0, 1]), np.array([7, 9, 9]), None)
    >>> values = SpreadingValues(edges, np.array([8, 7]), np.array([1.0, 5.0]), "min", keeps_own=True)
    >>> near, reached = values.spread(values.bests, np.array([0]), None)
    >>> values.bests.tolist(), values.ids[reached].tolist(), values.sent_to(reached).tolist()
    ([1.0, 1.0], [9], [1.0])
    """

    def __init__(self, out: OutEdges, ids: Array, bests: Array, combine: str, *, keeps_own: bool) -> None:
        self._out = out
        self._combine_by = combine
        self._combine = COMBINES[combine]
        self._count = count = len(ids)
        places = Lookup(ids).of(out.rows) if keeps_own else np.full(len(out.rows), -1)
        is_elsewhere = places < 0
        rows = np.flatnonzero(is_elsewhere)
        self.ids, self.starts = out.rows[rows], np.searchsorted(rows, out.starts)
        # Where the value for each row of the edges is, and for each edge in the order of sources, with its weight.
        self._slots = np.where(is_elsewhere, count - 1 + np.cumsum(is_elsewhere), places).astype(np.int32)
        rows_by_source, self._weights = out.by_source()
        self._slots_by_source = self._slots[rows_by_source]
        self._ends = np.cumsum(out.degrees)
        self._values = np.concatenate([bests, np.full(len(rows), identity(combine, bests.dtype))])
        self.bests = self._values[:count]
        self._marks = Marks(len(self._values))
        # The list, in parts, and whether each vertex is on it; and the worst value that was taken off it, unless all
        # values were.
        self._listed: list[Array] = []
        self._is_listed = np.zeros(count, np.bool_)
        self._limit: Any = None

    @property
    def listed(self) -> Array:
        """The vertices on the list, by position, each once."""
        self._listed = [np.concatenate([np.empty(0, np.int64), *self._listed])]
        return self._listed[0]

    def put_on_list(self, positions: Array) -> None:
        added = positions[~self._is_listed[positions]]
        self._is_listed[added] = True
        self._listed.append(added)

    def take_off(self, positions: Array) -> None:
        self._is_listed[positions] = False
        listed = self.listed
        self._listed = [listed[self._is_listed[listed]]]

    def receive(self, positions: Array, values: Array) -> None:
        """Take what is better of these values for own vertices, and put those vertices on the list."""
        self.put_on_list(self._improve(positions, values))

    def take_all(self) -> Array:
        taken, self._listed, self._limit = self.listed, [], None
        self._is_listed[taken] = False
        return taken

    def take_best(self, count_min: int) -> Array:
        """Take the vertices with the best values off the list; all of them, if they cost no more."""
        listed = self.listed
        count = max(count_min, len(listed) // SENT_SHARE)
        if len(listed) <= count:
            return self.take_all()
        values = self.bests[listed]
        last = count - 1 if self._combine_by == "min" else len(listed) - count
        limit = np.partition(values, last)[last]
        is_next = self._combine(values, limit) == values
        taken = listed[is_next]
        # None of them is next where the best are undefined numbers.
        if not len(taken) or not self._out.are_few(taken):
            return self.take_all()
        self._listed, self._limit = [listed[~is_next]], limit
        self._is_listed[taken] = False
        return taken

    def spread(self, sent: Array, senders: Array, along: Along | None) -> tuple[Array, Array]:
        """Have these vertices send. Returns own vertices that have become as good as the last ones taken off the list,
        and positions in `ids` for which there is something better than what was sent; others go on the list.
        """
        out = self._out
        if out.are_few(senders):
            counts = out.degrees[senders]
            edges = ranges(self._ends[senders] - counts, counts)
            slots, carried = self._slots_by_source[edges], np.repeat(sent[senders], counts)
            if along is not None:
                carried = along(carried, None if self._weights is None else self._weights[edges])
        else:
            active = None
            if len(senders) < self._count:
                active = np.zeros(self._count, np.bool_)
                active[senders] = True
            slots, carried = self._slots, out.all_combined(sent, active, self._combine_by, along)
        improved = self._improve(slots, carried.astype(self._values.dtype, copy=False))
        is_own = improved < self._count
        own, reached = improved[is_own], improved[~is_own] - self._count
        near = own[:0]
        if self._limit is not None:
            values = self.bests[own]
            is_near = self._combine(values, self._limit) == values
            own, near = own[~is_near], own[is_near]
        self.put_on_list(own)
        return near, reached

    def forget_sent(self) -> None:
        """From here on act like a restored task: forget what was sent, and put the list in order."""
        self._values[self._count :] = identity(self._combine_by, self._values.dtype)
        self._listed = [np.sort(self.listed)]

    def distinct(self, reached: list[Array]) -> Array:
        """These positions in `ids`, each once."""
        return reached[0] if len(reached) == 1 else self._marks.distinct(np.concatenate(reached))

    def sent_to(self, reached: Array) -> Array:
        """The best values for vertices elsewhere."""
        return self._values[self._count + reached]

    def _improve(self, slots: Array, arrived: Array) -> Array:
        """Take what is better of the values for these slots. Returns where it was, each once."""
        before = self._values[slots]
        is_better = self._combine(before, arrived) != before
        if before.dtype.kind == "f":
            # An undefined number stays, or it would go round a cycle for ever.
            is_better &= before == before
        slots = slots[is_better]
        # Several values may be for the same vertex.
        self._combine.at(self._values, slots, arrived[is_better])
        return self._marks.distinct(slots)
