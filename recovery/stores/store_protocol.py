"""The protocol of a store: named files of bytes below one URI, which keep the chain and the cuts of a job.

A store must give four guarantees. `backedge.testing.check_store` checks them, and a run probes them before it starts.

1. Whole: a reader gets all bytes of one write, or finds no file. It never gets a part, or a mixture of two writes.
2. Read after write: once `write` or `create` has returned, every process reads those bytes.
3. One winner: of all calls of `create` for a name, one succeeds. The others return False, or raise.
4. Durable: what was made durable is there after a crash of any machine.

What a store does not have to give:

- A reply may be lost. Reading back tells whether `create` has succeeded (`store_calls.create_exclusively`).
- `list` may miss files, or name some that are gone. The chain and the cuts are read by name; only clean-up, reading
  back the result of a `Collect`, and finding kept answers depend on listing. A call whose answer is not listed is made
  again.
- Files are written whole. Nothing is appended, renamed or locked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from typing import NamedTuple

from backedge.graphs.public import public


@public
class FileFacts(NamedTuple):
    """The size of a stored file, when it was written, in seconds since 1970, and the mark of this version of it.

    None stands for what the store does not keep.
    """

    size: int
    written_s: float | None = None
    version: str | None = None


@public
class Store(ABC):
    """Files below one URI. docs/extending.md shows how to write a store.

    A name is a path in plain characters, such as "chain/00000001.json". It has neither empty parts nor "..". Folders
    need not exist; they are what names have in common.

    Each process opens a store for itself, from its URI. Several threads use it at once.

    A method raises `FileNotFoundError` if the file is not there, `StoreError` if the store cannot be used at all, and
    another `OSError` if a call failed and may be repeated.
    """

    reads_at_once: int = 1
    """How many files to read at once where many are needed. More than 1 if a read mostly waits for a network."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The URI, which opens the same store again; of the built-in local folder, its path."""

    @abstractmethod
    def below(self, folder: str) -> Store:
        """The store of the files below a folder, under the rest of their names."""

    def prepare(self, is_signed: bool) -> None:  # noqa: B027  # most stores have nothing to make
        """Make what must be there before the first file is written. Called by each process that opens a job.

        What is there already may be read only: commands that show it write nothing.

        Unless files are signed, raise a `StoreError` if other users are known to have write access: a cut that is
        restored can run code.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read the bytes from `start`, at most `length` of them. Fewer, or none, if the file ends before."""

    @contextmanager
    def open(self, name: str) -> Generator[BufferedIOBase]:
        """Open one version of a file for reading, whatever is written under its name meanwhile."""
        yield BytesIO(self.read(name))

    @abstractmethod
    def facts(self, name: str) -> FileFacts | None:
        """Size and time of a file; None if it is not there."""

    @abstractmethod
    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, each as a whole, in place of earlier ones of the same names."""

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write one large file as a whole. The pieces may be iterated over again, for example after a failure.

        Stores that can write a file piece by piece override this, to keep less of it in memory.
        """
        self.write({name: b"".join(pieces)})

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a file that is durable at once. False if the name is taken.

        An `OutcomeUnknownError` says that the file may have been created, or may still be; any other `OSError`, that it
        was not and will not be.
        """

    def make_durable(self, names: Collection[str]) -> None:  # noqa: B027  # for most stores, writes are durable
        """Make files durable that any process of this host has written. Stores whose writes are durable do nothing."""

    @abstractmethod
    def list(self, folder: str = "") -> Iterable[str]:
        """The names of all files below a folder, in any order. None if there is no such folder."""

    def folders(self, folder: str = "") -> Iterable[str]:
        """The folders in a folder, by their own names. Override this if listing all files takes long."""
        start = f"{folder}/" if folder else ""
        rest = (name.removeprefix(start) for name in self.list(folder))
        return sorted({name.split("/")[0] for name in rest if "/" in name})

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Remove files. No harm if one of them is not there."""
