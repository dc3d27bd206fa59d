"""The pickled entries of a capture whose keys are integers, with the keys beside them in columns.

Whoever files them has group, key and size of each entry without reading a pickle. Beyond a budget the pickles wait on
disk, as in `pickled_groups.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine import pickled_groups
from engine.pickled_groups import NamelessFile
from graphs.routing import KEY_GROUPS, key_groups
from recovery.keyed_pickles import KeyedPickles, PickledRows
from recovery.typed_groups import Column

PIECE_BYTES_MAX = 1 << 30
"""A column of a table has at most twice as many."""


@dataclass(slots=True)
class _Piece:
    """Entries that were added together, by group. Entry `i` begins at `starts[i]` of the data.

    `data` is None once it is in the file, at `offset`.
    """

    groups: Column
    keys: Column
    starts: Column
    data: bytes | None
    offset: int = 0


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
        """Add an entry for each key."""
        if len(payloads) > 1 and sum(map(len, payloads)) > PIECE_BYTES_MAX:
            half = len(payloads) // 2
            self.add(keys[:half], payloads[:half])
            self.add(keys[half:], payloads[half:])
            return
        groups = key_groups(keys).astype(np.uint8)
        # For single bytes numpy uses a radix sort.
        order = np.argsort(groups, kind="stable")
        starts = np.zeros(len(payloads) + 1, np.int64)
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        np.cumsum(sizes[order], out=starts[1:])
        piece = _Piece(groups[order], keys[order], starts, b"".join(map(payloads.__getitem__, order.tolist())))
        self._sizes += np.bincount(groups, sizes, KEY_GROUPS).astype(np.int64)
        self._pieces.append(piece)
        self._kept.append(piece)
        self._kept_bytes += int(starts[-1])
        if self._kept_bytes > pickled_groups.KEPT_BYTES_MAX and self._can_spill:
            try:
                self._spill()
            except OSError:
                self._can_spill = False

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
        """The bytes of each key group."""
        return self._sizes.tolist()

    def rows(self, first: int, last: int) -> Iterator[PickledRows]:
        """The entries of these groups, both included."""
        for piece in self._pieces:
            low, high = np.searchsorted(piece.groups, (first, last + 1)).tolist()
            if low < high:
                sizes = np.diff(piece.starts[low : high + 1])
                start, end = piece.starts[[low, high]].tolist()
                if piece.data is not None:
                    data = piece.data[start:end]
                elif self._file is not None:
                    data = self._file.read(piece.offset + start, end - start)
                else:
                    raise RuntimeError(f"{end - start} bytes of a capture are neither in memory nor in a file")
                yield PickledRows(piece.groups[low:high].astype(np.int32), piece.keys[low:high], sizes, data)

    def __getitem__(self, group: int) -> bytes:
        found = b"".join(rows.data for rows in self.rows(group, group))
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._sizes).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._sizes))
