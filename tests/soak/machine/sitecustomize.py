"""Gives every Python of a soak's cluster a disk that may be slow and a clock that may jump. Python imports this first.

`tests/soak/machine_faults.py` writes the two figures, and reads how often they had an effect.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

FIGURES = struct.Struct("=dd")
"""At the beginning of the file: seconds that the clock is ahead, seconds that an fsync takes longer."""

COUNT = struct.Struct("=q")
"""Behind them, one for each: how often it was met, roughly, for processes do not wait for each other."""

SIZE = FIGURES.size + 2 * COUNT.size


def install(path: str) -> None:
    """Replace the system's clock and fsync in this process by those of the machine that a file describes."""
    with open(path, "r+b") as file:
        machine = mmap.mmap(file.fileno(), SIZE)
    time_s, time_ns, fsync = time.time, time.time_ns, os.fsync

    def met(which: int) -> float:
        figure = FIGURES.unpack_from(machine)[which]
        if figure:
            at = FIGURES.size + which * COUNT.size
            COUNT.pack_into(machine, at, COUNT.unpack_from(machine, at)[0] + 1)
        return figure

    def slowly(descriptor: int) -> None:
        time.sleep(met(1))
        fsync(descriptor)

    time.time = lambda: time_s() + met(0)
    time.time_ns = lambda: time_ns() + round(met(0) * 1e9)
    os.fsync = slowly


if "SOAK_MACHINE" in os.environ:
    install(os.environ["SOAK_MACHINE"])
