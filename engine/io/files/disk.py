"""Operations on the disk. A crash may happen between any two steps; only `create` takes several.

A file is durable after it was synced and, if it was created or renamed, after its folder was synced, too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from backedge.engine.batches.arrow import arrow
from backedge.recovery.stores.folder_store import is_empty


class Stream(Protocol):
    """A file open for writing."""

    def write(self, data: bytes) -> object:
        """Add these bytes to the file."""
        ...

    def close(self) -> None:
        """Pass everything to the system."""


class Disk:
    """The local disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Disk().make_folder(Path(folder, "a", "b"))
    ...     Disk().names(Path(folder, "a"))
    ['b']
    """

    def __init__(self) -> None:
        # Folders that are known to be durable in the folder above.
        self._durable: set[Path] = set()

    def open(self, path: Path, *, is_private: bool = False) -> Stream:
        """Create a file, for this user alone if it is private. It is unbuffered: callers write whole batches."""
        if is_private:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # Not a Python file object: those complain when dropped unclosed, as happens in a failed attempt.
        return arrow().OSFile(str(path), "wb")

    def read(self, path: Path) -> BinaryIO:
        """Open a file for reading. What is removed or created under its name meanwhile is not read."""
        return path.open("rb")

    def sync_file(self, path: Path) -> None:
        self._sync(path, os.O_RDONLY)

    def sync_folder(self, path: Path) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file in one step, replacing any file of that name."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. `FileExistsError` if the name is taken: nothing is ever replaced."""
        os.link(source, target, follow_symlinks=False)

    def create(self, path: Path, made: Path, write: Callable[[Path], None]) -> None:
        """Create a file that is whole and durable as soon as it has its name. `FileExistsError` if that is taken.

        `write` writes its content to `made`, a path that nothing else uses.
        """
        try:
            write(made)
            self.sync_file(made)
            self.link(made, path)
        finally:
            self.remove(made)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path, *, is_private: bool = False) -> None:
        """Create a folder and its parents durably, if missing. A private folder is accessible to this user alone."""
        if not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir(0o700 if is_private else 0o777, exist_ok=True)
            self.sync_folder(path.parent)
        elif path not in self._durable and is_empty(str(path)):
            # A process that made it may have died before it was durable. Nothing is put into one that is not.
            with suppress(PermissionError):
                self.sync_folder(path.parent)
        self._durable.add(path)

    def remove_empty(self, path: Path) -> None:
        with suppress(OSError):
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """The names in a folder, sorted; empty if the folder does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def try_out(self, folder: Path) -> None:
        """Create, link and remove a file in a folder: only this shows whether the folder is usable."""
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


class AnonymousDisk(Disk):
    """A local disk whose files lose their names when they are created, so that they go when this process dies."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Path, int] = {}

    def open(self, path: Path, *, is_private: bool = False) -> Stream:
        stream = super().open(path, is_private=is_private)
        self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.unlink()
        return stream

    def read(self, path: Path) -> BinaryIO:
        file = os.fdopen(os.dup(self._open[path]), "rb")
        file.seek(0)
        return file

    def remove(self, path: Path) -> None:
        if path in self._open:
            os.close(self._open.pop(path))
