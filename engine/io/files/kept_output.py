"""Output that the run itself keeps until it is delivered: how it is delivered, and how it is kept in memory.

`kept_in_store.py` keeps it in the store of the cuts, if the run has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

from backedge.engine.batches.columns import Records, as_records
from backedge.engine.io.files.names import turn_of
from backedge.engine.io.files.writers import MemoryWriter, Receive
from backedge.engine.io.memory import ListStore
from backedge.graphs.io import Delivery, DeliverySink, FunctionRaisedError, Rollback, SinkWriter, Withdrawal
from backedge.graphs.task_errors import MisuseError, TaskError, show, user_error

Deliver = Callable[[str, str, list[Any]], None]
"""Takes the name of a sink, the name of a transaction and its records; may be called again with the same arguments."""


class KeptInMemory:
    """The output of one sink of a run that cannot be restored. `store` keeps that of all sinks."""

    def __init__(self, operator: str, store: ListStore, to_driver: Deliver) -> None:
        self._operator = operator
        self._store = store
        self._to_driver = to_driver

    def validate(self, fresh: bool) -> None:
        """Nothing is there yet."""

    def open(self, sink: DeliverySink[Any]) -> SinkWriter:
        """Open a writer. The sink delivers what is committed."""
        return MemoryWriter(self._operator, self._store, receiver(self._operator, sink, self._to_driver), sink.keeps)

    def note_place(self, place: str) -> None:
        """Nothing is noted: no run resumes this one."""

    def noted_places(self) -> Sequence[str]:
        """None: no run resumes this one."""
        return ()

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        self._store.roll_back(rollback, self._operator)

    @property
    def can_withdraw(self) -> bool:
        """It cannot: no run goes back to a cut of such a run."""
        return False

    def withdraw(self, later: Withdrawal) -> None:
        """There is nothing to remove."""

    def committed(self, read: dict[str, list[Any]]) -> list[Any]:
        """All committed records, in the order of epochs, attempts and tasks."""
        kept = self._own(self._store.committed)
        return [record for name in sorted(kept, key=turn_of) for record in kept[name]]

    def prepared(self) -> dict[str, list[Any]]:
        """Prepared, uncommitted records, by transaction."""
        return self._own(self._store.prepared)

    def _own(self, transactions: dict[str, tuple[str, list[Any]]]) -> dict[str, list[Any]]:
        return {name: records for name, (owner, records) in transactions.items() if owner == self._operator}


def receiver(operator: str, sink: DeliverySink[Any], to_driver: Deliver) -> Receive:
    """What is called with the records of each committed transaction of a sink: its `deliver`."""

    def receive(written: Mapping[str, Records]) -> None:
        for transaction, records in written.items():
            deliver(transaction, as_records(records))

    def deliver(transaction: str, records: list[Any]) -> None:
        try:
            to = partial(to_driver, operator, transaction)
            returned = sink.deliver(Delivery(records, transaction, turn_of(transaction).epoch, to))
            if isawaitable(returned) or isinstance(returned, Iterator):
                raise MisuseError(
                    f"sink {operator!r}: the function of {type(sink).__name__} returned {show(returned)}, "
                    "and nothing would await it or iterate over it: have the function do its work before it "
                    "returns, or call with map_async"
                )
        except FunctionRaisedError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, TaskError):
                raise cause or error from None
            hook = f"{error.call}, called with the {len(records):,} records of transaction {transaction!r}"
            raise user_error(operator, cause, hook=hook, can_set_aside=False) from cause

    return together_of(sink) or receive


def together_of(sink: DeliverySink[Any]) -> Receive | None:
    """The method of a sink that takes all transactions of a cut at once, and columns as they are; most have none."""
    return getattr(sink, "deliver_together", None)
