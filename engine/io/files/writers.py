"""The writers of sinks. All prepare alike; publishing differs:

- Files: prepared parts become a visible file, alone or several together (`rolls.py`), and then notes of that. Exactly
  once, however often and by whichever task they are committed; it never replaces another file, and a consumer may have
  moved the published file away.
- Collect: a prepared transaction becomes a committed one, and its records are delivered (`kept_in_store.py`).
- Print and Call: the records are delivered, and then a note is made. At least once: a process that dies between the two
  leaves the delivery to be repeated.

A receiver of deliveries gets the name of the transaction, and may get one twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from backedge.engine.batches.columns import Records
from backedge.engine.io.files.file_errors import UnfinishedOutputError, UnknownTransactionError
from backedge.engine.io.files.names import staged_name
from backedge.engine.io.files.object_staging import ObjectStaging
from backedge.engine.io.files.parts import Part
from backedge.engine.io.files.rolls import RollLimits, Rolls, TargetOf
from backedge.engine.io.files.staging import Staging
from backedge.engine.io.memory import ListStore, ListWriter
from backedge.graphs.ids import Attempt
from backedge.graphs.io import SinkPlace

Receive = Callable[[str, list[Any]], object]
"""Takes the name of a transaction and its records."""

NewPart = Callable[[Path], Part]
"""Creates the local file of a part, in the format of the sink."""

StagingT = TypeVar("StagingT", Staging, ObjectStaging)


class StagedWriter(ABC, Generic[StagingT]):
    """Writes transactions to the staging of a sink. Subclasses define how one is published."""

    def __init__(
        self,
        place: SinkPlace,
        staging: StagingT,
        new_part: NewPart,
        published: str,
    ) -> None:
        self._sink = place.operator
        self._attempt = Attempt(place.attempt)
        self._index = place.task
        self._staging = staging
        self._new_part = new_part
        self._published = published
        self._path: Path | None = None
        self._part: Part | None = None
        self._prepared_last: str | None = None
        self._failure: OSError | None = None

    def write(self, records: Records) -> None:
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
            raise self._named(error, self._path) from error

    def prepare(self, name: str) -> bool:
        self._check_usable()
        if name == self._prepared_last:
            return True
        if self._part is None or self._path is None:
            staging = self._staging
            return staging.is_prepared(name) or self._is_published(name) or staging.is_noted(name)
        try:
            self._part.close()
            self._staging.prepare(self._path, name)
        except OSError as error:
            self._failure = error
            raise self._named(error, self._path) from error
        self._part, self._path, self._prepared_last = None, None, name
        return True

    @abstractmethod
    def commit(self, name: str) -> None:
        """Publish what any task of any attempt has prepared under this name."""

    def close(self) -> None:
        """Drop the open transaction; the writer is not used any more."""
        if self._path is not None:
            self._staging.drop(self._path)
        self._part, self._path = None, None

    @abstractmethod
    def _is_published(self, name: str) -> bool:
        """Whether a transaction is where published ones, or their notes, are."""

    def _named(self, error: OSError, path: object) -> OSError:
        """The same error with the sink, and with this path if it has none, as errors of writing."""
        fact = f"sink {self._sink!r} could not write its output: {error.strerror or error}"
        if error.errno is None:
            return OSError(fact if path is None else f"{fact}: {path}")
        return OSError(error.errno, fact, str(error.filename or path))

    def _unknown(self, name: str) -> UnknownTransactionError:
        prepared = self._staging.prepared_names()
        return UnknownTransactionError(
            f"sink {self._sink!r} was asked to commit transaction {name!r}, which is neither prepared in "
            f"{self._staging.location} (there: {', '.join(prepared) or 'nothing'}) nor published in {self._published}, "
            "and no note says that it was: put back what was removed from these folders, or start a new run with "
            "another folder for its output"
        )

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise UnfinishedOutputError(
                f"sink {self._sink!r} failed to write ({self._failure}), so the content of its part is unknown: "
                "free some space or repair the disk, and resume from the last cut"
            ) from self._failure


class FileWriter(StagedWriter[Staging]):
    """Each transaction becomes one file: part-RUN.TRANSACTION with the ending of its format.

    With `limits`, the transactions of several cuts become one file, under the name of the first. `form_of` says which
    of them can share one: those of the same form.
    """

    def __init__(
        self,
        place: SinkPlace,
        staging: Staging,
        new_part: NewPart,
        published: Path,
        target_of: TargetOf,
        rolls: Rolls,
        limits: RollLimits,
        form_of: Callable[[Path], Any],
    ) -> None:
        super().__init__(place, staging, new_part, str(published))
        self._target_of = target_of
        self._rolls = rolls
        self._limits = limits
        self._form_of = form_of
        self._roll: Path | None = None
        # Of the current roll: its parts and their bytes, the form of all, and when it began.
        self._parts = 0
        self._bytes = 0
        self._form: Any = None
        self._since_s = 0.0
        try:
            rolls.take_over(self._attempt, self._index, lambda other: other < self._attempt)
        except OSError as error:
            raise self._named(error, self._published) from error

    def prepare(self, name: str) -> bool:
        is_prepared = super().prepare(name)
        self._publish_if_due()
        return is_prepared or self._rolls.hold(name)

    def commit(self, name: str) -> None:
        """Make it visible, now or together with later ones, unless it already is."""
        staging, place = self._staging, self._place_of(name)
        staged = staging.path_of(name)
        # A file of its own name was linked by an attempt that did not roll, and is not noted yet.
        if self._limits.are_none or (place.exists() and staged.exists()):
            is_found = staging.publish(name, staged, place)
        else:
            is_found = self._settle(name)
        is_found = is_found or self._publish_other_form(name)
        if not (is_found or self._rolls.hold(name) or staging.was_published(name, place)):
            raise self._unknown(name)
        self._publish_if_due()

    def close(self) -> None:
        super().close()
        self._publish_roll()

    def _is_published(self, name: str) -> bool:
        return self._place_of(name).exists()

    def _place_of(self, name: str) -> Path:
        return self._target_of(name, self._staging.ending)

    def _publish_other_form(self, name: str) -> bool:
        """Publish what the former format of this sink has prepared, as it is."""
        other = self._staging.other_form_of(name)
        if other is None:
            return False
        return self._staging.publish(name, other, self._target_of(name, staged_name(other.name).ending))

    def _settle(self, name: str) -> bool:
        staged = self._staging.path_of(name)
        while True:
            try:
                form, size = self._form_of(staged), staged.stat().st_size
            except FileNotFoundError:
                return False
            if self._roll is not None and form != self._form:
                self._publish_roll()
            if self._roll is None:
                self._roll = self._rolls.new(self._attempt, self._index)
                self._parts, self._bytes, self._form, self._since_s = 0, 0, form, monotonic()
            if self._rolls.settle(name, self._roll, self._parts):
                self._parts += 1
                self._bytes += size
                return True
            # Another process has settled it, or has taken the roll over.
            if not self._roll.exists():
                self._roll = None

    def _publish_if_due(self) -> None:
        if self._parts and self._limits.are_reached(self._bytes, monotonic() - self._since_s):
            self._publish_roll()

    def _publish_roll(self) -> None:
        roll, self._roll, self._parts = self._roll, None, 0
        if roll is None:
            return
        try:
            self._rolls.publish(roll, self._attempt, self._index)
        except OSError as error:
            raise self._named(error, self._published) from error


class MemoryWriter(ListWriter):
    """Transactions in memory, for a run that cannot be restored."""

    def __init__(self, sink: str, store: ListStore, receive: Receive, keeps: bool) -> None:
        super().__init__(sink, store)
        self._receive = receive
        self._keeps = keeps

    def commit(self, name: str) -> None:
        """Deliver the records, once."""
        if name in self._store.committed:
            return
        super().commit(name)
        sink, records = self._store.committed[name]
        self._receive(name, records)
        if not self._keeps:
            self._store.committed[name] = (sink, [])
