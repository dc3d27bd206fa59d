"""The built-in store of objects: s3://BUCKET/PATH, gs://BUCKET/PATH and az://CONTAINER/PATH.

- `create` is a conditional put, sent once at a time. A reply proves little: the first of two requests may have won and
  its reply been lost, and the second one then finds the name taken. So after a request without a clear answer, the
  object is read and compared; if there is none, the same bytes are sent again. A conflict (409) says only that others
  were writing: it is repeated.
- A file is written by one request, or by a multipart upload that appears as a whole. Requests that fail or hang are
  repeated, with pauses that double and are drawn at random.
- `copy` is conditional, too: by a multipart upload of S3, whose end is conditional, and by a header elsewhere.
- A file is read in pieces of one version: if another one is written meanwhile, the read begins again.
- No cut depends on a list, and a removal that fails leaves an object that nothing names.

`object_client.py` has credentials, timeouts and errors.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from io import SEEK_END, BufferedIOBase, BufferedReader, BytesIO, RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from backedge.recovery.stores.names import parts_of
from backedge.recovery.stores.object_client import Client, Repeats, address_of, as_ours, client_of, fact_of
from backedge.recovery.stores.store_calls import each
from backedge.recovery.stores.store_errors import OutcomeUnknownError, StoreContractError, StoreError
from backedge.recovery.stores.store_protocol import FileFacts, Store

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

PIECE_BYTES = 8 << 20
"""The most that one request carries."""

_AT_ONCE = 8
# The types of its lists include tables of a package that is not installed.
_obstore: Any = obstore


class ObjectStore(Store):
    """Objects of one bucket whose names begin with the path of the URI."""

    reads_at_once = 16

    def __init__(self, location: str, repeats: Repeats = Repeats()) -> None:  # noqa: B008  # frozen
        self._address = address_of(location)
        self._location = location.rstrip("/")
        self._repeats = repeats
        self._client: Client = client_of(self._address, repeats, location)
        # A conditional put that obstore repeated by itself would find its own object, and say that the name is taken.
        once = Repeats(repeats.request_s, repeats.connect_s, 0)
        self._once: Client = client_of(self._address, once, location)
        self._prefix = self._address.prefix

    def __repr__(self) -> str:
        return f"ObjectStore({self._location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self._location, self._repeats)

    @property
    def location(self) -> str:
        return self._location

    def below(self, folder: str) -> ObjectStore:
        """The store of the objects below a folder, with the same connections."""
        below = copy(self)
        below._location = f"{self._location}/{folder}"
        below._prefix = self._full(folder)
        return below

    def prepare(self, is_signed: bool) -> None:
        """Ask for an object, which shows that the bucket exists and that the credentials are accepted."""
        try:
            self.facts("prepare")
            self.read("prepare", length=1)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise StoreError(f"{self._location} cannot be used: {error.strerror}") from error

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a part of an object, all of it from one version."""
        for _ in self._repeats.turns():
            try:
                return self._read_version(name, start, length)
            except PreconditionError:
                continue  # another version was written meanwhile
        raise OSError(errno.EBUSY, "the object was replaced again and again while it was read", self._path(name))

    def _read_version(self, name: str, start: int, length: int | None) -> bytes:
        wanted = PIECE_BYTES if length is None else min(length, PIECE_BYTES)
        if wanted == 0:
            return b""
        try:
            first, meta = self._piece(name, start, start + wanted, None)
        except GenericError as error:
            # No object store gives a range that begins at the end.
            facts = self.facts(name)
            if facts is not None and facts.size <= start:
                return b""
            raise as_ours(error, self._path(name)) from error
        end = meta["size"] if length is None else min(start + length, meta["size"])
        begins = range(start + len(first), end, PIECE_BYTES)
        if not begins:
            return first

        def rest(begin: int) -> bytes:
            return self._piece(name, begin, min(begin + PIECE_BYTES, end), meta["e_tag"])[0]

        return b"".join([first, *each(_AT_ONCE, rest, begins)])

    def _piece(self, name: str, start: int, end: int, version: str | None) -> tuple[bytes, ObjectMeta]:
        options: GetOptions = {"range": (start, end)}
        if version is not None:
            options["if_match"] = version
        with self._ours(name, PreconditionError, GenericError):
            got = obstore.get(self._client, self._full(name), options=options)
            return bytes(got.bytes()), got.meta

    @contextmanager
    def open(self, name: str) -> Generator[BufferedIOBase]:
        """Open one version of an object; it is fetched piece by piece."""
        with self._ours(name):
            meta = obstore.head(self._client, self._full(name))
        with self.open_version(name, _facts(meta)) as file:
            yield file

    def open_version(self, name: str, facts: FileFacts) -> BufferedReader:
        """Open the version of an object that has these facts. An `OSError` when another one has replaced it, and a
        `FileNotFoundError` when it was removed, which Azure answers as if it had been replaced."""

        def fetch(start: int, end: int) -> bytes:
            try:
                return self._piece(name, start, end, facts.version)[0]
            except PreconditionError as error:
                if self.facts(name) is None:
                    raise FileNotFoundError(errno.ENOENT, "No such object", self._path(name)) from error
                raise OSError(errno.ESTALE, "the object was replaced while it was read", self._path(name)) from error
            except GenericError as error:
                raise as_ours(error, self._path(name)) from error

        return BufferedReader(_Pieces(facts.size, fetch), PIECE_BYTES)

    def facts(self, name: str) -> FileFacts | None:
        try:
            with self._ours(name):
                return _facts(obstore.head(self._client, self._full(name)))
        except FileNotFoundError:
            return None

    def facts_below(self, folder: str = "") -> list[tuple[str, FileFacts]]:
        """The objects below a folder that the store lists."""
        above = f"{self._prefix}/" if self._prefix else ""
        for _ in self._repeats.turns():
            try:
                batches = list(_obstore.list(self._client, self._folder(folder)))
                return [(meta["path"].removeprefix(above), _facts(meta)) for batch in batches for meta in batch]
            except (BaseError, FileNotFoundError) as error:
                # obstore repeats a request whose reply fails, but not one whose reply ends midway.
                if "response body" not in str(error):
                    raise as_ours(error, self._path(folder)) from error
        raise OSError(errno.EIO, "each list ended midway", self._path(folder))

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write objects, each as a whole and durably."""
        each(_AT_ONCE, lambda file: self._put(file[0], BytesIO(file[1]), len(file[1])), list(files.items()))

    def upload(self, name: str, file: BinaryIO) -> None:
        """Write an object with the content of a file, piece by piece."""
        self._put(name, file, file.seek(0, SEEK_END))

    def _put(self, name: str, file: BinaryIO, size: int) -> None:
        for turn in self._repeats.turns():
            file.seek(0)
            try:
                obstore.put(
                    self._client,
                    self._full(name),
                    file if size > PIECE_BYTES else file.read(),
                    use_multipart=size > PIECE_BYTES,
                    chunk_size=PIECE_BYTES,
                    max_concurrency=4,
                )
                return
            except (BaseError, FileNotFoundError) as error:
                # The reply to the end of an upload was lost: repeated, it finds no such upload.
                is_over = any(mark in str(error) for mark in ("NoSuchUpload", "InvalidBlockList"))
                if not is_over or turn == self._repeats.times:
                    raise self._of_write(error, name) from error

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional put."""
        doubt: Exception | None = None
        conflict: Exception | None = None
        for _ in self._repeats.turns():
            try:
                obstore.put(self._once, self._full(name), data, mode="create", use_multipart=False)
                return True
            except AlreadyExistsError as error:
                conflict = error
            except (BaseError, FileNotFoundError) as error:
                ours = self._of_write(error, name)
                if "NotImplemented" in str(error):
                    raise StoreContractError(
                        f"{self._path(name)} cannot be created: the store does not give guarantee 3 of the protocol of "
                        f"stores, since it has no conditional writes ({fact_of(error)}); keep snapshots elsewhere"
                    ) from error
                if isinstance(ours, StoreError | PermissionError):
                    # It was refused: nothing will come of it. Of an earlier request, something may.
                    if doubt is None:
                        raise ours from error
                    raise self._unknown(name, doubt) from error
                doubt = ours
            found = self._found(name, data, doubt)
            if found is not None:
                # The bytes are ours only if a request of ours has gone unanswered.
                return doubt is not None and found == data
        if doubt is not None:
            raise self._unknown(name, doubt) from doubt
        raise OSError(errno.EBUSY, "others kept writing it at the same time", self._path(name)) from conflict

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, within the store, to a name that is free. True if the name now holds the same bytes.

        Whatever a reply says, the bytes decide: ours may have arrived before it was lost.
        """
        doubt: Exception | None = None
        for _ in self._repeats.turns():
            try:
                obstore.copy(self._once, self._full(source), self._full(target), overwrite=False)
                return True
            except (AlreadyExistsError, PreconditionError):
                pass
            except (BaseError, FileNotFoundError) as error:
                ours = as_ours(error, self._path(target))
                if isinstance(ours, StoreError | PermissionError):
                    raise ours from error
                doubt = ours
            is_same = self._holds_same(source, target)
            if is_same is not None:
                return is_same
        raise OSError(errno.EIO, f"it cannot be copied to {self._path(target)}", self._path(source)) from doubt

    def _holds_same(self, one: str, other: str) -> bool | None:
        """Whether two objects have the same bytes; None if there is no second one."""
        with self.open(one) as ours:
            try:
                with self.open(other) as theirs:
                    while data := ours.read(PIECE_BYTES):
                        if theirs.read(len(data)) != data:
                            return False
                    return not theirs.read(1)
            except FileNotFoundError:
                return None

    def _found(self, name: str, data: bytes, doubt: Exception | None) -> bytes | None:
        """Read an object to compare it with `data`, at most one byte more than that; None if there is no object."""
        try:
            return self.read(name, length=len(data) + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise (error if doubt is None else self._unknown(name, doubt)) from error

    def _unknown(self, name: str, doubt: Exception) -> OutcomeUnknownError:
        reason = doubt.strerror if isinstance(doubt, OSError) else str(doubt)
        return OutcomeUnknownError(errno.EIO, f"whether it was created is unknown: {reason}", self._path(name))

    def _of_write(self, error: Exception, name: str) -> Exception:
        ours = as_ours(error, self._path(name))
        if isinstance(ours, FileNotFoundError):
            return OSError(errno.EIO, "an upload was interrupted: write it again", self._path(name))
        return ours

    # -- clean-up ------------------------------------------------------------------------------------------------

    def list(self, folder: str = "") -> Iterator[str]:
        return (name for name, _ in self.facts_below(folder))

    def folders(self, folder: str = "") -> list[str]:
        """What the names of objects have in common, one part further."""
        with self._ours(folder):
            found = _obstore.list_with_delimiter(self._client, self._folder(folder))
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def remove(self, names: Collection[str]) -> None:
        """Remove objects, many per request."""
        paths = [self._full(name) for name in names]
        if not paths:
            return
        try:
            with self._ours(next(iter(names))):
                obstore.delete(self._client, paths)
        except FileNotFoundError:
            # Some stores give up at an object that is not there.
            each(_AT_ONCE, self._remove_one, paths)

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError), self._ours(path):
            obstore.delete(self._client, path)

    # -- names ---------------------------------------------------------------------------------------------------

    def _full(self, name: str) -> str:
        if parts_of(name) is None:
            raise OSError(errno.EINVAL, "the name leads out of the store", name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _folder(self, folder: str) -> str | None:
        return self._full(folder) if folder else self._prefix or None

    def _path(self, name: str) -> str:
        return f"{self._location}/{name}" if name else self._location

    @contextmanager
    def _ours(self, name: str, *left: type[Exception]) -> Generator[None]:
        """Raise errors of obstore as those of the protocol, except for these."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if isinstance(error, left):
                raise
            raise as_ours(error, self._path(name)) from error


class _Pieces(RawIOBase):
    """A file of a known size, read by ranges."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._fetch = fetch
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self._size)[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._fetch(self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _facts(meta: ObjectMeta) -> FileFacts:
    mark = meta["e_tag"]
    if mark is not None and not mark.endswith('"'):
        mark = f'"{mark}"'  # lists of Azure leave out the quotes
    return FileFacts(meta["size"], meta["last_modified"].timestamp(), mark)
