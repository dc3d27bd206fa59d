"""Files in a local folder: whole or absent, durable once they are settled, and never outside of the folder.

- A file is written under a temporary name and renamed. Temporary names begin with a dot and are never read.
- To settle a file is to sync it, then its folder, and all folders above it: another process may have made them without
  syncing them yet. Settling many files at once costs a fraction of settling one by one.
- An exclusive file is durable at once: synced, then linked to its name, which fails when the name is taken. A file that
  has its name keeps it even if the folder cannot be synced: others may have read it.
- A user who can write into the folder can have code run when a cut is restored. So the folder is made for its owner
  alone. On request, a folder that belongs to another user, or that others may write to, is refused each time it is
  opened.
- Every part of a path is opened relative to the folder before it, and no symbolic link is followed. A planted link is
  refused, even one that is planted while a file is being opened.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader

import numpy as np

from backedge.recovery.stores.names import Parts, path_of
from backedge.recovery.stores.store_errors import OutcomeUnknownError, StoreError

Write = Callable[[int, memoryview], int]
"""Writes to an open file and returns how many bytes it wrote: `os.write`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: opening a planted pipe must not hang.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Another task may remove the empty folder of an aborted epoch just before we write into it.
_WRITE_TRIES_MAX = 20
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}
_TEMPORARY = ".part-"
_WRITTEN_BACK_BYTES = 8 << 20
_PAST_CACHE_BYTES, _BLOCK = 1 << 20, 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
FOLDER_MODE = 0o700


