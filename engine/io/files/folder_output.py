"""The output of a sink of files in a local folder, or in one that all hosts mount."""

from __future__ import annotations

from pathlib import Path

from backedge.engine.io.files.file_errors import unpublished
from backedge.engine.io.files.names import path_name
from backedge.engine.io.files.output_folders import (
    STAGING,
    check_output_folder,
    claim_folder,
    is_claimed,
    output_folder,
    release_folder,
)
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.rolls import RollLimits, Rolls
from backedge.engine.io.files.staging import Staging
from backedge.engine.io.files.withdrawing import Withdrawing
from backedge.engine.io.files.writers import FileWriter, NewPart
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Rollback, SinkPlace, Withdrawal
from backedge.recovery.stores.folder_store import FolderStore


class FolderOutput:
    """The output of one task in a folder."""

    can_withdraw = True

    def __init__(self, sink: FileFormat, place: SinkPlace) -> None:
        self._sink = sink
        self._place = place
        self._folder = output_folder(place.operator, sink.path)
        self._disk = sink.disk
        above = self._folder / STAGING / path_name(place.job)
        self._staging = Staging(above / path_name(place.operator), sink.disk, sink.ending)
        self._rolls = Rolls(self._staging, sink.disk, sink, self._target_of)

    def check(self, fresh: bool) -> None:
        """Create the folder; raise if it cannot be written to, or if it contains output and the run is fresh."""
        check_output_folder(self._place.operator, self._folder, fresh)

    def claim(self) -> bool:
        """Claim the folder for this run. False if the run already has it. `OutputError` names another owner."""
        return claim_folder(self._place.operator, self._folder, self._place.job, self._place.run)

    @property
    def is_claimed(self) -> bool:
        return is_claimed(FolderStore(str(self._folder / STAGING)), self._place.job, self._place.run)

    def release(self) -> None:
        """Release the claim of a run that will never be resumed."""
        release_folder(self._folder, self._place.job, self._place.run)

    def open_writer(self, new_part: NewPart) -> FileWriter:
        sink = self._sink
        return FileWriter(
            self._place,
            self._staging,
            new_part,
            self._folder,
            self._target_of,
            self._rolls,
            RollLimits(sink.roll_bytes, sink.roll_s),
            sink.form_of,
        )

    def roll_back(self, rollback: Rollback) -> None:
        """Remove parts that will not be published. At the end of the run, publish what tasks that died have left."""
        place, staging = self._place, self._staging
        if rollback.is_over:
            try:
                self._rolls.take_over(Attempt(place.attempt), place.task, rollback.removes_open)
            except OSError as error:
                raise unpublished(place.operator, staging.folder, error) from error
        try:
            staging.roll_back(rollback)
        finally:
            if rollback.is_over:
                self._disk.remove_empty(staging.folder.parent)
                self._disk.remove_empty(staging.folder.parent.parent)

    def withdraw(self, later: Withdrawal) -> None:
        """Remove what was published after a cut."""
        Withdrawing(self._staging, self._disk, self._rolls, self._target_of, self._sink).run(later)

    def _target_of(self, name: str, ending: str) -> Path:
        return self._folder / published_name(self._place, name, ending)


def published_name(place: SinkPlace, transaction: str, ending: str) -> str:
    """The name under which a transaction is published: no other run, sink, task or epoch has the same."""
    return f"part-{place.run}.{path_name(transaction)}{ending}"
