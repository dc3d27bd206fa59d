"""Notes that user functions write while they run, in any process, for the benchmark to read in the meantime.

A note is a time and a value, appended to a file in a single write. Times are from the monotonic clock, which is the
same in all processes of a machine.
"""

from __future__ import annotations

import os
import struct
import time
from functools import cache
from pathlib import Path

_NOTE = struct.Struct("dd")


def note(path: str, value: float) -> None:
    """Note a value with the current time."""
    os.write(_open(path), _NOTE.pack(time.monotonic(), value))


def read_notes(path: str, start: int = 0) -> list[tuple[float, float]]:
    """All notes from this number on, in the order in which they were written."""
    file = Path(path)
    if not file.exists():
        return []
    with file.open("rb") as notes:
        notes.seek(start * _NOTE.size)
        found = notes.read()
    whole = len(found) // _NOTE.size * _NOTE.size
    return [(at_s, value) for at_s, value in _NOTE.iter_unpack(found[:whole])]


@cache
def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
