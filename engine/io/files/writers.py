"""The writers of sinks. All prepare alike; publishing differs:

- Files: prepared parts become a visible file, alone or several together (`rolls.py`), and then that is noted. Exactly
  once, however often and by whichever task they are committed; it never replaces another file, and a consumer may have
  moved the published file away.
- Collect: a prepared transaction becomes a committed one, and its records are delivered (`kept_in_store.py`).
- Print and Call: the records are delivered, and then a note is made. At least once: a process that dies between the two
  leaves the delivery to be repeated. A `MarkedSink` finds that out, and gets the transactions of a cut together.

A receiver of deliveries gets the names of transactions with their records, and may get one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from backedge.engine.batches.columns import Records
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import UnfinishedOutputError, UnknownTransactionError
from backedge.engine.io.files.parts import Part
from backedge.engine.io.files.rolls import PIECES_MAX, RollLimits, Rolls, lines_of
from backedge.engine.io.files.staging import Staging
from backedge.engine.io.memory import ListStore, ListWriter
from backedge.graphs.io import SinkPlace

Receive = Callable[[Mapping[str, Records]], object]
"""Takes records by the name of their transaction, in the order of preparation."""

NewPart = Callable[[Disk, Path], Part]
"""Creates the local file of a part, in the format of the sink."""


class FileWriter:
    """Writes transactions to the staging of a sink, and publishes those of several cuts as one file, at these limits;
    without, each as one of its own.
    """

    def __init__(self, place: SinkPlace, staging: Staging, new_part: NewPart, rolls: Rolls, limits: RollLimits) -> None:
        self._sink = place.operator
        self._staging = staging
        self._storage = staging.storage
        self._new_part = new_part
        self._rolls = rolls
        self._limits = limits
        self._path: Path | None = None
        self._part: Part | None = None
        self._prepared_last: str | None = None
        self._failure: OSError | None = None
        # The committed pieces that wait for later ones, with their bytes, and when the first was committed.
        self._waiting: dict[str, int] = {}
        self._since_s = 0.0

    def write(self, records: Records) -> None:
        if not len(records):
            return
        self._check_usable()
        try:
            if self._part is None:
                self._path = self._storage.new_part()
                self._part = self._new_part(self._storage.disk, self._path)
            self._part.write(records)
        except OSError as error:
            self._failure = error
            raise self._named(error, self._path) from error

    def prepare(self, name: str) -> bool:
        self._check_usable()
        if name == self._prepared_last:
            return True
        if self._part is None or self._path is None:
            return self._staging.is_prepared(name) or self._staging.is_noted(name)
        try:
            self._part.close()
            self._staging.prepare(self._path, name)
        except OSError as error:
            self._failure = error
            raise self._named(error, self._path) from error
        self._part, self._path, self._prepared_last = None, None, name
        return True

    def commit(self, name: str) -> None:
        """Publish what any task of any attempt has prepared under this name, or have it wait for later ones."""
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Publish transactions, except for those that wait for later ones. Returns all that wait."""
        sizes = self._staging.sizes
        for line in lines_of(name for name in names if name not in sizes):
            self._publish(line)
        own = {name: sizes[name] for name in names if name in sizes}
        if not self._waiting:
            self._since_s = monotonic()
        self._waiting |= own
        if self._is_due():
            self._publish_waiting()
        return self._waiting.keys()

    def close(self) -> None:
        """Drop the open transaction, and publish what waits for later ones; the writer is not used any more."""
        if self._path is not None:
            self._storage.disk.remove(self._path)
        self._part, self._path = None, None
        # If this attempt was superseded, all of it may be gone. What is lost is found where the cut is restored.
        with suppress(UnknownTransactionError):
            self._publish_waiting()

    def _is_due(self) -> bool:
        limits = self._limits
        return bool(self._waiting) and (
            limits.are_none
            or len(self._waiting) >= PIECES_MAX
            or limits.are_reached(sum(self._waiting.values()), monotonic() - self._since_s)
        )

    def _publish_waiting(self) -> None:
        # If this fails, so does the attempt; closing does not try again.
        waiting, self._waiting = list(self._waiting), {}
        if waiting:
            self._publish(waiting)
            for name in waiting:
                del self._staging.sizes[name]

    def _publish(self, line: Sequence[str]) -> None:
        try:
            self._rolls.publish(line)
        except OSError as error:
            raise self._named(error, self._storage.location) from error

    def _named(self, error: OSError, path: object) -> OSError:
        """The same error with the sink, and with this path if it has none, as errors of writing."""
        fact = f"sink {self._sink!r} could not write its output: {error.strerror or error}"
        if error.errno is None:
            return OSError(fact if path is None else f"{fact}: {path}")
        return type(error)(error.errno, fact, str(error.filename or path))

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise UnfinishedOutputError(
                f"sink {self._sink!r} failed to write ({self._failure}), so the content of its part is unknown: "
                "free some space or repair the disk, and resume from the last cut"
            ) from self._failure


class MemoryWriter(ListWriter):
    """Transactions in memory, for a run that cannot be restored."""

    def __init__(self, sink: str, store: ListStore, receive: Receive, keeps: bool) -> None:
        super().__init__(sink, store)
        self._receive = receive
        self._keeps = keeps

    def commit(self, name: str) -> None:
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Deliver the records, once."""
        committed = self._store.committed
        fresh = [name for name in names if name not in committed]
        for name in fresh:
            super().commit(name)
        self._receive({name: committed[name][1] for name in fresh})
        if not self._keeps:
            committed.update({name: (committed[name][0], []) for name in fresh})
        return ()
