"""The pickled entries of a capture by key group: beyond a budget they wait on disk until the snapshot is written.

So a capture of a large state needs no second copy of it in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

KEPT_BYTES_MAX = 16 << 20


class _Piece(NamedTuple):
    offset: int
    size: int


class PickledGroups(Mapping[int, bytes]):
    """Group -> its entries, as concatenated pickles.

    - bytes_spilled: how much is on disk.
    - _kept: entries in memory, by group. _pieces: where the earlier ones are in the file.
    - _can_spill: False after a write that failed. Then the rest stays in memory, since the task must not fail.

    >>> groups = PickledGroups()
    >>> groups.add(3, [b"one", b"two"])
    >>> groups[3], groups.bytes_spilled
    (b'onetwo', 0)
    """

    def __init__(self) -> None:
        self.bytes_spilled = 0
        self._kept: dict[int, list[bytes]] = {}
        self._kept_bytes = 0
        self._pieces: dict[int, list[_Piece]] = {}
        self._file: NamelessFile | None = None
        self._can_spill = True

    def add(self, group: int, payloads: list[bytes]) -> None:
        """Add entries to a group."""
        self._kept.setdefault(group, []).extend(payloads)
        self._kept_bytes += sum(map(len, payloads))
        if self._kept_bytes > KEPT_BYTES_MAX and self._can_spill:
            try:
                self._spill()
            except OSError:
                self._can_spill = False

    def _spill(self) -> None:
        file = self._file = self._file or NamelessFile()
        pieces: dict[int, _Piece] = {}
        end = self.bytes_spilled
        for group, payloads in self._kept.items():
            data = b"".join(payloads)
            file.write(data, end)
            pieces[group] = _Piece(end, len(data))
            end += len(data)
        # Only now: after a failure all of it is still in memory.
        for group, piece in pieces.items():
            self._pieces.setdefault(group, []).append(piece)
        self.bytes_spilled = end
        self._kept, self._kept_bytes = {}, 0

    def __getitem__(self, group: int) -> bytes:
        pieces, kept = self._pieces.get(group, ()), self._kept.get(group, ())
        if not pieces and not kept:
            raise KeyError(group)
        if self._file is None:
            return b"".join(kept)
        return b"".join((*(self._file.read(*piece) for piece in pieces), *kept))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._kept.keys() | self._pieces.keys()))

    def __len__(self) -> int:
        return len(self._kept.keys() | self._pieces.keys())


class NamelessFile:
    """A file that disappears when nothing refers to it any more, even if the process is killed."""

    def __init__(self) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="backedge-capture-")
        os.unlink(path)

    def write(self, data: bytes, offset: int) -> None:
        """Write all of it, or raise an `OSError`."""
        rest = memoryview(data)
        while rest:  # a disk that is nearly full accepts only a part
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def read(self, offset: int, size: int) -> bytes:
        """Read what was written there."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size:
            raise OSError(f"a temporary file of a capture has lost {size - len(data)} bytes at {offset}")
        return data

    def __del__(self) -> None:
        os.close(self._descriptor)
