"""A disk whose power is cut: what was not synced is gone, by the strictest reading of what a sync promises.

- The content of a file is what it was when it was synced last; of one that never was, nothing.
- A folder has the names that it had when it was synced last: a name that was made since is gone, one that was removed
  since is back. Or it has all names as they are now: then a file that was renamed too early is there, and empty.

File systems keep more than that, each in its own way. Only `os.fsync` is watched, so it does not matter how files are
written, renamed, linked and removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Protocol

import pytest

Inode = int


class PowerCut(BaseException):
    """The process has died: alone, or with the whole machine. No code catches it."""


class Power:
    """Watches a folder, whose own name is durable. A process dies at sync `dies_at`, before or after it is made."""

    def __init__(self, top: Path, patch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.dies_at: int | None = None
        self.is_after = False
        self._place = top
        self._files: dict[Inode, bytes] = {}
        self._folders: dict[Inode, dict[str, Inode]] = {}
        # An inode that is held open is not used again.
        self._held: dict[Inode, int] = {}
        self._lock = Lock()
        patch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        """Make a file or a folder durable as it is now."""
        with self._lock:
            self.syncs += 1
            if self.syncs != self.dies_at or self.is_after:
                self._keep(Path(f"/proc/self/fd/{descriptor}"))
            if self.syncs == self.dies_at:
                raise PowerCut

    def _keep(self, path: Path) -> None:
        inode = self._hold(path)
        if path.is_dir():
            self._folders[inode] = dict(self._entries(path))
        else:
            self._files[inode] = path.read_bytes()

    def cut(self, to: Path) -> Path:
        """Make a folder with what is there when the power is back."""
        self._restore(self._place.stat().st_ino, to)
        return to

    def cut_but_for_names(self, to: Path) -> Path:
        """The same of a file system that has kept all names, and of no file more than was synced."""
        to.mkdir(0o700)
        for path in self._place.rglob("*"):  # a folder before what is in it
            if path.is_dir():
                (to / path.relative_to(self._place)).mkdir(0o700)
            else:
                (to / path.relative_to(self._place)).write_bytes(self._files.get(path.stat().st_ino, b""))
        return to

    def _restore(self, inode: Inode, to: Path) -> None:
        held = self._held.get(inode)
        if held is None or os.path.isdir(f"/proc/self/fd/{held}"):
            to.mkdir(0o700)
            for name, entry in self._folders.get(inode, {}).items():
                self._restore(entry, to / name)
        else:
            to.write_bytes(self._files.get(inode, b""))

    def _entries(self, path: Path) -> Iterator[tuple[str, Inode]]:
        for each in path.iterdir():
            with suppress(FileNotFoundError):  # another thread has just removed it
                yield each.name, self._hold(each)

    def _hold(self, path: Path) -> Inode:
        inode = path.stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def close(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])


class Life(Protocol):
    """What processes do in a folder, one after the other, and what they know to be durable.

    It is made when something may be in the folder already; no process dies of that.
    """

    def go_on(self) -> None:
        """Begin, or go on where a process has died."""

    def check(self, folder: Path) -> None:
        """What is known to be durable is in this folder, in which the power was cut, and a process goes on in it.

        It is called once for each of the two outcomes.
        """


def cut_at_each_sync(place: Path, begin: Callable[[Path], Life]) -> int:
    """Cut the power at each sync, before and after it is made; or let a process die there and cut it in the end.

    Returns how many syncs there are.
    """
    ran = _Runs(place, begin)
    for step in count(1):
        has_died = ran.cut(step, is_after=False)
        ran.cut(step, is_after=True)
        ran.cut(None, death=step)
        if not has_died:
            return step - 1
    raise AssertionError


def cut_after_each_death(place: Path, begin: Callable[[Path], Life]) -> int:
    """Let a process die before each sync, and cut the power after each later one. Returns how often that is."""
    ran = _Runs(place, begin)
    for death in count(1):
        steps = count(death + 1)
        while ran.cut(step := next(steps), death=death, is_after=True):
            pass
        if step == death + 1:
            return ran.count
    raise AssertionError


class _Runs:
    def __init__(self, place: Path, begin: Callable[[Path], Life]) -> None:
        self.count = 0
        self._place = place
        self._begin = begin

    def cut(self, step: int | None, *, death: int | None = None, is_after: bool = False) -> bool:
        """Whether the process was still at work when the power was cut. What is durable then is checked."""
        self.count += 1
        folder = self._place / str(self.count)
        (folder / "live").mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch, closing(Power(folder / "live", patch)) as power:
            life = self._begin(folder / "live")
            power.syncs, power.dies_at = 0, death
            if death is None or _dies(life.go_on):
                power.dies_at, power.is_after = step, is_after
                has_died = _dies(life.go_on)
            else:
                has_died = False
            left = power.cut(folder / "left"), power.cut_but_for_names(folder / "named")
        for each in left:
            life.check(each)
        shutil.rmtree(folder)
        return has_died


def _dies(work: Callable[[], object]) -> bool:
    try:
        work()
    except PowerCut:
        return True
    return False
