"""Processes that stand still, and go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

STOPPED_S = 60.0


def state_of(pid: int) -> str:
    """The state of a process, in a letter."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def let_stand_still(pids: Iterable[int]) -> None:
    """Stop processes, and wait until each has noticed: a signal takes a moment."""
    deadline_s = time.monotonic() + STOPPED_S
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        while state_of(pid) != "T":
            assert time.monotonic() < deadline_s, f"process {pid} does not stand still: {state_of(pid)}"


def wake(pids: Iterable[int], ticks_min: int = 1) -> None:
    """Let processes go on, and wait until each has done something: it has used a processor for that many ticks."""
    deadline_s = time.monotonic() + STOPPED_S
    before = {pid: ticks_of(pid) for pid in pids}
    for pid in before:
        os.kill(pid, signal.SIGCONT)
    for pid, ticks in before.items():
        while ticks_of(pid) < ticks + ticks_min:
            assert time.monotonic() < deadline_s, f"process {pid} does not go on"


def ticks_of(pid: int) -> int:
    """How long a process has used a processor, in ticks of 10 ms."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
