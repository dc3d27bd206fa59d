"""Describes how a process of a run died: its exit code or signal, the cause that Ray knows, and its log.

Ray reports neither exit code nor signal, and only a parent may wait for a process. Linux (from 6.15 on) reports both to
processes on the same host, through a file descriptor of the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import time
from collections.abc import Callable
from typing import Any, cast

from backedge.engine.on_ray.transport.control_messages import Arrival

# PIDFD_GET_INFO of linux/pidfd.h, with the first version of its struct: 64 bytes, the mask at 0, the status at 60.
_GET_INFO = 0xC040FF0B
_INFO_BYTES, _STATUS_AT = 64, 60
_HAS_EXITED = 1 << 3
_REAP_S, _LOOK_S = 0.5, 0.01
_CAUSE_CHARS_MAX = 300
_SAYS_NOTHING = ("its worker process has died", "Worker unexpectedly exits with a connection error code 2")


class WatchedProcess:
    """A process of this host whose exit status can be read after its end. Close it when no longer needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # Only available on Linux.
        open_fd = cast("Callable[[int], int] | None", getattr(os, "pidfd_open", None))
        try:
            self._fd = -1 if open_fd is None else open_fd(pid)
        except OSError:
            self._fd = -1  # it is gone already, or this kernel has no such descriptors

    def status(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None if the kernel does not report it."""
        deadline_s = time.monotonic() + _REAP_S
        while self._fd >= 0:
            info = bytearray(_INFO_BYTES)
            struct.pack_into("=Q", info, 0, _HAS_EXITED)
            try:
                fcntl.ioctl(self._fd, _GET_INFO, info)
            except OSError:
                return None
            if struct.unpack_from("=Q", info, 0)[0] & _HAS_EXITED:
                return os.waitstatus_to_exitcode(struct.unpack_from("=i", info, _STATUS_AT)[0])
            if time.monotonic() > deadline_s:
                return None  # not waited for yet
            time.sleep(_LOOK_S)
        return None

    def kill(self) -> None:
        """End the process, unless it has already ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def told(status: int | None) -> str:
    """An exit code or a signal in words.

    >>> told(-9), told(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    if status is None:
        return ""
    if status >= 0:
        return f"exit code {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"killed by {name}"


def cause_of(error: BaseException) -> str:
    """The cause that Ray knows for the death of an actor, without its advice; empty if Ray only knows that it died.

    >>> cause_of(RuntimeError("The actor is dead because its node has died."))
    'its node has died'
    """
    text = " ".join(str(error).split())
    found = re.search(
        r"(?:Worker exit detail: |because (?!.*Worker exit detail))(.*?)(?: Some common causes|\.?$)", text
    )
    cause = (found[1] if found else text).removesuffix(".")[:_CAUSE_CHARS_MAX]
    return "" if cause.startswith(_SAYS_NOTHING) else cause


def tell_death(arrival: Arrival | None, status: int | None, error: Any, *, is_planned: bool = False) -> str:
    """What is known about a death, to follow the word "died"; empty if nothing is. A planned one needs no log."""
    if is_planned and status in (None, -signal.SIGKILL):
        return ": killed by SIGKILL, as planned"
    parts = [told(status), cause_of(error)]
    if arrival is not None:
        parts += [f"it was process {arrival.pid} on {arrival.host}", f"its log is {arrival.log}" if arrival.log else ""]
    known = "; ".join(part for part in parts if part)
    return f": {known}" if known else ""
