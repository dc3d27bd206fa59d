"""The built-in store: a folder on a disk, or on a file system that all hosts have mounted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from io import BufferedIOBase
from urllib.parse import unquote, urlsplit

from backedge.recovery.stores.folder import FOLDER_MODE, Folder, Write, is_empty, sync_folder
from backedge.recovery.stores.names import Parts, parts_of, path_of
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_protocol import FileFacts, Store


class FolderStore(Store):
    """Files in a folder, whose rules are in `folder.py`. Takes a path, or a URI such as file:///data/cuts."""

    def __init__(self, location: str, write: Write = os.write) -> None:
        self._write = write
        self._folder = Folder(local_path(location), write)
        # The folder in it that this store stands for. It need not exist.
        self._below: Parts = ()

    def __repr__(self) -> str:
        return f"FolderStore({self.location!r})"

    @property
    def location(self) -> str:
        return self._folder.full(self._below)

    def below(self, folder: str) -> FolderStore:
        below = copy(self)
        below._below = self._full(folder)
        return below

    def prepare(self, is_signed: bool) -> None:
        """Make the folder if it is missing, for this user alone. Unless files are signed, it must belong to this user.

        That is checked again each time the folder is opened.
        """
        make_folder(self.location)
        self._folder = Folder(self.location, self._write, must_be_own=not is_signed)
        self._below = ()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._folder.open(self._full(name)) as file:
            file.seek(start)
            rest = max(os.fstat(file.fileno()).st_size - start, 0)
            # One byte more than there is: a file that grows meanwhile is not taken for a whole one.
            return file.read(rest + 1 if length is None else min(length, rest + 1))

    @contextmanager
    def open(self, name: str) -> Generator[BufferedIOBase]:
        """Open a file. Another one that takes its name meanwhile is not read."""
        with self._folder.open(self._full(name)) as file:
            yield file

    def facts(self, name: str) -> FileFacts | None:
        """Size and time of a file, or of whatever has its name."""
        found = self._folder.status(self._full(name))
        return None if found is None or stat.S_ISDIR(found.st_mode) else FileFacts(found.st_size, found.st_mtime)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files. A crash of the system may undo it until they are made durable."""
        self._folder.write({self._full(name): data for name, data in files.items()})

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        self._folder.write_pieces(self._full(name), pieces)

    def move(self, name: str, to: str) -> None:
        """Rename a file, durably and in one step. Other stores cannot."""
        self._folder.move(self._full(name), self._full(to))

    def create(self, name: str, data: bytes) -> bool:
        """Create a file by a link to its name."""
        return self._folder.create(self._full(name), data)

    def make_durable(self, names: Collection[str]) -> None:
        """Sync files, and all folders that lead to them."""
        self._folder.settle([self._full(name) for name in names])

    def list(self, folder: str = "") -> list[str]:
        """All files, those included that an interrupted write has left."""
        above = len(self._below)
        return [path_of(parts[above:]) for parts in self._folder.walk(self._full(folder))]

    def folders(self, folder: str = "") -> list[str]:
        return self._folder.folders(self._full(folder))

    def remove(self, names: Collection[str]) -> None:
        """Remove files, and the folders that this leaves empty. Durable."""
        self._folder.remove([self._full(name) for name in names])

    def _full(self, name: str) -> Parts:
        parts = parts_of(name) if name else ()
        if parts is None:
            raise OSError(errno.EINVAL, "the name leads out of the store", name)
        return (*self._below, *parts)


def local_path(location: str) -> str:
    """The absolute path of a local folder: of a path, or of a URI with the scheme file.

    >>> local_path("file:///data/cuts%20of%20May")
    '/data/cuts of May'
    """
    url = urlsplit(location)
    if url.scheme == "file" and "://" in location:
        if url.netloc not in {"", "localhost"}:
            raise StoreError(
                f"{location} names the host {url.netloc!r}, and only this one can be read: mount the folder, and write "
                "file:///FOLDER"
            )
        return os.path.abspath(unquote(url.path))
    return os.path.abspath(location)


def make_folder(path: str) -> None:
    """Make a folder if it is missing, for this user alone, and durable in the folders above it."""
    try:
        _make(path, FOLDER_MODE)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(
            f"files cannot be kept in {path}: {_no_folder(path)} is a file; give another folder"
        ) from error
    except OSError as error:
        raise StoreError(
            f"files cannot be kept in {path}: it cannot be created ({error.strerror}); create it, or give a folder "
            "that this user may write to"
        ) from error
    if not os.path.isdir(path) or os.path.islink(path):
        found = "a symbolic link" if os.path.islink(path) else "a file"
        raise StoreError(f"files cannot be kept in {path}: it is {found}; remove it, or give another folder")


def _make(path: str, mode: int = 0o777) -> None:
    above = os.path.dirname(path)
    if os.path.lexists(path):
        if is_empty(path):
            # The process that made it may have died before it was durable. Nothing is put into one that is not.
            with suppress(PermissionError):
                sync_folder(above)
        return
    _make(above)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_folder(above)


def _no_folder(path: str) -> str:
    """The topmost file that stands where a folder should be."""
    above = os.path.dirname(path)
    return path if above == path or os.path.isdir(above) else _no_folder(above)
