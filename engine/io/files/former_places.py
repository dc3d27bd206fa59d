"""The places that a sink of files has written to, noted beside what the run keeps for the sink.

A run may be resumed with another path. What its cuts list of a former place is published there, and leftovers are
removed there, as long as the run has its claim to that place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache

from backedge.engine.batches.columns import Records
from backedge.engine.io.files.file_errors import UnknownTransactionError
from backedge.engine.io.files.rolls import lines_of
from backedge.engine.operators.services import close_writer, commit_all
from backedge.graphs.io import SinkWriter
from backedge.recovery.stores.names import is_unfinished
from backedge.recovery.stores.store_calls import create_exclusively
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.store_schemes import store_at

_PLACES = "places"


def note_place(store: Store, place: str) -> None:
    """Note durably that a sink may write to a place from now on."""
    create_exclusively(
        store, f"{_PLACES}/{hashlib.blake2b(place.encode(), digest_size=16).hexdigest()}", place.encode()
    )
    noted_places.cache_clear()


@lru_cache(maxsize=64)
def noted_places(location: str) -> tuple[str, ...]:
    """The places noted in the store at a location. They are kept: none is added while a run goes on."""
    store = store_at(location)
    return tuple(sorted(store.read(name).decode() for name in store.list(_PLACES) if not is_unfinished(name)))


class WriterOfSeveralPlaces:
    """Writes to the first place, and commits in whichever has the transaction."""

    def __init__(self, writers: Sequence[SinkWriter]) -> None:
        self._writers = writers
        self.prepare = writers[0].prepare

    def write(self, records: Records) -> None:
        self._writers[0].write(records)

    def commit(self, name: str) -> None:
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Publish transactions where they are. Returns those that wait for later ones."""
        waiting: set[str] = set()
        # What one task has prepared in one attempt is in one place.
        for line in lines_of(names):
            waiting |= self._commit(line)
        return waiting

    def close(self) -> None:
        for writer in self._writers:
            close_writer(writer)

    def _commit(self, line: Sequence[str]) -> set[str]:
        own, *former = self._writers
        try:
            return set(commit_all(own, line))
        except UnknownTransactionError:
            for writer in former:
                with suppress(UnknownTransactionError):
                    return set(commit_all(writer, line))
            raise
