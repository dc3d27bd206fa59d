"""The folder of a job: files that are whole or not there, durable once they are settled, and no way out of it.

- A file is written under a temporary name and renamed. Temporary names begin with a dot and are never read.
- It is settled by whoever is to promise that it lasts: the file is synced, then its folder, and all folders above it,
  for somebody else may have made them and not synced them yet. To settle many at once costs a fraction of one by one.
- An exclusive file is durable at once: synced, then linked to its name, which fails when the name is taken. The answer
  to a link proves nothing: over NFS a repeated request finds the entry that the first one made. So the file is read
  back, whatever the answer was. A file that has its name keeps it, even if the folder cannot be synced: others may have
  read it.
- Whoever can write into the folder can have code run when a cut is restored. So the folder is made for its owner alone,
  and one that is of another user, or that others may write to, is refused on request, each time it is opened.
- Every part of a path is opened relative to the folder before it, and no symbolic link is followed: one that was
  planted is refused, also if it is planted while we look.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader

from recovery.stores.names import Parts, path_of
from recovery.stores.schema import DOCUMENT_BYTES_MAX
from recovery.stores.store_errors import OutcomeUnknownError, SnapshotCorruptError, StoreError

Write = Callable[[int, memoryview], int]
"""Writes a piece to an open file and says how much of it: `os.write`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a planted pipe must not stop whoever opens it.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Another task may remove a folder of an aborted epoch, being empty, just before we write into it.
_WRITE_TRIES_MAX = 20
_REMOVE_TRIES_MAX = 3
_CHANGED_MEANWHILE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}
_TEMPORARY = ".part-"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
FOLDER_MODE = 0o700


