"""The pickled entries of a capture: beyond a budget they wait on disk until the snapshot is written.

So a capture of a large state needs no second copy of it in memory.
"""

from __future__ import annotations

import os
import tempfile

from backedge.recovery.cut.keyed_parts import Pickles

KEPT_BYTES_MAX = 16 << 20


class SpilledPickles:
    """Parts with pickles, in the order in which they were added.

    - parts: all of them. bytes_spilled: how much of what they hold is on disk, that of the first ones.
    - _can_spill: False after a write that failed. Then the rest stays in memory, since the task must not fail.
    """

    def __init__(self) -> None:
        self.parts: list[Pickles] = []
        self.bytes_spilled = 0
        self._parts_spilled = 0
        self._kept_bytes = 0
        self._file: NamelessFile | None = None
        self._can_spill = True

    def add(self, part: Pickles) -> None:
        """Add a part whose pickles are all of its data."""
        self.parts.append(part)
        self._kept_bytes += int(part.starts[-1])
        if self._kept_bytes > KEPT_BYTES_MAX and self._can_spill:
            try:
                self._spill()
            except OSError:
                self._can_spill = False

    def _spill(self) -> None:
        file = self._file = self._file or NamelessFile()
        end = self.bytes_spilled
        spilled: list[Pickles] = []
        for part in self.parts[self._parts_spilled :]:
            file.write(part.stretch, end)
            spilled.append(part._replace(starts=part.starts + end, data=file))
            end += int(part.starts[-1])
        # Only now: after a failure all of it is still in memory.
        self.parts[self._parts_spilled :] = spilled
        self._parts_spilled, self.bytes_spilled, self._kept_bytes = len(self.parts), end, 0


class NamelessFile:
    """A file that disappears when nothing refers to it any more, even if the process is killed."""

    _descriptor = -1

    def __init__(self) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="backedge-capture-")
        os.unlink(path)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of it, or raise an `OSError`."""
        rest = memoryview(data)
        while rest:  # a disk that is nearly full accepts only a part
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def __getitem__(self, part: slice) -> bytes:
        """What was written there."""
        size = part.stop - part.start
        data = os.pread(self._descriptor, size, part.start)
        if len(data) < size:
            raise OSError(f"a temporary file of a capture has lost {size - len(data)} bytes at {part.start}")
        return data

    def __del__(self) -> None:
        if self._descriptor >= 0:  # otherwise it could not be made
            os.close(self._descriptor)
