"""CPU time and peak memory of the steps of one process (Linux)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_OWN = Path("/proc/self")


class Meter:
    """Runs steps, and notes what each takes: step -> CPU seconds, and MB at its peak beyond what was there before.

    The garbage collector is off meanwhile: what it takes depends on what else is in memory.
    """

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}

    def __call__(self, step: str, work: Callable[[], T]) -> T:
        """The result of the work.

        >>> meter = Meter()
        >>> len(meter("copy", lambda: bytes(50_000_000))), meter.found["copy"][1] > 40
        (50000000, True)
        """
        gc.collect()
        before_mb = _resident_mb("VmRSS")
        (_OWN / "clear_refs").write_text("5")  # resets the peak
        gc.disable()
        began_s = time.process_time()
        try:
            result = work()
        finally:
            gc.enable()
        self.found[step] = time.process_time() - began_s, max(0.0, _resident_mb("VmHWM") - before_mb)
        return result


def _resident_mb(field: str) -> float:
    lines = (_OWN / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
