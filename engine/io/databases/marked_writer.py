"""A sink that commits the rows of a transaction and its marker together.

The run keeps the records until the cut that lists them is complete, as it does for every `DeliverySink`. What makes
the delivery exactly once is the marker: the database has it when it has the rows, so a delivery that is repeated, or
whose reply was lost, finds it and changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from backedge.engine.batches.columns import Records
from backedge.engine.io.databases.database_errors import UncommittedOutputError, one_line
from backedge.engine.io.databases.table_rows import RowCheck
from backedge.engine.operators.services import close_writer
from backedge.graphs.io import Delivery, DeliverySink, Rollback, SinkPlace, SinkWriter
from backedge.graphs.task_errors import TaskError
from backedge.recovery.protocol.protocol_errors import FencedError


class TableStore(Protocol):
    """A table that one sink writes to. Messages name it by its title; `ledger_name` is its table of markers."""

    @property
    def title(self) -> str: ...

    @property
    def ledger_name(self) -> str: ...

    def check(self) -> None:
        """Raise unless rows can be written to the table. Makes the tables of the ledger."""

    def enter(self, place: SinkPlace) -> RowCheck:
        """Begin the work of a writer; those of earlier attempts commit nothing from here on."""
        ...

    def commit(self, place: SinkPlace, transaction: str, records: list[dict[str, Any]]) -> None:
        """Write rows and marker in one transaction of the database, unless the marker is there."""

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove the markers that no restore will ask for."""

    def close(self) -> None:
        """Let go of the connection."""


class TableSink(DeliverySink[dict[str, Any]]):
    """Writes rows into a table, each once. Subclasses say what the table is."""

    guarantee = "transactional"

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call the table."""

    @abstractmethod
    def store(self) -> TableStore:
        """The table, to be opened."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise unless rows can be written, and the run can keep them meanwhile."""
        place.kept.validate(fresh)
        self.store().check()

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        store = self.store()
        return _MarkedWriter(store, store.enter(place), place.kept.open(_Commit(store, place)))

    def deliver(self, delivery: Delivery[Any]) -> object:
        """Writers deliver by `TableStore.commit`, which has to know their attempt."""
        raise TypeError(f"{type(self).__name__} delivers through its writers: call open_writer")

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        place.kept.roll_back(rollback, self)
        self.store().forget(place, rollback)


class _Commit(DeliverySink[dict[str, Any]]):
    """Delivers what one writer was given."""

    guarantee = "transactional"

    def __init__(self, store: TableStore, place: SinkPlace) -> None:
        self._store = store
        self._place = place

    def deliver(self, delivery: Delivery[Any]) -> None:
        store, place, records = self._store, self._place, delivery.records
        try:
            store.commit(place, delivery.transaction, records)
        except (TaskError, FencedError, OSError):
            raise
        except Exception as error:
            reason = "".join([one_line(error), *(f"\n  {note}" for note in getattr(error, "__notes__", ()))])
            raise UncommittedOutputError(
                f"sink {place.operator!r} cannot commit transaction {delivery.transaction!r} to table {store.title}: "
                f"{reason}\n  none of its {len(records):,} records are in the table, and the run keeps them: change "
                "the table so that it takes them, then resume the run, which commits them; to go on without them, "
                f"execute INSERT INTO {store.ledger_name} VALUES ('{place.run}', '{place.operator}', "
                f"'{delivery.transaction}') and resume"
            ) from error


class _MarkedWriter:
    def __init__(self, store: TableStore, check: RowCheck, kept: SinkWriter) -> None:
        self._store = store
        self._check = check
        self._kept = kept
        self.prepare = kept.prepare
        self.commit = kept.commit

    def write(self, records: Records) -> None:
        self._kept.write(self._check.check(records))

    def close(self) -> None:
        self._store.close()
        close_writer(self._kept)
