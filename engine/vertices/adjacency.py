"""Columns that grow, and links of vertices: which others each one is linked to, found in a time of their number.

The links of a vertex are a range in an array of rows. A range that is full moves to the end of the array and gets twice
the room. A link that is removed leaves its row, which it gets again when it returns; when most rows are such rows,
everything is put together again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.engine.state.tables.row_index import index_for
from backedge.engine.vertices.edges import Array, ranges

_CAPACITY_MIN = 16
_GONE_MIN = 1_024


class Growing:
    """Columns with the same number of rows. A column is a view, which is out of date when rows have been added.

    >>> columns = Growing({"value": np.int64})
    >>> columns.add(value=np.array([5, 6]))
    array([0, 1])
    >>> columns["value"][1] = 7
    >>> columns.add(value=8), columns["value"].tolist()
    (array([2]), [5, 7, 8])
    """

    def __init__(self, kinds: dict[str, npt.DTypeLike]) -> None:
        self._columns: dict[str, Array] = {name: np.empty(_CAPACITY_MIN, kind) for name, kind in kinds.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Array:
        return self._columns[name][: self._count]

    def add(self, **values: Any) -> Array:
        """Add rows with these values; return their numbers."""
        count = max((np.size(value) for value in values.values() if np.ndim(value)), default=1)
        first, self._count = self._count, self._count + count
        for name, column in self._columns.items():
            if self._count > len(column):
                self._columns[name] = np.empty(2 * self._count, column.dtype)
                self._columns[name][:first] = column[:first]
            self._columns[name][first : self._count] = values[name]
        return np.arange(first, self._count)


class Links:
    """Links from vertices, given by their positions, to the numbers of others.

    - owners, others: the two ends of each row. there: whether the link exists now. columns: what else belongs to it.

    >>> links = Links({"weight": np.int64})
    >>> links.add(np.array([0, 1, 0]), np.array([30, 30, 40]), weight=np.array([1, 2, 3]))
    (array([0, 1, 2]), array([ True,  True,  True]))
    >>> links["other"][links.of(np.array([0]))].tolist()
    [30, 40]
    >>> links.remove(links.find(np.array([0]), np.array([30])))
    >>> links["weight"][links.of(np.array([0, 1]))].tolist()
    [3, 2]
    """

    def __init__(self, kinds: dict[str, npt.DTypeLike]) -> None:
        self._kinds = kinds
        self._clear()

    def _clear(self) -> None:
        self._rows = Growing({"owner": np.int64, "other": np.int64, "there": np.bool_, **self._kinds})
        self._index = index_for(["int64", "int64"])
        # For each vertex where its range begins, how many rows it holds, and for how many it has room.
        self._ranges = Growing({"first": np.int64, "count": np.int64, "room": np.int64})
        self._ranged = Growing({"row": np.int64})
        self._gone = 0

    def __getitem__(self, name: str) -> Array:
        return self._rows[name]

    def find(self, owners: Array, others: Array) -> Array:
        """The row of each link that exists, -1 for others."""
        rows = self._index.find([owners, others])
        rows[rows >= 0] = np.where(self._rows["there"][rows[rows >= 0]], rows[rows >= 0], -1)
        return rows

    def add(self, owners: Array, others: Array, **initial: Any) -> tuple[Array, Array]:
        """Add the missing ones of these distinct links, with these values. Returns all rows, and which are new."""
        rows = self._index.find([owners, others])
        new, known = np.flatnonzero(rows < 0), np.flatnonzero(rows >= 0)
        gone = known[~self._rows["there"][rows[known]]]
        for name, values in initial.items():
            self._rows[name][rows[gone]] = values[gone]
        self._rows["there"][rows[gone]] = True
        self._gone -= len(gone)
        is_new = np.zeros(len(rows), np.bool_)
        is_new[new] = is_new[gone] = True
        if len(new):
            of_new = {name: values[new] for name, values in initial.items()}
            rows[new] = self._rows.add(owner=owners[new], other=others[new], there=True, **of_new)
            self._index.add([owners[new], others[new]], rows[new])
            self._append(owners[new], rows[new])
        return rows, is_new

    def remove(self, rows: Array) -> None:
        """Remove existing links, each given once."""
        self._rows["there"][rows] = False
        self._gone += len(rows)

    def of(self, owners: Array) -> Array:
        """The rows of all links of these vertices."""
        owners = owners[owners < len(self._ranges)]
        rows = self._ranged["row"][ranges(self._ranges["first"][owners], self._ranges["count"][owners])]
        return rows[self._rows["there"][rows]]

    def all(self) -> Array:
        return np.flatnonzero(self._rows["there"])

    def tidy(self) -> None:
        """Drop the rows of removed links if they are most of all. Rows then have other numbers."""
        if self._gone < max(_GONE_MIN, len(self._rows) // 2):
            return
        kept = self.all()
        owners, others, columns = self["owner"][kept], self["other"][kept], {n: self[n][kept] for n in self._kinds}
        self._clear()
        self.add(owners, others, **columns)

    def _append(self, owners: Array, rows: Array) -> None:
        order = np.argsort(owners, kind="stable")
        distinct, added = np.unique(owners, return_counts=True)
        if missing := max(0, int(distinct[-1]) + 1 - len(self._ranges)):
            self._ranges.add(first=np.zeros(missing, np.int64), count=0, room=0)
        firsts, counts, rooms = self._ranges["first"], self._ranges["count"], self._ranges["room"]
        full = distinct[counts[distinct] + added > rooms[distinct]]
        if len(full):
            rooms[full] = 2 * (counts[distinct] + added)[np.isin(distinct, full, assume_unique=True)]
            former = ranges(firsts[full], counts[full])
            new = self._ranged.add(row=np.zeros(int(rooms[full].sum()), np.int64))
            firsts[full] = new[0] + np.cumsum(rooms[full]) - rooms[full]
            self._ranged["row"][ranges(firsts[full], counts[full])] = self._ranged["row"][former]
        self._ranged["row"][ranges(firsts[distinct] + counts[distinct], added)] = rows[order]
        counts[distinct] += added
