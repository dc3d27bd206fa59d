"""The output of one task of a sink of files, in a folder or in an object store.

At the end of a run its tasks publish what waits. What they have left, because a process died, the supervisor publishes:
the last cut of the run lists it.
"""

from __future__ import annotations

from typing import Any

from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.folder_storage import FolderStorage, output_folder
from backedge.engine.io.files.names import path_name
from backedge.engine.io.files.object_location import is_in_object_store
from backedge.engine.io.files.object_storage import ObjectStorage, store_of
from backedge.engine.io.files.output_claims import claim_place, is_claimed, refuse_other_output, release
from backedge.engine.io.files.output_storage import OutputStorage
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.rolls import RollLimits, Rolls
from backedge.engine.io.files.staging import Staging
from backedge.engine.io.files.withdrawing import Withdrawing
from backedge.engine.io.files.writers import FileWriter, NewPart
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Rollback, SinkPlace, Withdrawal
from backedge.recovery.stores.store_errors import StoreError


class FileOutput:
    """The output of one task at the path of its sink."""

    def __init__(self, sink: FileFormat, place: SinkPlace, store: Any = None) -> None:
        """`store`: of objects; by default that of the sink's path, if it is in one."""
        self._sink = sink
        self._place = place
        self._storage = _storage_of(sink, place, store)
        self._staging = Staging(self._storage, (sink.ending, *sink.other_endings))
        self._limits = RollLimits(sink.roll_bytes, sink.roll_s)
        self._rolls = Rolls(sink, place, self._staging, joins=not self._limits.are_none)

    def check(self, fresh: bool) -> None:
        """Raise if nothing can be written there, or if it contains output and the run is fresh."""
        sink, storage = self._place.operator, self._storage
        try:
            storage.try_out(sink)
            published = storage.published() if fresh else []
        except StoreError as error:
            raise OutputError(f"sink {sink!r} cannot write: {error}") from error
        except OSError as error:
            raise OutputError(
                f"sink {sink!r} cannot write to {storage.location} ({error}): make it writable, or give another path"
            ) from error
        refuse_other_output(sink, storage.location, published)

    def claim(self) -> bool:
        """Claim the place for this run. False if the run already has it. `OutputError` names another owner."""
        return claim_place(self._place.operator, self._storage, self._place.job, self._place.run)

    @property
    def is_claimed(self) -> bool:
        return is_claimed(self._storage.claims, self._place.job, self._place.run)

    def release(self) -> None:
        release(self._storage, self._place.job, self._place.run)

    def open_writer(self, new_part: NewPart) -> FileWriter:
        return FileWriter(self._place, self._staging, new_part, self._rolls, self._limits)

    @property
    def staging_location(self) -> str:
        return self._storage.staging_location

    def roll_back(self, rollback: Rollback) -> None:
        """Remove what will not be published, and what need not be known any more."""
        self._staging.roll_back(rollback, can_withdraw=self.can_withdraw)

    @property
    def can_withdraw(self) -> bool:
        """Whether what was published after a cut can be found: in an object store, only by a list."""
        return isinstance(self._storage, FolderStorage)

    def withdraw(self, later: Withdrawal) -> None:
        """Remove what was prepared and published after a cut. What that lists is published before."""
        if not isinstance(self._storage, FolderStorage):  # `can_withdraw` says so before anything runs
            raise OutputError(f"sink {self._place.operator!r} cannot remove objects from {self._storage.location}")
        Withdrawing(self._staging, self._storage, self._sink, self._place.run).run(later)


def _storage_of(sink: FileFormat, place: SinkPlace, store: Any) -> OutputStorage:
    staged = f"{path_name(place.job)}/{path_name(place.operator)}"
    if store is None and not is_in_object_store(sink.path):
        folder = output_folder(place.operator, sink.path)
        return FolderStorage(folder, staged, sink.disk, Attempt(place.attempt), place.task)
    try:
        return ObjectStorage(store or store_of(sink.path.rstrip("/")), staged)
    except StoreError as error:
        raise OutputError(f"sink {place.operator!r} cannot write: {error}") from error
