"""Processes that stand still, and go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.gates import wait_for


def state_of(pid: int) -> str:
    """The state of a process, in a letter."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def let_stand_still(pids: Iterable[int]) -> None:
    """Stop processes, and wait until each has noticed: a signal takes a moment."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_for(lambda pid=pid: state_of(pid) == "T", f"process {pid} stands still")


def wake(pids: Iterable[int], ticks_min: int = 1) -> None:
    """Let processes go on, and wait until each has done something: it has used a processor for that many ticks."""
    before = {pid: ticks_of(pid) for pid in pids}
    for pid in before:
        os.kill(pid, signal.SIGCONT)
    for pid, ticks in before.items():
        wait_for(lambda pid=pid, ticks=ticks: ticks_of(pid) >= ticks + ticks_min, f"process {pid} goes on")


def ticks_of(pid: int) -> int:
    """How long a process has used a processor, in ticks of 10 ms."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
