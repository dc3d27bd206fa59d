"""What does not fit in memory waits on disk (rule 9), in files without a name: a process that dies leaves none behind.

Payloads are appended to segments, a fraction of the space each. A segment's space is free again when nothing refers to
any of its payloads any more, neither a queue nor a log; the last one to do so may be the thread that writes a log.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque

from engine.task_errors import LoopOverflowError
from recovery.channels import Stored

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
        """Its bytes."""
        return os.pread(self._segment.file, self._size, self._offset)


class SpillSpace:
    """The disk that one actor may use, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_ever = 0
        self._used = 0
        self._freed: deque[int] = deque()
        self._segment: weakref.ref[_Segment] | None = None

    @property
    def bytes_used(self) -> int:
        """What the files hold that something refers to."""
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used

    def store(self, payload: bytes) -> Spilled:
        """Put a payload on disk."""
        if self.bytes_used + len(payload) > self.bytes_max:
            raise LoopOverflowError(
                f"what waits in the loops of this process has outgrown its {self.bytes_max:,} bytes of disk: send less "
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
    """A file without a name, closed and gone when nothing refers to it."""

    def __init__(self, file: int, freed: deque[int]) -> None:
        self.file = file
        self.size = 0
        self._freed = freed

    def append(self, payload: bytes) -> Spilled:
        spilled = Spilled(self, self.size, len(payload))
        rest = memoryview(payload)
        while rest:  # a disk that is nearly full takes a part
            written = os.write(self.file, rest)
            self.size += written
            rest = rest[written:]
        return spilled

    def __del__(self) -> None:
        self._freed.append(self.size)
        os.close(self.file)


def _nameless_file() -> int:
    """The descriptor of a file that is gone when it is closed."""
    file, path = tempfile.mkstemp(prefix="backedge-spill-")
    os.unlink(path)
    return file
