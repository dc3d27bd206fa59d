"""Captures of a table: its rows at one moment, taken piece by piece while they change.

Copying all that a batch is about to change would hold up the first batch after a capture: a thousand rows can be in as
many blocks. So only what these rows hold is kept, and used in place of what they hold when their piece is taken. The
table marks each row that changes with the number of the newest capture, so a capture keeps a row at most once, and what
was added or changed later is no part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from backedge.graphs.table import Array
from backedge.recovery.cut.keyed_parts import Rows

BLOCK_ROWS = 4096
SHIFT = BLOCK_ROWS.bit_length() - 1
SPAN_BLOCKS = 32
"""A delta looks for changed rows in this many blocks at once: a block by itself takes as long as ten of them."""
_FEW_ROWS = BLOCK_ROWS // 8
"""Keeping the values of this many rows of a block takes as long as copying the block."""


class Held(NamedTuple):
    """What some rows hold: the number of each row, and its values."""

    numbers: Array
    values: Mapping[str, Array]


class LiveTable(Protocol):
    """The table that a capture shares rows with: `TableState` says what these return."""

    def block(self, block: int, count: int) -> Rows: ...
    def changed(self, first: int, end: int, since: int, at: int) -> Held: ...
    def held(self, rows: Array) -> Held: ...
    def with_keys(self, held: Held) -> Rows: ...
    def release(self, capture: TableCapture) -> None: ...


class TableCapture(ABC):
    """The rows at one moment. It must be released.

    - keys: the number of rows, at least.
    - at: the number of the capture before: rows with a later mark have changed since.
    - is_newest: whether there has been no other capture since. Then no row is marked as changed twice.
    """

    def __init__(self, table: LiveTable, at: int, keys: int) -> None:
        self.keys = keys
        self.is_newest = True
        self._table = table
        self._at = at
        self._next: int = 0

    @abstractmethod
    def keep(self, rows: Array, marks: Array) -> None:
        """Keep what rows hold that are about to change: different ones in order, with the mark of each."""

    @abstractmethod
    def encode_some(self, entries_max: int) -> int:
        """Pass over some blocks; return the number of their rows, at most `entries_max`. If fewer, all are taken."""

    @abstractmethod
    def parts(self) -> list[Rows]:
        """The rows. Takes what is left."""

    def release(self) -> None:
        self._table.release(self)


class WholeCapture(TableCapture):
    """All rows, copied block by block. `counts`: how many rows each block has."""

    def __init__(self, table: LiveTable, at: int, keys: int, counts: Array) -> None:
        super().__init__(table, at, keys)
        self._counts = counts
        self._pieces: dict[int, Rows] = {}
        self._former: list[Held] = []

    @cached_property
    def is_left(self) -> Array:
        """For each block whether it is still to be copied."""
        return np.ones(len(self._counts), np.bool_)

    def keep(self, rows: Array, marks: Array) -> None:
        """Keep what rows hold that are about to change. Blocks of which many rows are, are copied instead."""
        if not self.is_newest:
            rows = rows[marks <= self._at]
        if self._next:
            rows = rows[np.searchsorted(rows, self._next << SHIFT) :]
        if len(self._pieces) > self._next:
            rows = self._left(rows)
        if len(rows) > _FEW_ROWS and (rows[_FEW_ROWS:] - rows[:-_FEW_ROWS]).min() < BLOCK_ROWS:
            blocks, counts = np.unique(rows >> SHIFT, return_counts=True)
            self._take(blocks[counts > _FEW_ROWS].tolist())
            rows = self._left(rows)
        if len(rows):
            self._former.append(self._table.held(rows))

    def _left(self, rows: Array) -> Array:
        return rows[self.is_left[rows >> SHIFT]]

    def _take(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.is_left[block] = False
            self._pieces[block] = self._table.block(block, int(self._counts[block]))

    def encode_some(self, entries_max: int) -> int:
        """Copy some blocks."""
        rows = 0
        while rows < entries_max and self._next < len(self.is_left):
            if self.is_left[self._next]:
                self._take([self._next])
                rows += int(self._counts[self._next])
            self._next += 1
        return min(rows, entries_max)

    def parts(self) -> list[Rows]:
        """The copies, with what rows held that had changed before they were copied."""
        self.encode_some(len(self.is_left) * BLOCK_ROWS + 1)
        if self._former:
            self._put_back(_together(self._former))
        return [self._pieces[block] for block in sorted(self._pieces)]

    def _put_back(self, former: Held) -> None:
        order = np.argsort(former.numbers)
        numbers = former.numbers[order]
        blocks = numbers >> SHIFT
        starts = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1]))
        values = {name: np.split(column[order], starts[1:]) for name, column in former.values.items()}
        places = np.split(numbers & (BLOCK_ROWS - 1), starts[1:])
        for index, block in enumerate(blocks[starts].tolist()):
            for name, parts in values.items():
                self._pieces[block].values[name][places[index]] = parts[index]


class DeltaCapture(TableCapture):
    """The rows that changed after the capture `since`. `is_left`: for each block whether any of its rows did."""

    def __init__(self, table: LiveTable, at: int, keys: int, since: int, is_left: Array) -> None:
        super().__init__(table, at, keys)
        self._since = since
        self._is_left = is_left
        self._found: list[Held] = []

    def keep(self, rows: Array, marks: Array) -> None:
        """Keep what rows hold that are part of the delta and not taken yet."""
        rows = rows[(marks > self._since) & (marks <= self._at) & (rows >= self._next << SHIFT)]
        if len(rows):
            self._found.append(self._table.held(rows))

    def encode_some(self, entries_max: int) -> int:
        """Take what changed in some blocks."""
        rows = 0
        while rows < entries_max and self._next < len(self._is_left):
            first = self._next
            self._next = min(first + SPAN_BLOCKS, len(self._is_left))
            if self._is_left[first : self._next].any():
                self._found.append(self._table.changed(first, self._next, self._since, self._at))
                rows += (self._next - first) * BLOCK_ROWS
        return min(rows, entries_max)

    def parts(self) -> list[Rows]:
        """What was taken and kept, in the order of the groups."""
        self.encode_some(len(self._is_left) * BLOCK_ROWS + 1)
        if not self._found:
            return []
        rows = self._table.with_keys(_together(self._found))
        # For single bytes numpy uses a radix sort.
        return [rows.at(np.argsort(rows.groups.astype(np.uint8), kind="stable"))]


def _together(parts: list[Held]) -> Held:
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    return Held(np.concatenate([part.numbers for part in parts]), values)
