"""Sinks that commit the records of a transaction and its marker together.

The run keeps the records until the cut that lists them is complete, as it does for every `DeliverySink`. What makes
the delivery exactly once is the marker: the store has it when it has the records, so a delivery that is repeated, or
whose reply was lost, finds it and changes nothing. Markers go when no restore will ask for them any more; a process
that was taken for dead could still come back behind that with its last commit, and is refused by its attempt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from backedge.engine.batches.columns import Records
from backedge.engine.io.files.file_errors import UncommittedOutputError
from backedge.engine.operators.services import close_writer, commit_all
from backedge.graphs.io import Delivery, DeliverySink, Rollback, SinkPlace, SinkWriter
from backedge.graphs.task_errors import TaskError
from backedge.recovery.protocol.protocol_errors import FencedError

Check = Callable[[Records], Records]
"""Returns the records as they are to be kept, and raises for one that the store does not take."""


class MarkedStore(Protocol):
    """Where one sink writes to: a table, a topic, a key. Messages name it by its title."""

    @property
    def title(self) -> str: ...

    def check(self) -> None:
        """Raise unless it can be written to. Makes what holds the markers."""

    def enter(self, place: SinkPlace) -> Check:
        """Begin the work of a writer; those of earlier attempts commit nothing from here on."""
        ...

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        """Write records and markers in one step, but for transactions whose marker is there.

        `written` has the records of each transaction that a cut lists of this task, in the order of preparation. They
        are columns if `enter` has returned columns. `FencedError` for a writer of an earlier attempt. Any other
        `TaskError` fails the run, an `OSError` the attempt; what else is raised becomes an `UncommittedOutputError`.
        """

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        """What sets markers by hand, so that the run goes on without these records: "execute ..."."""
        ...

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove the markers that no restore will ask for."""

    def close(self) -> None:
        """Let go of the connection."""


class MarkedSink(DeliverySink[Any]):
    """Writes records to a store, each once. Subclasses say what the store is."""

    guarantee = "transactional"

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call the store."""

    @abstractmethod
    def store(self) -> MarkedStore:
        """The store, to be opened."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise unless records can be written, and the run can keep them meanwhile."""
        place.kept.validate(fresh)
        self.store().check()

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        store = self.store()
        return _MarkedWriter(store, store.enter(place), place.kept.open(_Commit(store, place)))

    def deliver(self, delivery: Delivery[Any]) -> object:
        """Writers deliver by `MarkedStore.commit`, which has to know their attempt."""
        raise TypeError(f"{type(self).__name__} delivers through its writers: call open_writer")

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        place.kept.roll_back(rollback, self)
        self.store().forget(place, rollback)


class _Commit(DeliverySink[Any]):
    """Delivers what one writer was given."""

    def __init__(self, store: MarkedStore, place: SinkPlace) -> None:
        self._store = store
        self._place = place

    def deliver(self, delivery: Delivery[Any]) -> None:
        self.deliver_together({delivery.transaction: delivery.records})

    def deliver_together(self, written: Mapping[str, Records]) -> None:
        store, place = self._store, self._place
        try:
            store.commit(place, written)
        except (TaskError, FencedError, OSError):
            raise
        except Exception as error:
            reason = "".join([one_line(error), *(f"\n  {note}" for note in getattr(error, "__notes__", ()))])
            raise UncommittedOutputError(
                f"sink {place.operator!r} cannot commit {', '.join(written)} to {store.title}: {reason}\n  none of "
                f"their {sum(map(len, written.values())):,} records are there, and the run keeps them: change "
                f"{store.title} so that it takes them, then resume the run, which commits them; to go on without "
                f"them, {store.how_to_skip(place, list(written))} and resume"
            ) from error


class _MarkedWriter:
    def __init__(self, store: MarkedStore, check: Check, kept: SinkWriter) -> None:
        self._store = store
        self._check = check
        self._kept = kept
        self.prepare = kept.prepare
        self.commit = kept.commit
        self.commit_together = partial(commit_all, kept)

    def write(self, records: Records) -> None:
        if len(records):
            self._kept.write(self._check(records))

    def close(self) -> None:
        self._store.close()
        close_writer(self._kept)


def superseded(place: SinkPlace, what: str, other: object) -> FencedError:
    """The error of a writer that is to commit something after another attempt, if that is known, has taken over."""
    later = f"attempt {other} has" if other else "the run is over, or another attempt has"
    return FencedError(
        f"attempt {place.attempt} of sink {place.operator!r} is to commit {what}, and {later} taken over: this process "
        "was taken for dead, and nothing that it still does counts"
    )


def one_line(error: BaseException) -> str:
    """The first line that a server or driver has said.

    >>> one_line(ValueError("no such row\\nCONTEXT: here"))
    'no such row'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
