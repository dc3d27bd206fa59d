"""The writers of sinks. All prepare alike; what it means to publish is said by each.

- Files: a prepared part becomes a visible file, and then a note that it did. Exactly once, whoever does it and however
  often; never in place of another file, and no matter whether a consumer has moved it away since.
- Collect: a prepared part becomes a committed one, and its records are delivered.
- Print and Call: the records are handed over, and then it is noted that they were. At least once: a process that dies
  between the two leaves it to be done again.

A receiver of deliveries is told the name of the transaction, and may be told of one twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.columns import Records
from engine.files.disk import Disk
from engine.files.file_errors import UnfinishedOutputError, UnknownTransactionError
from engine.files.names import path_name
from engine.files.parts import Part, PicklePart, read_pickles
from engine.files.staging import Staging
from engine.memory import ListStore, ListWriter
from graphs.ids import Attempt

Receive = Callable[[str, list[Any]], object]
"""Takes the name of a transaction and its records."""


class StagedWriter:
    """Writes transactions to the staging folder of a sink. What it means to publish one is said by its subclasses."""

    def __init__(
        self,
        sink: str,
        attempt: Attempt,
        index: int,
        staging: Staging,
        disk: Disk,
        new_part: Callable[[Path], Part],
        published: Path,
    ) -> None:
        self._sink = sink
        self._attempt = attempt
        self._index = index
        self._staging = staging
        self._disk = disk
        self._new_part = new_part
        self._published = published
        self._path: Path | None = None
        self._part: Part | None = None
        self._prepared_last: str | None = None
        self._failure: OSError | None = None

    def write(self, records: Records) -> None:
        """Add records to the transaction that is open."""
        if not len(records):
            return
        self._check_usable()
        try:
            if self._part is None:
                self._path = self._staging.new_part(self._attempt, self._index)
                self._part = self._new_part(self._path)
            self._part.write(records)
        except OSError as error:
            self._failure = error
            raise

    def prepare(self, name: str) -> bool:
        """Make the open transaction durable under this name. False when there is nothing in it."""
        self._check_usable()
        if name == self._prepared_last:
            return True
        if self._part is None or self._path is None:
            is_prepared = self._staging.path_of(name).exists()
            return is_prepared or self._place_of(name).exists() or self._staging.is_noted(name)
        try:
            self._part.close()
            self._staging.prepare(self._path, name)
        except OSError as error:
            self._failure = error
            raise
        self._part, self._path, self._prepared_last = None, None, name
        return True

    def commit(self, name: str) -> None:
        """Publish what was prepared under this name, by whichever task and attempt."""
        raise NotImplementedError(f"{type(self).__name__} does not say how {name!r} is published")

    def close(self) -> None:
        """Drop the transaction that is open; the writer is not used any more."""
        if self._path is not None:
            self._disk.remove(self._path)
        self._part, self._path = None, None

    def _place_of(self, name: str) -> Path:
        """Where a published transaction is, or the note that it was."""
        raise NotImplementedError(f"{type(self).__name__} does not say where {name!r} goes")

    def _move(self, name: str) -> None:
        place = self._place_of(name)
        if self._staging.move(name, place):
            return
        if not place.exists():
            raise self._unknown(name)
        # Whoever moved it may have died before that was durable.
        self._disk.sync_folder(place.parent)

    def _unknown(self, name: str) -> UnknownTransactionError:
        prepared = self._staging.prepared_names()
        return UnknownTransactionError(
            f"sink {self._sink!r} is asked to commit transaction {name!r}, which is neither prepared in "
            f"{self._staging.folder} (there: {', '.join(prepared) or 'nothing'}) nor published in {self._published}, "
            "and no note says that it was: put back what was removed from these folders, or start a new run with "
            "another folder for its output"
        )

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise UnfinishedOutputError(
                f"sink {self._sink!r} failed to write ({self._failure}), and what its part holds is not known: "
                "make room or repair the disk, and go on from the last cut"
            ) from self._failure


class FileWriter(StagedWriter):
    """Each transaction becomes one file: part-RUN.TRANSACTION and the ending of its format."""

    def __init__(
        self,
        sink: str,
        attempt: Attempt,
        index: int,
        staging: Staging,
        disk: Disk,
        new_part: Callable[[Path], Part],
        published: Path,
        run: str,
        ending: str,
    ) -> None:
        super().__init__(sink, attempt, index, staging, disk, new_part, published)
        self._run = run
        self._ending = ending

    def commit(self, name: str) -> None:
        """Make it visible, if it was not yet."""
        if not self._staging.publish(name, self._place_of(name)):
            raise self._unknown(name)

    def _place_of(self, name: str) -> Path:
        return self._published / f"part-{self._run}.{path_name(name)}{self._ending}"


class KeptWriter(StagedWriter):
    """Transactions of any records, in files of pickles. `receive` gets each when it is published."""

    def __init__(
        self,
        sink: str,
        attempt: Attempt,
        index: int,
        staging: Staging,
        disk: Disk,
        receive: Receive,
        key: bytes,
        keeps: bool,
    ) -> None:
        def new_part(path: Path) -> Part:
            return PicklePart(disk, path, sink, key)

        super().__init__(sink, attempt, index, staging, disk, new_part, committed_folder(staging))
        self._receive = receive
        self._key = key
        self._keeps = keeps

    def commit(self, name: str) -> None:
        """Publish it: what is kept is moved, then handed over, each time; what is not, handed over and then noted."""
        if self._keeps:
            self._move(name)
            self._receive(name, self._records(self._place_of(name)))
            return
        try:
            records = self._records(self._staging.path_of(name))
        except FileNotFoundError:
            if not self._place_of(name).exists():
                raise self._unknown(name) from None
            return
        self._receive(name, records)
        self._move(name)
        self._disk.truncate(self._place_of(name))

    def _place_of(self, name: str) -> Path:
        return self._published / path_name(name)

    def _records(self, path: Path) -> list[Any]:
        return [record for batch in read_pickles(path, self._key) for record in batch]


class MemoryWriter(ListWriter):
    """Transactions in memory, of a run that cannot be restored."""

    def __init__(self, sink: str, store: ListStore, receive: Receive, keeps: bool) -> None:
        super().__init__(sink, store)
        self._receive = receive
        self._keeps = keeps

    def commit(self, name: str) -> None:
        """Hand the records over, once."""
        if name in self._store.committed:
            return
        super().commit(name)
        sink, records = self._store.committed[name]
        self._receive(name, records)
        if not self._keeps:
            self._store.committed[name] = (sink, [])


def committed_folder(staging: Staging) -> Path:
    """Where the committed transactions of a sink are that writes no files, or the notes that they were."""
    return staging.folder / "committed"