class Folder:
    """A folder that exists."""

    def __init__(self, path: str, write: Write = os.write, *, must_be_own: bool = False) -> None:
        """With `must_be_own`, other users must not be able to write into it."""
        self.path = path
        self._write = write
        self._must_be_own = must_be_own

    def full(self, parts: Parts) -> str:
        """The absolute path, for people to read."""
        return os.path.join(self.path, *parts)

    # -- reading -------------------------------------------------------------------------------------------------

    @contextmanager
    def open(self, parts: Parts) -> Generator[BufferedReader]:
        """Open a regular file for reading, reached without a link."""
        with self._open(parts[:-1]) as folder:
            descriptor = self._open_file(folder, parts)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._irregular(parts)
            yield file

    def names(self, parts: Parts = ()) -> list[str]:
        """The entries of a folder, sorted; none if it does not exist."""
        try:
            with self._open(parts) as folder:
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def status(self, parts: Parts) -> os.stat_result | None:
        """The status of a file or folder, links not followed; None if there is none."""
        try:
            with self._open(parts[:-1]) as folder:
                return os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def folders(self, parts: Parts) -> list[str]:
        """The folders in a folder, sorted; none if it does not exist. Links are not followed."""
        try:
            with self._open(parts) as folder, os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def walk(self, parts: Parts = ()) -> Iterator[Parts]:
        """Everything below a folder that is not a folder, sorted within each folder."""
        try:
            with self._open(parts) as folder, os.scandir(folder) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except FileNotFoundError:
            return
        for name, is_folder in found:
            if is_folder:
                yield from self.walk((*parts, name))
            else:
                yield (*parts, name)

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, files: Mapping[Parts, bytes]) -> None:
        """Write files, replacing earlier ones. A crash of the system may undo this until they are settled."""
        self._write_all({parts: (data,) for parts, data in files.items()})

    def write_pieces(self, parts: Parts, pieces: Iterable[bytes]) -> None:
        """Write a file piece by piece, like `write`."""
        self._write_all({parts: pieces})

    def _write_all(self, files: Mapping[Parts, Iterable[bytes]]) -> None:
        for tries_left in reversed(range(_WRITE_TRIES_MAX)):
            try:
                with self._opened() as opened:
                    self._replace(files, opened)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

    def settle(self, files: Iterable[Parts]) -> None:
        """Make files durable that any process of this host has written."""
        with self._opened() as opened:
            for parts in files:
                descriptor = self._open_file(opened.at(parts[:-1]), parts)
                try:
                    _sync_to_disk(descriptor)
                finally:
                    os.close(descriptor)
            opened.sync()

    def move(self, parts: Parts, to: Parts) -> None:
        """Rename a file durably, in one step, in place of a file of the new name."""
        with self._opened() as opened, self._naming(parts):
            source, target = opened.at(parts[:-1]), opened.at(to[:-1], make=True)
            os.rename(parts[-1], to[-1], src_dir_fd=source, dst_dir_fd=target)
            # Between two syncs the file must not be without a name.
            opened.sync(first=to[:-1])

    def create(self, parts: Parts, data: bytes) -> bool:
        """Create a file exclusively and durably. False if its name is taken.

        An `OutcomeUnknownError` means that it may have been created; any other `OSError`, that it was not.
        """
        with self._opened() as opened:
            with self._naming(parts):
                folder = opened.at(parts[:-1], make=True)
                temporary = self._write_temporary(folder, (data,), is_to_last=True)
            try:
                os.link(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                opened.sync()
            except FileExistsError:
                # Over NFS, this may be the answer to a repeated request whose first one succeeded: read it back.
                return False
            except OSError as error:
                raise OutcomeUnknownError(
                    error.errno, f"whether {self.full(parts)} was created is unknown ({error.strerror or error})"
                ) from error
            finally:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return True

    def _replace(self, files: Mapping[Parts, Iterable[bytes]], opened: _Opened) -> None:
        temporary: dict[Parts, str] = {}
        try:
            for parts, pieces in files.items():
                with self._naming(parts):
                    temporary[parts] = self._write_temporary(opened.at(parts[:-1], make=True), pieces)
            for parts in files:
                folder = opened.at(parts[:-1])
                os.rename(temporary[parts], parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                del temporary[parts]
        finally:
            for parts, name in temporary.items():
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened.at(parts[:-1]))

    def _write_temporary(self, folder: int, pieces: Iterable[bytes], *, is_to_last: bool = False) -> str:
        name = f"{_TEMPORARY}{secrets.token_hex(8)}"
        descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            size = begun = 0
            for piece in pieces:
                rest = memoryview(piece)
                if not size:
                    rest = rest[_write_past_cache(self._write, descriptor, rest) :]
                while rest:
                    rest = rest[self._write(descriptor, rest) :]
                size += len(piece)
                if size - begun >= _WRITTEN_BACK_BYTES:
                    _begin_to_write_back(descriptor, begun, size - begun)
                    begun = size
            if is_to_last:
                _sync_to_disk(descriptor)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
        return name

    # -- removing ------------------------------------------------------------------------------------------------

    def remove(self, files: Iterable[Parts]) -> None:
        """Remove files, and the folders that this leaves empty; durably. Missing files are ignored."""
        folders: dict[Parts, list[str]] = {}
        for parts in files:
            folders.setdefault(parts[:-1], []).append(parts[-1])
        left: set[Parts] = set()
        for parts, names in folders.items():
            with suppress(FileNotFoundError), self._open(parts) as folder:
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
            left.add(self._remove_empty(parts))
        for parts in left:
            with suppress(FileNotFoundError), self._open(parts) as folder:
                _sync_to_disk(folder)

    def _remove_empty(self, parts: Parts) -> Parts:
        """Remove a folder and those above it as long as they are empty. Returns the first one that is left."""
        while parts:
            try:
                with self._open(parts[:-1]) as folder:
                    os.rmdir(parts[-1], dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    pass  # another process removed it
                elif error.errno in _NOT_EMPTY:
                    return parts
                else:
                    raise
            parts = parts[:-1]
        return parts

    # -- opening -------------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, parts: Parts) -> Generator[int]:
        with self._opened() as opened:
            yield opened.at(parts)

    @contextmanager
    def _opened(self) -> Generator[_Opened]:
        opened = _Opened(self._open_folder(self.path, None, ()), self._open_folder)
        try:
            if self._must_be_own:
                # Check the folder that is open, not the path, which may lead elsewhere by now.
                check_own(self.path, os.fstat(opened.at(())))
            yield opened
        finally:
            opened.close()

    def _open_folder(self, name: str, folder: int | None, parts: Parts) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except OSError as error:
            # Opening a link or a file as a folder gives the same error.
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise self._foreign(parts, "a folder") from error
            raise self._at_path(error, parts) from error

    def _open_file(self, folder: int, parts: Parts) -> int:
        try:
            return os.open(parts[-1], _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:
                raise self._foreign(parts, "a file") from error
            raise self._at_path(error, parts) from error

    @contextmanager
    def _naming(self, parts: Parts) -> Generator[None]:
        """Give errors of the system the whole path of the file that is written: they have no path, or its last part."""
        try:
            yield
        except OSError as error:
            if error.errno is None or os.path.isabs(error.filename or ""):
                raise
            raise self._at_path(error, parts) from error

    def _at_path(self, error: OSError, parts: Parts) -> OSError:
        """The same error with the whole path, of which the system was given the last part."""
        return OSError(error.errno, error.strerror, self.full(parts))

    def _irregular(self, parts: Parts) -> StoreError:
        return StoreError(f"{self.full(parts)} is not a regular file, so the store did not write it: remove it")

    def _foreign(self, parts: Parts, wanted: str) -> StoreError:
        path = self.full(parts)
        found = "a symbolic link" if os.path.islink(path) else "something else"
        return StoreError(
            f"{path} should be {wanted} and is {found}: a store neither follows nor creates links; restore the "
            f"original, or remove it ({path_of(parts) or 'the folder of the job'})"
        )


class _Opened:
    """Open folders, each opened once, so that work in many of them takes few system calls."""

    def __init__(self, top: int, open_folder: Callable[[str, int, Parts], int]) -> None:
        self._descriptors: dict[Parts, int] = {(): top}
        self._open_folder = open_folder

    def at(self, parts: Parts, *, make: bool = False) -> int:
        """The folder of these parts, opened below the one above it."""
        if parts not in self._descriptors:
            above = self.at(parts[:-1], make=make)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(parts[-1], FOLDER_MODE, dir_fd=above)
            self._descriptors[parts] = self._open_folder(parts[-1], above, parts)
        return self._descriptors[parts]

    def sync(self, first: Parts | None = None) -> None:
        """Sync all open folders, the deepest first; but before all others those that lead to `first`."""

        def turn(parts: Parts) -> tuple[bool, int]:
            return first is None or parts != first[: len(parts)], -len(parts)

        for parts in sorted(self._descriptors, key=turn):
            _sync_to_disk(self._descriptors[parts])

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def check_own(path: str, found: os.stat_result) -> None:
    """Raise if users other than this one and root can write into a folder."""
    risk = "anyone who writes into it can run code here when a cut is restored"
    fix = "sign the cuts (key=, --key-file or BACKEDGE_KEY)"
    if found.st_uid not in {os.geteuid(), 0}:
        raise StoreError(
            f"{path} belongs to another user (uid {found.st_uid}; this process has {os.geteuid()}), and {risk}: give a "
            f"folder of your own, or {fix}"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise StoreError(
            f"{path} may be written to by other users (mode {stat.S_IMODE(found.st_mode):04o}), and {risk}: run "
            f"`chmod go-w` on it if nobody else has used it, or {fix}"
        )


def is_empty(path: str) -> bool:
    """Whether this is a folder in which nothing is. One that this user may not look into counts as full."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def sync_folder(path: str) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_to_disk(descriptor)
    finally:
        os.close(descriptor)


def _begin_to_write_back(descriptor: int, start: int, size: int) -> None:
    """Have the kernel bring a part of a file to the disk now, so that a sync at the end has little left to wait for."""
    if hasattr(os, "posix_fadvise"):  # macOS has none
        with suppress(OSError):
            # What is not on the disk yet cannot be dropped from memory, but the kernel begins to write it.
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def _write_past_cache(write: Write, descriptor: int, data: memoryview) -> int:
    """Have the disk take the beginning of a file from memory where it is; return how many bytes it has.

    It can if that is the beginning of a page, as in memory that processes share. To copy it into the page cache takes
    5 to 30 times the processor time: a virtual machine may have to get the pages from its host.
    """
    blocks = len(data) // _BLOCK * _BLOCK
    flag = getattr(os, "O_DIRECT", 0)  # macOS has none
    if not flag or blocks < _PAST_CACHE_BYTES or np.frombuffer(data, np.uint8).ctypes.data % _BLOCK:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
        return write(descriptor, data[:blocks])
    except OSError:
        return 0  # not on this file system; if there is another reason, the next call fails, too
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _sync_to_disk(descriptor: int) -> None:
    # On macOS fsync leaves data in the drive's cache; this does not.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)
