"""The built-in store: files in a local folder, or in one on a file system that all hosts have mounted.

They are whole or absent, durable once they are settled, and never outside of the folder.

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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from io import BufferedIOBase
from urllib.parse import unquote, urlsplit

import numpy as np

from backedge.recovery.stores.names import TEMPORARY, Parts, parts_of, path_of
from backedge.recovery.stores.store_errors import OutcomeUnknownError, StoreContractError, StoreError
from backedge.recovery.stores.store_protocol import FileFacts, Store

Write = Callable[[int, memoryview], int]
"""Writes to an open file and returns how many bytes it wrote: `os.write`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: opening a planted pipe must not hang.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Another task may remove the empty folder of an aborted epoch just before we write into it.
_WRITE_TRIES_MAX = 20
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}
_WRITTEN_BACK_BYTES = 8 << 20
_PAST_CACHE_BYTES, _BLOCK = 1 << 20, 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
FOLDER_MODE = 0o700


class FolderStore(Store):
    """Files in a folder. Takes a path, or a URI such as file:///data/cuts."""

    def __init__(self, location: str, write: Write = os.write) -> None:
        self._path = local_path(location)
        self._write = write
        # The folder in it that this store stands for. It need not exist.
        self._below: Parts = ()
        # Whether other users must not be able to write into it.
        self._must_be_own = False

    def __repr__(self) -> str:
        return f"FolderStore({self.location!r})"

    @property
    def location(self) -> str:
        return self._shown(self._below)

    def below(self, folder: str) -> FolderStore:
        below = copy(self)
        below._below = self._parts(folder)
        return below

    def prepare(self, is_signed: bool) -> None:
        """Make the folder if it is missing, for this user alone. Unless files are signed, it must belong to this user.

        That is checked again each time the folder is opened.
        """
        make_folder(self.location)
        self._path, self._below, self._must_be_own = self.location, (), not is_signed

    def _parts(self, name: str) -> Parts:
        parts = parts_of(name) if name else ()
        if parts is None:
            raise OSError(errno.EINVAL, "the name leads out of the store", name)
        return (*self._below, *parts)

    def _shown(self, parts: Parts) -> str:
        return os.path.join(self._path, *parts)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self.open(name) as file:
            file.seek(start)
            rest = max(os.fstat(file.fileno()).st_size - start, 0)
            # One byte more than there is: a file that grows meanwhile is not taken for a whole one.
            return file.read(rest + 1 if length is None else min(length, rest + 1))

    @contextmanager
    def open(self, name: str) -> Generator[BufferedIOBase]:
        """Open a regular file, reached without a link. Another one that takes its name meanwhile is not read."""
        parts = self._parts(name)
        with self._opened() as opened:
            descriptor = self._open_file(opened.at(parts[:-1]), parts)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                path = self._shown(parts)
                raise StoreError(f"{path} is not a regular file, so the store did not write it: remove it")
            yield file

    def facts(self, name: str) -> FileFacts | None:
        """Size and time of a file, or of whatever has its name. Links are not followed."""
        parts = self._parts(name)
        try:
            with self._opened() as opened:
                found = os.stat(parts[-1], dir_fd=opened.at(parts[:-1]), follow_symlinks=False)
        except FileNotFoundError:
            return None
        return None if stat.S_ISDIR(found.st_mode) else FileFacts(found.st_size, found.st_mtime)

    def list(self, folder: str = "") -> list[str]:
        """All files, those included that an interrupted write has left; sorted within each folder."""
        above = len(self._below)
        return [path_of(parts[above:]) for parts in self._walk(self._parts(folder))]

    def folders(self, folder: str = "") -> list[str]:
        return [name for name, is_folder in self._entries(self._parts(folder)) if is_folder]

    def _walk(self, parts: Parts) -> Iterator[Parts]:
        for name, is_folder in self._entries(parts):
            if is_folder:
                yield from self._walk((*parts, name))
            else:
                yield (*parts, name)

    def _entries(self, parts: Parts) -> Collection[tuple[str, bool]]:
        """What is in a folder, sorted, and whether it is a folder itself; nothing if it does not exist."""
        try:
            with self._opened() as opened, os.scandir(opened.at(parts)) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except FileNotFoundError:
            return []

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, replacing earlier ones. A crash of the system may undo this until they are made durable."""
        self._write_all({self._parts(name): (data,) for name, data in files.items()})

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        self._write_all({self._parts(name): pieces})

    def move(self, name: str, to: str) -> None:
        """Rename a file, durably and in one step, in place of a file of the new name. Other stores cannot."""
        source, target = self._parts(name), self._parts(to)
        with self._opened() as opened, self._naming(source):
            of_source, of_target = opened.at(source[:-1]), opened.at(target[:-1], make=True)
            os.rename(source[-1], target[-1], src_dir_fd=of_source, dst_dir_fd=of_target)
            # Between two syncs the file must not be without a name.
            opened.sync(first=target[:-1])

    def create(self, name: str, data: bytes) -> bool:
        """Create a file by a link to its name."""
        parts = self._parts(name)
        with self._opened() as opened:
            with self._naming(parts):
                folder = opened.at(parts[:-1], make=True)
                temporary = self._write_temporary(folder, (data,), is_to_last=True)
            try:
                with self._linking(parts):
                    os.link(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                opened.sync()
            except FileExistsError:
                # Over NFS, this may be the answer to a repeated request whose first one succeeded: read it back.
                return False
            except OSError as error:
                raise OutcomeUnknownError(
                    error.errno, f"whether {self._shown(parts)} was created is unknown ({error.strerror or error})"
                ) from error
            finally:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return True

    @contextmanager
    def _linking(self, parts: Parts) -> Generator[None]:
        """Say so if the file system has no hard links. Then no file has the name, and none ever will."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StoreContractError(
                f"{self._shown(parts)} cannot be created: the file system has no hard links ({error.strerror}), so the "
                "store does not give guarantee 3 of the protocol of stores; give a folder on another file system"
            ) from error

    def make_durable(self, names: Collection[str]) -> None:
        """Sync files, and all folders that lead to them."""
        with self._opened() as opened:
            for parts in map(self._parts, names):
                descriptor = self._open_file(opened.at(parts[:-1]), parts)
                try:
                    _sync_to_disk(descriptor)
                finally:
                    os.close(descriptor)
            opened.sync()

    def _write_all(self, files: Mapping[Parts, Iterable[bytes]]) -> None:
        for tries_left in reversed(range(_WRITE_TRIES_MAX)):
            try:
                with self._opened() as opened:
                    self._replace(files, opened)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

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
        name = f"{TEMPORARY}{secrets.token_hex(8)}"
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

    def remove(self, names: Collection[str]) -> None:
        """Remove files, and the folders that this leaves empty. Durable."""
        folders: dict[Parts, list[str]] = {}
        for parts in map(self._parts, names):
            folders.setdefault(parts[:-1], []).append(parts[-1])
        left: set[Parts] = set()
        for parts, files in folders.items():
            with suppress(FileNotFoundError), self._opened() as opened:
                folder = opened.at(parts)
                for file in files:
                    with suppress(FileNotFoundError):
                        os.unlink(file, dir_fd=folder)
            left.add(self._remove_empty(parts))
        for parts in left:
            with suppress(FileNotFoundError), self._opened() as opened:
                _sync_to_disk(opened.at(parts))

    def _remove_empty(self, parts: Parts) -> Parts:
        """Remove a folder and those above it as long as they are empty. Returns the first one that is left."""
        while parts:
            try:
                with self._opened() as opened:
                    os.rmdir(parts[-1], dir_fd=opened.at(parts[:-1]))
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
    def _opened(self) -> Generator[_Opened]:
        opened = _Opened(self._open_folder(self._path, None, ()), self._open_folder)
        try:
            if self._must_be_own:
                # Check the folder that is open, not the path, which may lead elsewhere by now.
                check_own(self._path, os.fstat(opened.at(())))
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
        return OSError(error.errno, error.strerror, self._shown(parts))

    def _foreign(self, parts: Parts, wanted: str) -> StoreError:
        path = self._shown(parts)
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
