"""Spills payloads that do not fit into memory (rule 9) to nameless files, so that a dead process leaves none behind.

Payloads are appended to segments, each a fraction of the space. A segment's space is free again when no queue and no
log refers to any of its payloads; the last reference may be released by the thread that writes a log.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque

from backedge.graphs.task_errors import LoopOverflowError
from backedge.recovery.protocol.channels import Stored

SEGMENTS = 64


class Spilled(Stored):
    """A payload on disk."""

    __slots__ = ("_offset", "_segment", "_size")

    def __init__(self, segment: _Segment, offset: int, size: int) -> None:
        self._segment = segment
        self._offset = offset
        self._size = size

    def __len__(self) -> int:
        return self._size

    def load(self) -> bytes:
        return os.pread(self._segment.file, self._size, self._offset)


class SpillSpace:
    """The disk space, in bytes, that one actor may use."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_ever = 0
        self._used = 0
        self._freed: deque[int] = deque()
        self._segment: weakref.ref[_Segment] | None = None

    @property
    def bytes_used(self) -> int:
        """The size of the files that are still referenced."""
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used

    def store(self, payload: bytes) -> Spilled:
        """Write a payload to disk."""
        if self.bytes_used + len(payload) > self.bytes_max:
            raise LoopOverflowError(
                f"the loops of this process need more than their {self.bytes_max:,} bytes of disk: send less "
                "round the loop, let more of it leave, or give the loops more room with loop_disk_bytes="
            )
        segment = None if self._segment is None else self._segment()
        if segment is None or segment.size >= self.bytes_max // SEGMENTS:
            segment = _Segment(_nameless_file(), self._freed)
            self._segment = weakref.ref(segment)
        before = segment.size
        try:
            return segment.append(payload)
        finally:
            self._used += segment.size - before
            self.bytes_ever += segment.size - before


class _Segment:
    """A nameless file that is closed and gone once nothing refers to it."""

    def __init__(self, file: int, freed: deque[int]) -> None:
        self.file = file
        self.size = 0
        self._freed = freed

    def append(self, payload: bytes) -> Spilled:
        spilled = Spilled(self, self.size, len(payload))
        rest = memoryview(payload)
        while rest:  # a disk that is nearly full accepts only a part
            written = os.write(self.file, rest)
            self.size += written
            rest = rest[written:]
        return spilled

    def __del__(self) -> None:
        self._freed.append(self.size)
        os.close(self.file)


def _nameless_file() -> int:
    """The descriptor of a file that disappears when it is closed."""
    file, path = tempfile.mkstemp(prefix="backedge-spill-")
    os.unlink(path)
    return file
