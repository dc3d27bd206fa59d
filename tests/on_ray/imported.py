"""A module that knows when each process has imported it."""

from __future__ import annotations

import os
import time

IMPORTED_AT_S = time.monotonic()


def when(number: int) -> tuple[int, int, float]:
    """The number, this process, and when it has imported this module."""
    return number, os.getpid(), IMPORTED_AT_S
