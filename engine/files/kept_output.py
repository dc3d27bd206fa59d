"""Stores output that the run itself keeps until it is delivered: in a folder next to its cuts, or else in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any

from engine.files.disk import Disk
from engine.files.former_places import note_place, noted_places
from engine.files.names import name_of, path_name, turn_of
from engine.files.output_folders import check_output_folder
from engine.files.parts import read_pickles
from engine.files.staging import Staging
from engine.files.writers import KeptWriter, MemoryWriter, Receive, committed_folder
from engine.memory import ListStore
from engine.task_errors import MisuseError, TaskError, show, user_error
from graphs.ids import Attempt
from graphs.io import Delivery, DeliverySink, FunctionRaisedError, Rollback, SinkWriter, Withdrawal
from recovery.stores.folder_store import FolderStore

Deliver = Callable[[str, str, list[Any]], None]
"""Takes the name of a sink, the name of a transaction and its records; may be called again with the same arguments."""


class KeptInRun:
    """The storage for one sink. `root` is the folder for all sinks; None: `store` keeps everything in memory."""

    def __init__(
        self,
        operator: str,
        root: Path | None,
        store: ListStore,
        to_driver: Deliver,
        *,
        attempt: Attempt,
        task: int,
        disk: Disk,
        key: bytes,
    ) -> None:
        self._operator = operator
        self._root = root
        self._store = store
        self._to_driver = to_driver
        self._attempt = attempt
        self._task = task
        self._disk = disk
        self._key = key

    def validate(self, fresh: bool) -> None:
        """Raise if the folder cannot be written to, or if it contains output and the run is `fresh`."""
        if self._root is not None:
            folder = self._root / path_name(self._operator)
            check_output_folder(self._operator, folder, folder / "committed", fresh)

    def open(self, sink: DeliverySink[Any]) -> SinkWriter:
        """Open a writer. The sink delivers what is committed."""
        receive = receiver(self._operator, sink, self._to_driver)
        if self._root is None:
            return MemoryWriter(self._operator, self._store, receive, sink.keeps)
        staging = self._staging(self._root)
        return KeptWriter(
            self._operator, self._attempt, self._task, staging, self._disk, receive, self._key, sink.keeps
        )

    def note_place(self, place: str) -> None:
        """Note durably that the sink may write to a place from now on; not for a run that cannot be resumed."""
        if self._root is not None:
            store = FolderStore(str(self._root / path_name(self._operator)))
            store.prepare(is_signed=bool(self._key))
            note_place(store, place)

    def noted_places(self) -> Sequence[str]:
        """The places that were noted."""
        return () if self._root is None else noted_places(str(self._root / path_name(self._operator)))

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers; for a sink that keeps no records, also the notes of their delivery."""
        if self._root is None:
            self._store.roll_back(rollback, self._operator)
            return
        staging = self._staging(self._root)
        staging.roll_back(rollback, None if sink.keeps else committed_folder(staging))

    @property
    def can_withdraw(self) -> bool:
        """Whether it can remove committed records."""
        return self._root is not None

    def withdraw(self, later: Withdrawal) -> None:
        """Remove records that were committed after a cut. What is prepared goes first: a task may be committing it."""
        if self._root is None:
            return
        staging = self._staging(self._root)
        staging.remove_prepared(later.removes)
        folder = committed_folder(staging)
        for name in self._disk.names(folder):
            if later.removes(name_of(name)):
                self._disk.remove(folder / name)
        if folder.is_dir():
            self._disk.sync_folder(folder)

    def committed(self, read: dict[str, list[Any]]) -> list[Any]:
        """All committed records, in the order of epochs, attempts and tasks.

        `read` maps files to the records read before; if it is passed again, only new files are read.
        """
        if self._root is None:
            kept = {
                name: records for name, (owner, records) in self._store.committed.items() if owner == self._operator
            }
            return [record for name in sorted(kept, key=turn_of) for record in kept[name]]
        folder = committed_folder(self._staging(self._root))
        names = sorted(self._disk.names(folder), key=lambda name: turn_of(name_of(name)))
        for name in names:
            if name not in read:
                read[name] = [record for batch in read_pickles(folder / name, self._key) for record in batch]
        return [record for name in names for record in read[name]]

    def prepared(self) -> dict[str, list[Any]]:
        """Prepared, uncommitted records, by transaction."""
        if self._root is None:
            return {name: records for name, (owner, records) in self._store.prepared.items() if owner == self._operator}
        staging = self._staging(self._root)
        return {
            name: [record for batch in read_pickles(staging.path_of(name), self._key) for record in batch]
            for name in staging.prepared_names()
        }

    def _staging(self, root: Path) -> Staging:
        return Staging(root / path_name(self._operator), self._disk)


def receiver(operator: str, sink: DeliverySink[Any], to_driver: Deliver) -> Receive:
    """What is called with the records of each committed transaction of a sink: its `deliver`."""

    def receive(transaction: str, records: list[Any]) -> None:
        def hand_over(lines: list[Any]) -> None:
            to_driver(operator, transaction, lines)

        try:
            returned = sink.deliver(Delivery(records, transaction, turn_of(transaction).epoch, hand_over))
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

    return receive
