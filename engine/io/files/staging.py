"""Holds output until the cut that lists it is complete: one folder per sink, shared by its tasks.

    open/       parts that are being written, named after attempt and task
    prepared/   durable parts, under the names of their transactions: any task of any attempt may commit them. The
                ending of a part is that of its format, which the run that resumes this one may have changed
    published/  notes of what was published, under the same names
    rolls/, joining/  parts that wait to be published together, if the sink does that (`rolls.py`)
    contents/   which transactions each published file holds (`contents.py`)
    replacing/  what a run that replaces output writes meanwhile (`withdrawing.py`)

A part passes through these in that order, one step at a time. A lookup in the same order, which checks the published
file between the last two, therefore finds it; a part that is neither prepared, published nor noted is lost. A note is
the part itself: it shares its bytes with the published file, so a consumer may move that away. It stays for as long as
a restore may ask for it.

Every name contains the attempt, and no name is used twice. So a removal only affects what an attempt wrote and will not
publish (`Rollback`), and a late removal does not harm a later attempt.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

from backedge.engine.io.files.contents import Contents
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.names import attempt_in, new_name, path_name, staged_name
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Rollback


class Staging:
    """The staging folder of one sink. `ending` is that of the parts that it prepares.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staging = Staging(Path(folder), Disk())
    ...     part = staging.new_part(Attempt(1), 0)
    ...     Disk().open(part).close()
    ...     staging.prepare(part, "done.0.attempt-1.epoch-1")
    ...     staging.prepared_names()
    ['done.0.attempt-1.epoch-1']
    """

    def __init__(self, folder: Path, disk: Disk, ending: str = "") -> None:
        self.folder = folder
        self.location = str(folder)
        self.ending = ending
        self._disk = disk
        self._open = folder / "open"
        self._prepared = folder / "prepared"
        self._noted = folder / "published"
        self.rolls = folder / "rolls"
        self.joining = folder / "joining"
        self.replacing = folder / "replacing"
        self.contents = Contents(folder / "contents", disk)

    def new_part(self, attempt: Attempt, index: int) -> Path:
        self._disk.make_folder(self._open, is_private=True)
        return self._open / new_name(attempt, index)

    def prepare(self, part: Path, name: str) -> None:
        """Make a closed part durable under this name."""
        self._disk.make_folder(self._prepared, is_private=True)
        self._disk.sync_file(part)
        self._disk.rename(part, self.path_of(name))
        self._disk.sync_folder(self._prepared)

    def drop(self, part: Path) -> None:
        self._disk.remove(part)

    def is_prepared(self, name: str) -> bool:
        """Whether a transaction is prepared in the format of this sink."""
        return self.path_of(name).exists()

    def path_of(self, name: str) -> Path:
        """The path of a transaction that is prepared in the format of this sink."""
        return self._prepared / f"{path_name(name)}{self.ending}"

    def other_form_of(self, name: str) -> Path | None:
        """The path of a transaction that was prepared in another format, if it is there."""
        for file in self._disk.names(self._prepared):
            if staged_name(file).transaction == name and file != self.path_of(name).name:
                return self._prepared / file
        return None

    def is_noted(self, name: str) -> bool:
        return (self._noted / path_name(name)).exists()

    def publish(self, name: str, staged: Path, target: Path) -> bool:
        """Make a prepared transaction visible, then note that. Returns False if it is not found.

        Nothing is ever replaced. Repeating this has no effect, even if a consumer has moved the file away.
        """
        if staged.exists():
            self.contents.note_one(self.record_name(name, staged_name(staged.name).ending))
        try:
            self.show(staged, target, name)
        except FileNotFoundError:
            return self.was_published(name, target)
        try:
            self.note(staged, name)
        except FileNotFoundError:
            # Another attempt has just published the same transaction.
            return self.is_noted(name)
        self.sync_notes()
        self.sync_prepared()
        return True

    def record_name(self, name: str, ending: str) -> str:
        """The name of the record of the file that is published for a transaction."""
        return f"{path_name(name)}{ending or self.ending}"

    def was_published(self, name: str, target: Path) -> bool:
        """Whether it is visible or noted that a transaction was published."""
        is_published = target.exists() or self.is_noted(name)
        if is_published:
            self._sync_published(target)
        return is_published

    def show(self, part: Path, target: Path, name: str) -> None:
        """Make a durable part visible, durably. Nothing is ever replaced."""
        self._disk.make_folder(target.parent)
        try:
            self._disk.link(part, target)
        except FileExistsError:
            self._check_same(part, target, name)
        self._disk.sync_folder(target.parent)

    def note(self, part: Path, name: str) -> None:
        """Turn a part that was published into its note."""
        self._disk.make_folder(self._noted, is_private=True)
        self._disk.rename(part, self._noted / path_name(name))

    def sync_notes(self) -> None:
        """Make the names of all notes durable."""
        if self._noted.is_dir():
            self._disk.sync_folder(self._noted)

    def sync_prepared(self) -> None:
        """Make it durable that parts have left the folder of prepared ones."""
        if self._prepared.is_dir():
            self._disk.sync_folder(self._prepared)

    def _sync_published(self, target: Path) -> None:
        # The task that published it may have died before that was durable.
        for folder in (target.parent, self._noted, self._prepared):
            if folder.is_dir():
                self._disk.sync_folder(folder)

    def _check_same(self, staged: Path, target: Path, name: str) -> None:
        try:
            is_same = filecmp.cmp(staged, target, shallow=False)
        except FileNotFoundError:
            return  # just published by another attempt, or taken by a consumer
        if not is_same:
            raise OutputError(
                f"transaction {name!r} would be published as {target}, but another file is there: something else "
                "writes to this folder; move that file away, and give each job a folder of its own"
            )

    def prepared_names(self) -> list[str]:
        return [staged_name(file).transaction for file in self._disk.names(self._prepared)]

    def remove_prepared(self, goes: Callable[[str], bool]) -> None:
        """Remove prepared transactions, durably."""
        for file in self._disk.names(self._prepared):
            if goes(staged_name(file).transaction):
                self._disk.remove(self._prepared / file)
        self.sync_prepared()

    def roll_back(self, rollback: Rollback) -> None:
        """Remove leftovers of attempts. If something cannot be removed, go on with the rest, then raise."""
        errors: list[OSError] = []
        for path in self._dead(rollback):
            try:
                self._disk.remove(path)
            except OSError as error:
                errors.append(error)
        if rollback.is_over:
            # Not earlier, because a task that is about to write would find its folder gone.
            folders = (self._open, self._prepared, self.rolls, self.joining, self._noted)
            for folder in (*folders, self.replacing, self.contents.folder, self.folder):
                self._disk.remove_empty(folder)
        if errors:
            raise errors[0]

    def _dead(self, rollback: Rollback) -> list[Path]:
        dead: list[Path] = []
        for name in self._disk.names(self._open):
            found = attempt_in(name)
            if found is not None and rollback.removes_open(found):
                dead.append(self._open / name)
        for folder, goes in ((self._prepared, rollback.removes), (self._noted, rollback.forgets)):
            dead += [folder / path for path in self._disk.names(folder) if goes(staged_name(path).transaction)]
        return dead + self.contents.settled(rollback)
