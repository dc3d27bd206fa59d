"""The entries of a capture whose keys are integers, with the keys in columns beside pickles or bytes.

A store has group, key and size of each entry without reading a pickle. Beyond a budget the pickles wait on disk, as in
`pickled_groups.py`. Values that are bytes are not pickled: until they are filed the capture shares them with the state,
and no copy of them is made.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from backedge.engine import pickled_groups
from backedge.engine.pickled_groups import NamelessFile
from backedge.graphs.routing import KEY_GROUPS, small_key_groups
from backedge.recovery.keyed_pickles import BytesRows, KeyedPickles, Listed, PickledRows, chunk_starts
from backedge.recovery.typed_groups import Column, places_of

PIECE_BYTES_MAX = 1 << 30
"""A column of a table has at most twice as many, unless a single value has more."""

_ENTRY_BYTES = 32
"""What the pickle of an entry takes besides the bytes of its value, or a little more."""


class _Piece(Struct):
    """Entries that were added together, by group: entry `i` begins at `starts[i]`.

    `data` is None once it is in the file, at `offset`.
    """

    groups: Column
    keys: Column
    starts: Column
    data: bytes | None = None
    offset: int = 0


class _Layout(NamedTuple):
    """Entries by group: the group and key of each, and the length of its value."""

    groups: Column
    keys: Column
    sizes: Column


class _BytesByKey:
    """Bytes of integer keys by group, and within a group in the order in which they were added.

    They are put into a list for each group while they are in the processor's cache. Once all have been added, it takes
    longer to look one up than to copy it.
    """

    def __init__(self) -> None:
        self._values: list[list[bytes]] = []
        self._added: list[_Layout] = []
        self._layout: _Layout | None = None

    def add(self, keys: Column, values: list[bytes]) -> None:
        """Add a value for each key."""
        groups, order = _groups_and_order(keys)
        groups, ordered = groups[order], list(map(values.__getitem__, order.tolist()))
        sizes = np.fromiter(map(len, ordered), np.int64, len(ordered))
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()]
        if not self._added:
            self._values = [[] for _ in range(KEY_GROUPS)]
        for group, (start, end) in zip(groups[starts].tolist(), pairwise([*starts, len(ordered)]), strict=True):
            self._values[group] += ordered[start:end]
        self._added.append(_Layout(groups, keys[order], sizes))
        self._layout = None

    @property
    def has_some(self) -> bool:
        """Whether any were added."""
        return bool(self._added)

    def sizes(self) -> Column:
        """The bytes of the pickles of each key group, or a little more."""
        if not self.has_some:
            return np.zeros(KEY_GROUPS, np.int64)
        layout = self._laid_out()
        return np.bincount(layout.groups, layout.sizes + _ENTRY_BYTES, KEY_GROUPS).astype(np.int64)

    def rows(self, first: int, last: int) -> Iterator[BytesRows]:
        """The entries of these groups, both included."""
        if self.has_some:
            layout = self._laid_out()
            low, high = places_of(layout.groups, first, last)
            if low < high:
                groups, keys, sizes = (column[low:high] for column in layout)
                yield BytesRows(groups.astype(np.int32), keys, sizes, Listed(self._values[first : last + 1]))

    def _laid_out(self) -> _Layout:
        if self._layout is None:
            groups, keys, sizes = (np.concatenate(columns) for columns in zip(*self._added, strict=True))
            order = np.argsort(groups, kind="stable")
            self._layout = _Layout(groups[order], keys[order], sizes[order])
        return self._layout


class PickledColumns(KeyedPickles):
    """Group -> its entries, as concatenated pickles.

    - bytes_spilled: how much is on disk.
    - _can_spill: False after a write that failed. Then the rest stays in memory, since the task must not fail.

    >>> columns = PickledColumns()
    >>> columns.add(np.array([7, 8]), [b"seven", b"eight"])
    >>> sorted(columns.values()), sum(columns.sizes()), columns.bytes_spilled
    ([b'eight', b'seven'], 10, 0)
    """

    def __init__(self) -> None:
        self.bytes_spilled = 0
        self._pieces: list[_Piece] = []
        self._kept: list[_Piece] = []
        self._kept_bytes = 0
        self._bytes = _BytesByKey()
        self._sizes = np.zeros(KEY_GROUPS, np.int64)
        self._file: NamelessFile | None = None
        self._can_spill = True

    def add(self, keys: Column, payloads: list[bytes]) -> None:
        """Add the pickle of an entry for each key."""
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        for piece, chosen in self._new_pieces(keys, sizes):
            piece.data = b"".join(map(payloads.__getitem__, chosen))
            self._kept.append(piece)
            self._kept_bytes += len(piece.data)
        if self._kept_bytes > pickled_groups.KEPT_BYTES_MAX and self._can_spill:
            try:
                self._spill()
            except OSError:
                self._can_spill = False

    def add_bytes(self, keys: Column, values: list[bytes]) -> None:
        """Add bytes for each key."""
        self._bytes.add(keys, values)

    def _new_pieces(self, keys: Column, sizes: Column) -> Iterator[tuple[_Piece, list[int]]]:
        """Pieces for these entries, and the places of the entries of each, in the order of their groups."""
        groups, order = _groups_and_order(keys)
        self._sizes += np.bincount(groups, sizes, KEY_GROUPS).astype(np.int64)
        for chosen in np.split(order, chunk_starts(sizes[order], PIECE_BYTES_MAX)[1:-1]):
            starts = np.zeros(len(chosen) + 1, np.int64)
            np.cumsum(sizes[chosen], out=starts[1:])
            piece = _Piece(groups[chosen], keys[chosen], starts)
            self._pieces.append(piece)
            yield piece, chosen.tolist()

    def _spill(self) -> None:
        file = self._file = self._file or NamelessFile()
        end = self.bytes_spilled
        for piece in self._kept:
            if piece.data is not None:
                file.write(piece.data, end)
                piece.offset = end
                end += len(piece.data)
        # Only now: after a failure all of it is still in memory.
        for piece in self._kept:
            piece.data = None
        self.bytes_spilled = end
        self._kept, self._kept_bytes = [], 0

    def sizes(self) -> list[int]:
        """The bytes of each key group, or a little more."""
        return (self._sizes + self._bytes.sizes()).tolist()

    def rows(self, first: int, last: int) -> Iterator[PickledRows | BytesRows]:
        """The entries of these groups, both included."""
        yield from self._bytes.rows(first, last)
        for piece in self._pieces:
            low, high = places_of(piece.groups, first, last)
            if low < high:
                groups, keys = piece.groups[low:high].astype(np.int32), piece.keys[low:high]
                yield PickledRows(groups, keys, np.diff(piece.starts[low : high + 1]), self._data(piece, low, high))

    def _data(self, piece: _Piece, low: int, high: int) -> bytes:
        start, end = piece.starts[[low, high]].tolist()
        if piece.data is not None:
            return piece.data[start:end]
        if self._file is None:
            raise RuntimeError(f"{end - start} bytes of a capture are neither in memory nor in a file")
        return self._file.read(piece.offset + start, end - start)

    def __getitem__(self, group: int) -> bytes:
        found = b"".join(map(_pickles_of, self.rows(group, group)))
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.sizes()).tolist())

    def __bool__(self) -> bool:
        return bool(self._pieces) or self._bytes.has_some

    def __len__(self) -> int:
        return int(np.count_nonzero(self.sizes()))


def _groups_and_order(keys: Column) -> tuple[Column, Column]:
    """The group of each key, and the places of the keys in the order of their groups."""
    groups = small_key_groups(keys)
    # For single bytes numpy uses a radix sort.
    return groups, np.argsort(groups, kind="stable")


def _pickles_of(rows: PickledRows | BytesRows) -> bytes:
    if isinstance(rows, PickledRows):
        return rows.data
    entries = zip(rows.keys.tolist(), rows.values, strict=True)
    return b"".join(pickle.dumps(entry, 5) for entry in entries)