class Folder:
    """A folder that is there already."""

    def __init__(self, path: str, write: Write = os.write, *, must_be_own: bool = False) -> None:
        """With `must_be_own`, other users must not be able to write into it."""
        self.path = path
        self._write = write
        self._must_be_own = must_be_own

    def full(self, parts: Parts) -> str:
        """The whole path, for people to read."""
        return os.path.join(self.path, *parts)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, parts: Parts, size: int | None = None, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
        """A whole file. With `size`, none of another size is read; without, none of more than `bytes_max`."""
        with self.open(parts, size) as file:
            limit = bytes_max if size is None else size
            found = os.fstat(file.fileno()).st_size
            # One byte more: a file that grows while it is read is not taken for a whole one.
            data = file.read(found + 1) if found <= limit else None
            if data is None or len(data) > limit:
                raise SnapshotCorruptError(
                    f"{self.full(parts)} has more than {limit:,} bytes, and no such file is as large as that: the "
                    "store did not write it; bring it back from a copy"
                )
            return data

    @contextmanager
    def open(self, parts: Parts, size: int | None = None) -> Generator[BufferedReader]:
        """A file to be read: a regular one, reached without a link, of this size if one is given."""
        with self._open(parts[:-1]) as folder:
            descriptor = self._open_file(folder, parts)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise self._irregular(parts)
            if size is not None and found.st_size != size:
                raise SnapshotCorruptError(
                    f"{self.full(parts)} has {found.st_size} bytes, and {size} were written: it is torn or was "
                    "changed; bring it back from a copy, or restore another cut"
                )
            yield file

    def sha256(self, parts: Parts, size: int) -> str:
        """The SHA-256 of a file of this size, read piece by piece."""
        with self.open(parts, size) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def names(self, parts: Parts = ()) -> list[str]:
        """What a folder holds, in order; nothing if it is not there."""
        try:
            with self._open(parts) as folder:
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def exists(self, parts: Parts) -> bool:
        """Whether there is something of that name."""
        try:
            with self._open(parts[:-1]) as folder:
                os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, files: Mapping[Parts, bytes]) -> None:
        """Write files, over earlier ones of their names. Until they are settled a crash of the system may undo it."""
        for tries_left in reversed(range(_WRITE_TRIES_MAX)):
            try:
                with self._opened() as opened:
                    self._replace(files, opened)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

    def settle(self, files: Iterable[Parts]) -> None:
        """Make files durable, whichever process of this host has written them."""
        with self._opened() as opened:
            for parts in files:
                descriptor = self._open_file(opened.at(parts[:-1]), parts)
                try:
                    _sync_to_disk(descriptor)
                finally:
                    os.close(descriptor)
            opened.sync()

    def create(self, parts: Parts, data: bytes) -> bool:
        """Create a file exclusively and durably. True if its name now holds `data`, False if it holds something else.

        An `OSError` means that nothing was created; an `OutcomeUnknownError` that something may have been.
        """
        with self._opened() as opened:
            folder = opened.at(parts[:-1], make=True)
            temporary = self._write_temporary(folder, data, is_to_last=True)
            try:
                self._link(temporary, parts[-1], folder)
                if self._read_at(folder, parts, len(data) + 1) != data:
                    return False
                opened.sync()
            except OSError as error:
                raise OutcomeUnknownError(
                    error.errno, f"whether {self.full(parts)} was created is unknown ({error.strerror or error})"
                ) from error
            finally:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return True

    def _link(self, temporary: str, name: str, folder: int) -> None:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            # "File exists" may be the answer to a repeated request whose first one succeeded, and an error may hide a
            # success. What the name holds decides; if it holds nothing, the error stands.
            try:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise error from None

    def _read_at(self, folder: int, parts: Parts, bytes_max: int) -> bytes:
        descriptor = self._open_file(folder, parts)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._irregular(parts)
            return file.read(bytes_max)

    def _replace(self, files: Mapping[Parts, bytes], opened: _Opened) -> None:
        temporary: dict[Parts, str] = {}
        try:
            for parts, data in files.items():
                temporary[parts] = self._write_temporary(opened.at(parts[:-1], make=True), data)
            for parts in files:
                folder = opened.at(parts[:-1])
                os.rename(temporary[parts], parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                del temporary[parts]
        finally:
            for parts, name in temporary.items():
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened.at(parts[:-1]))

    def _write_temporary(self, folder: int, data: bytes, *, is_to_last: bool = False) -> str:
        name = f"{_TEMPORARY}{secrets.token_hex(8)}"
        descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._write(descriptor, rest) :]
            if is_to_last:
                _sync_to_disk(descriptor)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
        return name

    # -- removing ------------------------------------------------------------------------------------------------

    def unlink(self, parts: Parts) -> None:
        """Remove a file, durably. No harm if it is not there."""
        with suppress(FileNotFoundError), self._open(parts[:-1]) as folder:
            os.unlink(parts[-1], dir_fd=folder)
            _sync_to_disk(folder)

    def remove(self, parts: Parts) -> None:
        """Remove a file, and the folders that this leaves empty. No harm if it is not there."""
        with suppress(FileNotFoundError), self._open(parts[:-1]) as folder:
            os.unlink(parts[-1], dir_fd=folder)
        self._remove_empty(parts[:-1])

    def remove_folder(self, parts: Parts) -> None:
        """Remove a folder with all that it holds; links in it are removed, not followed.

        What others write into it or remove from it meanwhile may keep a part of it there.
        """
        for _ in range(_REMOVE_TRIES_MAX):
            try:
                with self._open(parts[:-1]) as folder:
                    if self._is_folder(parts):
                        shutil.rmtree(parts[-1], dir_fd=folder)
                    else:
                        os.unlink(parts[-1], dir_fd=folder)
                break
            except OSError as error:
                if error.errno not in _CHANGED_MEANWHILE:
                    raise
        self._remove_empty(parts[:-1])

    def walk(self, parts: Parts) -> Iterator[Parts]:
        """Everything below a folder that is no folder."""
        for name in self.names(parts):
            below = (*parts, name)
            if self._is_folder(below):
                yield from self.walk(below)
            else:
                yield below

    def _is_folder(self, parts: Parts) -> bool:
        try:
            with self._open(parts[:-1]) as folder:
                return stat.S_ISDIR(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _remove_empty(self, parts: Parts) -> None:
        while parts:
            try:
                with self._open(parts[:-1]) as folder:
                    os.rmdir(parts[-1], dir_fd=folder)
            except OSError as error:
                if error.errno not in _CHANGED_MEANWHILE:
                    raise
                return
            parts = parts[:-1]

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
                # What is open is checked, not what the path leads to: that may change.
                check_own(self.path, os.fstat(opened.at(())))
            yield opened
        finally:
            opened.close()

    def _open_folder(self, name: str, folder: int | None, parts: Parts) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except OSError as error:
            # A link is told from a file by nothing but its kind: both are "not a directory".
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise self._foreign(parts, "a folder") from error
            raise

    def _open_file(self, folder: int, parts: Parts) -> int:
        try:
            return os.open(parts[-1], _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:
                raise self._foreign(parts, "a file") from error
            raise

    def _irregular(self, parts: Parts) -> StoreError:
        return StoreError(f"{self.full(parts)} is no regular file: remove it, the store did not make it")

    def _foreign(self, parts: Parts, wanted: str) -> StoreError:
        path = self.full(parts)
        found = "a symbolic link" if os.path.islink(path) else "something else"
        return StoreError(
            f"{path} should be {wanted} and is {found}: a store follows no links and makes none; put back "
            f"what was there, or remove it ({path_of(parts) or 'the folder of the job'})"
        )


class _Opened:
    """Folders that are open, each once: what is done in many of them costs no more calls of the system than it must."""

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

    def sync(self) -> None:
        """Make durable what all of them list, those below first."""
        for parts in sorted(self._descriptors, key=len, reverse=True):
            _sync_to_disk(self._descriptors[parts])

    def close(self) -> None:
        """Let go of them."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def check_own(path: str, found: os.stat_result) -> None:
    """Raise if another user than this one, or root, can write into a folder."""
    risk = "whoever writes into it can have any code run here when a cut is restored"
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


def sync_folder(path: str) -> None:
    """Make durable what a folder lists."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_to_disk(descriptor)
    finally:
        os.close(descriptor)


def _sync_to_disk(descriptor: int) -> None:
    # On macOS fsync leaves data in the drive's cache; this does not.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)
