"""Output that the run itself keeps until it is delivered, in the store of its cuts.

    prepared/NAME    a transaction that is durable and waits for the cut that lists it
    committed/NAME   its records, of a sink that keeps them; else an empty note that they were delivered

A transaction is written to the second place before it is removed from the first, and lookups use the same order. So a
transaction that is in neither was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from engine.columns import Records
from engine.files.file_errors import OutputError, UnknownTransactionError
from engine.files.former_places import note_place, noted_places
from engine.files.kept_output import Deliver, receiver
from engine.files.names import name_of, path_name, turn_of
from engine.files.parts import pickle_frame, pickles_in
from engine.files.writers import Receive
from graphs.io import DeliverySink, Rollback, Withdrawal
from recovery.stores.store_calls import full_name
from recovery.stores.store_protocol import Store

_PREPARED = "prepared"
_COMMITTED = "committed"


class KeptInStore:
    """The place of one sink. `store` holds nothing else."""

    def __init__(self, operator: str, store: Store, to_driver: Deliver, key: bytes) -> None:
        self._operator = operator
        self._store = store
        self._to_driver = to_driver
        self._key = key

    def validate(self, fresh: bool) -> None:
        """Raise if the store holds output and the run is `fresh`."""
        found = self._names(_COMMITTED) if fresh else []
        if found:
            raise OutputError(
                f"sink {self._operator!r} is to write to {self._store.location}, which holds {len(found)} files, "
                f"such as {found[0]!r}: remove them, give another location, or resume the run that wrote them"
            )

    def open(self, sink: DeliverySink[Any]) -> StoreWriter:
        """Write to it. What is committed is delivered by the sink."""
        return StoreWriter(
            self._operator, self._store, receiver(self._operator, sink, self._to_driver), self._key, sink.keeps
        )

    def note_place(self, place: str) -> None:
        """Note durably that the sink may write to a place from now on."""
        note_place(self._store, place)

    def noted_places(self) -> Sequence[str]:
        """The places that were noted."""
        return noted_places(self._store.location)

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers; of a sink that does not keep its records, also the notes that they were delivered."""
        dead = [f"{_PREPARED}/{path_name(name)}" for name in self._names(_PREPARED) if rollback.removes(name)]
        if not sink.keeps:
            dead += [f"{_COMMITTED}/{path_name(name)}" for name in self._names(_COMMITTED) if rollback.forgets(name)]
        self._store.remove(dead)

    @property
    def can_withdraw(self) -> bool:
        """It cannot: a task that was presumed dead may write a transaction after it was removed."""
        return False

    def withdraw(self, later: Withdrawal) -> None:
        """Refused."""
        raise OutputError(f"sink {self._operator!r} keeps its records in a store, from which they cannot be removed")

    def committed(self, read: dict[str, list[Any]]) -> list[Any]:
        """All records that were committed, in the order of epochs, attempts and tasks.

        `read` has what was read before, by transaction: given again, only new files are read.
        """
        names = sorted(self._names(_COMMITTED), key=turn_of)
        for name in names:
            if name not in read:
                read[name] = self._records(_COMMITTED, name)
        return [record for name in names for record in read[name]]

    def prepared(self) -> dict[str, list[Any]]:
        """What was prepared and is not committed, by transaction."""
        return {name: self._records(_PREPARED, name) for name in self._names(_PREPARED)}

    def _names(self, folder: str) -> list[str]:
        return [name_of(name.rsplit("/", 1)[-1]) for name in self._store.list(folder)]

    def _records(self, folder: str, name: str) -> list[Any]:
        return records_in(self._store, f"{folder}/{path_name(name)}", self._key)


class StoreWriter:
    """One task of such a sink. The open transaction is in memory."""

    def __init__(self, sink: str, store: Store, receive: Receive, key: bytes, keeps: bool) -> None:
        self._sink = sink
        self._store = store
        self._receive = receive
        self._key = key
        self._keeps = keeps
        self._open: list[bytes] = []
        self._prepared_last: str | None = None

    def write(self, records: Records) -> None:
        """Add records to the open transaction."""
        if len(records):
            self._open.append(pickle_frame(self._sink, records, self._key))

    def prepare(self, name: str) -> bool:
        """Make the open transaction durable under this name. False if it is empty."""
        if not self._open:
            places = (f"{_PREPARED}/{path_name(name)}", f"{_COMMITTED}/{path_name(name)}")
            return name == self._prepared_last or any(self._store.facts(place) is not None for place in places)
        self._write(_PREPARED, name, b"".join(self._open))
        self._open, self._prepared_last = [], name
        return True

    def commit(self, name: str) -> None:
        """Publish it. Kept records are stored, then handed over, each time; others are handed over and then noted."""
        file = path_name(name)
        try:
            data = self._store.read(f"{_PREPARED}/{file}")
        except FileNotFoundError:
            self._commit_again(name)
            return
        records = _decoded(data, full_name(self._store, f"{_PREPARED}/{file}"), self._key)
        if not self._keeps:
            self._receive(name, records)
        self._write(_COMMITTED, name, data if self._keeps else b"")
        self._store.remove([f"{_PREPARED}/{file}"])
        if self._keeps:
            self._receive(name, records)

    def _commit_again(self, name: str) -> None:
        try:
            records = records_in(self._store, f"{_COMMITTED}/{path_name(name)}", self._key)
        except FileNotFoundError:
            raise UnknownTransactionError(
                f"sink {self._sink!r} is asked to commit transaction {name!r}, which is neither prepared nor committed "
                f"in {self._store.location}: restore what was removed, or start a new run elsewhere"
            ) from None
        if self._keeps:
            self._receive(name, records)

    def close(self) -> None:
        """Drop the open transaction."""
        self._open = []

    def _write(self, folder: str, name: str, data: bytes) -> None:
        place = f"{folder}/{path_name(name)}"
        self._store.write({place: data})
        self._store.make_durable([place])


def records_in(store: Store, name: str, key: bytes) -> list[Any]:
    """The records of a transaction. Each batch is verified before it is decoded."""
    return _decoded(store.read(name), full_name(store, name), key)


def _decoded(data: bytes, path: str, key: bytes) -> list[Any]:
    return [record for batch in pickles_in(BytesIO(data), path, key) for record in batch]
