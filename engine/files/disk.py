"""What is done to the disk, one durable step at a time. A crash may come between any two of these calls.

A file is durable when it was synced and, after it was made or renamed, its folder too.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from engine.files.arrow import arrow


class Stream(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> object:
        """Add these bytes to the file."""
        ...

    def close(self) -> None:
        """Hand everything to the system."""
        ...


class Disk:
    """The local disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Disk().make_folder(Path(folder, "a", "b"))
    ...     Disk().names(Path(folder, "a"))
    ['b']
    """

    def open(self, path: Path, *, is_private: bool = False) -> Stream:
        """A new file, for this user alone if it is private. It is not buffered: a caller writes a batch at a time."""
        if is_private:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # Not a file of Python's: those complain when they are dropped unclosed, which is what a failed attempt does.
        return arrow().OSFile(str(path), "wb")

    def sync_file(self, path: Path) -> None:
        """Make the content of a file durable."""
        self._sync(path, os.O_RDONLY)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, in one step, in place of what had the name."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. `FileExistsError` if something has that name: nothing is ever replaced."""
        os.link(source, target, follow_symlinks=False)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def truncate(self, path: Path) -> None:
        """Empty a file."""
        os.truncate(path, 0)

    def make_folder(self, path: Path, *, is_private: bool = False) -> None:
        """Make a folder and those above it, durably, if they are not there. A private one is for this user alone."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(0o700 if is_private else 0o777, exist_ok=True)
        self.sync_folder(path.parent)

    def remove_empty(self, path: Path) -> None:
        """Remove a folder if nothing is in it."""
        with suppress(OSError):
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """What is in a folder, sorted; nothing when there is no folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def try_out(self, folder: Path) -> None:
        """Write a file into a folder, link and remove it: only this tells whether it can be done."""
        path = folder / f"_try-{secrets.token_hex(8)}"
        linked = path.with_suffix(".linked")
        try:
            stream = self.open(path)
            stream.write(b"-")
            stream.close()
            self.link(path, linked)
        finally:
            self.remove(linked)
            self.remove(path)

    def _sync(self, path: Path, flags: int) -> None:
        opened = os.open(path, flags)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


class UnsyncedDisk(Disk):
    """A disk whose host does not fail while it is used, as in a simulation."""

    def _sync(self, path: Path, flags: int) -> None:
        """Nothing is lost that the system has."""
