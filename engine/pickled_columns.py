"""The pickled entries of a capture whose keys are integers, with the keys beside them in columns.

Whoever files them has group, key and size of each entry without reading a pickle. Beyond a budget the pickles wait on
disk, as in `pickled_groups.py`. Values that nothing can change are pickled only when they are filed: until then the
capture shares them with the state, and no copy of them is made.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine import pickled_groups
from engine.pickled_groups import NamelessFile
from graphs.routing import KEY_GROUPS, key_groups
from recovery.keyed_pickles import KeyedPickles, PickledRows
from recovery.typed_groups import Column

PIECE_BYTES_MAX = 1 << 30
"""A column of a table has at most twice as many."""

_ENTRY_BYTES = 32
"""What the pickle of an entry takes besides the bytes of its value, or a little more."""


@dataclass(slots=True)
class _Piece:
    """Entries that were added together, by group: values, or pickles, of which entry `i` begins at `starts[i]`.

    `data` is None once it is in the file, at `offset`.
    """

    groups: Column
    keys: Column
    starts: Column
    data: bytes | None = None
    offset: int = 0
    values: list[Any] = field(default_factory=list[Any])


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

    def add_values(self, keys: Column, values: list[Any]) -> None:
        """Add a value for each key that nothing can change, and whose pickle names no class."""
        lengths = (len(value) if type(value) is bytes else 0 for value in values)
        sizes = np.fromiter(lengths, np.int64, len(values)) + _ENTRY_BYTES
        for piece, chosen in self._new_pieces(keys, sizes):
            piece.values = list(map(values.__getitem__, chosen))

    def _new_pieces(self, keys: Column, sizes: Column) -> Iterator[tuple[_Piece, list[int]]]:
        """Pieces for these entries, and the places of the entries of each, in the order of their groups."""
        groups = key_groups(keys).astype(np.uint8)
        self._sizes += np.bincount(groups, sizes, KEY_GROUPS).astype(np.int64)
        # For single bytes numpy uses a radix sort.
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(sizes[order])
        for chosen in np.split(order, np.flatnonzero(np.diff(ends // PIECE_BYTES_MAX)) + 1):
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
        return self._sizes.tolist()

    def rows(self, first: int, last: int) -> Iterator[PickledRows]:
        """The entries of these groups, both included."""
        for piece in self._pieces:
            low, high = np.searchsorted(piece.groups, (first, last + 1)).tolist()
            if low < high:
                groups, keys = piece.groups[low:high].astype(np.int32), piece.keys[low:high]
                if piece.values:
                    entries = zip(keys.tolist(), piece.values[low:high], strict=True)
                    payloads = [pickle.dumps(entry, 5) for entry in entries]
                    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
                    yield PickledRows(groups, keys, sizes, b"".join(payloads))
                else:
                    yield PickledRows(groups, keys, np.diff(piece.starts[low : high + 1]), self._data(piece, low, high))

    def _data(self, piece: _Piece, low: int, high: int) -> bytes:
        start, end = piece.starts[[low, high]].tolist()
        if piece.data is not None:
            return piece.data[start:end]
        if self._file is None:
            raise RuntimeError(f"{end - start} bytes of a capture are neither in memory nor in a file")
        return self._file.read(piece.offset + start, end - start)

    def __getitem__(self, group: int) -> bytes:
        found = b"".join(rows.data for rows in self.rows(group, group))
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._sizes).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._sizes))
