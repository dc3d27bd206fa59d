"""What a run may leave behind on this machine: processes, and folders for its sockets."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.gates import HANG_S

ACTORS = ("ray::TaskActor", "ray::SupervisorActor", "ray::PoolActor", "ray::PoolDispatcher", "ray::ReceivedActor")
DEADLINE_MS = int(1000 * HANG_S)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it is gone."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def name_of(pid: int) -> str:
    """What a process is called; empty if it is gone, or only waits to be reaped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def processes() -> Iterator[int]:
    """Every process of this machine."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def actors_below(ancestor: int) -> dict[int, str]:
    """The actors that run below a process, by their number."""
    found: dict[int, str] = {}
    for pid in processes():
        name = name_of(pid)
        above = pid if name.startswith(ACTORS) else 0
        while above > 1 and above != ancestor:
            above = parent_of(above)
        if above == ancestor:
            found[pid] = name
    return found


def supervisor_of(before: dict[int, str]) -> int:
    """The process of the supervisor that was not there before."""
    found = {pid: name for pid, name in actors_below(os.getpid()).items() if pid not in before}
    (supervisor,) = [pid for pid, name in found.items() if name.startswith("ray::SupervisorActor")]
    return supervisor


def has_ended(pid: int, timeout_ms: int = DEADLINE_MS) -> bool:
    """Whether a process is over within that time."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        return bool(poll.poll(timeout_ms))
    finally:
        os.close(watched)


def end(pid: int) -> None:
    """End a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def folders() -> set[str]:
    """Folders for the sockets of mailboxes."""
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("backedge-")}


@dataclass(frozen=True)
class Leftovers:
    """What is there at a moment."""

    actors: dict[int, str]
    folders: set[str]

    @staticmethod
    def now(ancestor: int | None = None) -> Leftovers:
        """What is there now, of actors below a process: this one unless told."""
        return Leftovers(actors_below(ancestor or os.getpid()), folders())

    def without(self, before: Leftovers) -> Leftovers:
        """What was not there before."""
        new = {pid: name for pid, name in self.actors.items() if pid not in before.actors}
        return Leftovers(new, self.folders - before.folders)

    def expect_none(self) -> None:
        """Raise unless all of it is over, or will be in a moment."""
        deadline_s = time.monotonic() + DEADLINE_MS / 1000
        left = {
            pid: name
            for pid, name in self.actors.items()
            if not has_ended(pid, max(0, int(1000 * (deadline_s - time.monotonic()))))
        }
        for pid in left:
            end(pid)
        assert not left, f"processes are left: {left}"
        assert not self.folders & folders(), f"folders are left: {self.folders & folders()}"
