"""What the store of a job builds from the calls of a `Store`: exclusive creation that survives a lost reply, and reads
that take no more bytes than were written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TypeVar

from backedge.recovery.stores.digests import file_has_digest, has_digest
from backedge.recovery.stores.schema import DOCUMENT_BYTES_MAX
from backedge.recovery.stores.store_errors import OutcomeUnknownError, SnapshotCorruptError, StoreError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.task_files import StoredFile

_PIECE_BYTES = 1 << 20
_COPIED_BYTES = 64 << 20
T = TypeVar("T")
R = TypeVar("R")


def full_name(store: Store, name: str) -> str:
    """A name with the location of its store, for people to read."""
    return f"{store.location}/{name}"


def create_exclusively(store: Store, name: str, data: bytes) -> bool:
    """Create a file exclusively and durably. True if the name now holds `data`, False if it holds something else.

    No reply proves anything: a repeated request finds the file that the first one created, and an error may hide a
    success. So the file is read back. An `OutcomeUnknownError` means that something may have been created, and asks for
    the same call again; any other `OSError`, that nothing was.
    """
    unknown: OutcomeUnknownError | None = None
    try:
        if store.create(name, data):
            return True
    except OutcomeUnknownError as error:
        unknown = error
    try:
        if store.read(name, length=len(data) + 1) != data:
            return False
        # It is ours, and perhaps not durable: the reply that was lost may have said so.
        store.make_durable([name])
    except OSError as error:
        cause = unknown or error
        raise OutcomeUnknownError(
            cause.errno, f"whether {full_name(store, name)} was created is unknown ({cause.strerror or cause})"
        ) from cause
    return True


@contextmanager
def written_to(store: Store) -> Generator[None]:
    """Write to a store: if this user may only read it, say that nothing can be kept there."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        raise StoreError(
            f"files cannot be kept in {store.location}: this user may not write there ({error.strerror}); change "
            "its permissions, or give another place"
        ) from error


def exists(store: Store, name: str) -> bool:
    return store.facts(name) is not None


def read_document(store: Store, name: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """Read a whole file of at most `bytes_max` bytes."""
    piece = min(_PIECE_BYTES, bytes_max + 1)
    data = store.read(name, length=piece)
    if len(data) == piece:
        # A file of that size may be planted: look before reading more.
        facts = store.facts(name)
        is_too_large = facts is None or facts.size > bytes_max
        data = b"" if is_too_large else data + store.read(name, piece, bytes_max + 1 - piece)
    else:
        is_too_large = False
    if is_too_large or len(data) > bytes_max:
        raise SnapshotCorruptError(
            f"{full_name(store, name)} has more than {bytes_max:,} bytes, more than any document of a job: it was not "
            "written by this program; restore it from a backup"
        )
    return data


def read_sized(store: Store, name: str, size: int) -> bytes:
    """Read a whole file that must have this size."""
    data = store.read(name, length=size + 1)
    if len(data) != size:
        raise _of_another_size(store, name, size)
    return data


def read_verified(store: Store, file: StoredFile, what: str, fix: str) -> bytes:
    """Read a file that a manifest names: `what` it is, and how to `fix` it if it is missing or was changed."""
    path = full_name(store, file.name)
    try:
        data = read_sized(store, file.name, file.size)
    except FileNotFoundError as error:
        raise missing(path, what, fix) from error
    if not has_digest(data, file.digest):
        raise changed(path, what, fix)
    return data


def missing(path: str, what: str, fix: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(f"{path} is missing, {what}: {fix}")


def changed(path: str, what: str, fix: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} was changed: its digest is not the one in the manifest for {what}, so nothing of it is decoded; {fix}"
    )


def copy_sized(store: Store, name: str, size: int, to: IO[bytes]) -> None:
    """Copy a whole file that must have this size, piece by piece."""
    for start in range(0, size + 1, _COPIED_BYTES):
        piece = store.read(name, start, min(_COPIED_BYTES, size + 1 - start))
        to.write(piece)
        if len(piece) < _COPIED_BYTES:
            break  # the size may be forged
    if to.tell() != size:
        raise _of_another_size(store, name, size)


def has_content(store: Store, name: str, size: int, digest: str) -> bool:
    """Whether a file that must have this size has this digest. It is read piece by piece."""
    facts = store.facts(name)
    if facts is None:
        raise FileNotFoundError(2, "No such file", full_name(store, name))
    if facts.size != size:
        raise _of_another_size(store, name, size)
    with store.open(name) as file:
        return file_has_digest(file, digest)


def remove_below(store: Store, folder: str) -> None:
    """Remove all files below a folder, as far as they are listed."""
    store.remove(list(store.list(folder)))


def each(at_once: int, call: Callable[[T], R], items: Collection[T]) -> list[R]:
    """The results of a call for each item, at most so many at once."""
    if min(len(items), at_once) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(len(items), at_once)) as pool:
        return list(pool.map(call, items))


def _of_another_size(store: Store, name: str, size: int) -> SnapshotCorruptError:
    facts = store.facts(name)
    found = "no longer exists" if facts is None else f"has {facts.size} bytes"
    return SnapshotCorruptError(
        f"{full_name(store, name)} {found}, and {size} were written: it is torn or was changed; restore it from a "
        "backup, or restore another cut"
    )
