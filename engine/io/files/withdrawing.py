"""Removes what a sink has published in a folder after a cut, for a run that goes back there and replaces its output.

    replacing/ATTEMPT-TOKEN/    what an attempt writes meanwhile

What the cut lists has been published before. So each piece that the cut lists is in a roll that is recorded, published
and noted, and a process that was presumed dead can decide no other roll with both such a piece and a later one.

1. Folders of earlier attempts at this are taken over by renaming them, so their processes fail at the next step.
2. Later pieces are removed. A process that was presumed dead, and is about to publish one, finds it gone, or has
   recorded its roll before this step.
3. Each roll that is recorded is dealt with. Of one that holds only what is to be removed, the staged bytes are removed,
   so that it cannot be published any more, then the file, and then its record. A file that holds both kinds is replaced
   by one with the rest of its records, in one step.

Nothing else is touched. Whatever is removed is dead for good, and its names are never used again, so all of this may be
repeated, and a removal may be late. A file that a consumer has taken stays taken.

A file is replaced in these steps: write the new record, then the new file; move the record to its place, then the file.
Once the record is in its place, the file has to be moved; before that, nothing has happened yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from backedge.engine.io.files.folder_storage import FolderStorage
from backedge.engine.io.files.names import attempt_in, new_name, path_name, staged_name
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.rolls import published_name
from backedge.engine.io.files.staging import PREPARED, Roll, Staging, encoded, record_of
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Withdrawal

_FILE = "file."
_RECORD = "record."


Span = tuple[int, int]
"""A part of a joined file: where it begins, and its length, in the unit of its format."""


class Withdrawing:
    def __init__(self, staging: Staging, storage: FolderStorage, form: FileFormat, run: str) -> None:
        self._staging = staging
        self._storage = storage
        self._disk = storage.disk
        self._format = form
        self._run = run
        self._replacing = storage.staged / "replacing"

    def run(self, later: Withdrawal) -> None:
        """Remove it. Can be repeated."""
        attempt, disk = Attempt(later.attempt), self._disk
        own = self._replacing / new_name(attempt, 0)
        disk.make_folder(own, is_private=True)
        for name in disk.names(self._replacing):
            found = attempt_in(name)
            if found is not None and later.removes_open(found):
                self._finish(self._replacing / name, attempt)
        pieces = self._storage.list(PREPARED)
        self._remove([f"{PREPARED}/{file}" for file in pieces if later.removes(staged_name(file).transaction)])
        for first in self._staging.recorded():
            roll = self._staging.roll_of(first)
            if roll is not None:
                self._withdraw(first, roll, own, later)
        disk.remove_empty(own)

    def _finish(self, folder: Path, attempt: Attempt) -> None:
        taken = self._replacing / new_name(attempt, 0)
        try:
            self._disk.rename(folder, taken)
        except FileNotFoundError:  # another attempt was faster
            return
        self._disk.sync_folder(self._replacing)
        names = self._disk.names(taken)
        for name in names:
            replaced = name.removeprefix(_FILE)
            if replaced != name and self._is_recorded(taken / f"{_RECORD}{replaced}", replaced):
                self._replace(taken / name, self._storage.folder / published_name(self._run, *staged_name(replaced)))
        for name in names:
            self._disk.remove(taken / name)
        self._disk.remove_empty(taken)

    def _is_recorded(self, record: Path, replaced: str) -> bool:
        """Whether the record of what replaces a file was moved to its place. A power cut may have left both names."""
        place = self._storage.staged / record_of(staged_name(replaced).transaction)
        return not record.exists() or (place.exists() and place.read_bytes() == record.read_bytes())

    def _withdraw(self, first: str, roll: Roll, own: Path, later: Withdrawal) -> None:
        rest = [number for number, name in enumerate(roll.transactions) if not later.removes(name)]
        if len(rest) == len(roll.transactions):
            return
        target, disk = self._storage.folder / published_name(self._run, first, roll.ending), self._disk
        if not rest:
            self._remove([roll.source])
            disk.remove(target)
            disk.sync_folder(target.parent)
            self._remove([record_of(first)])
            return
        if not target.exists():
            return  # a consumer has taken it
        name, record_path = f"{path_name(first)}{roll.ending}", self._storage.staged / record_of(first)
        record, file = own / f"{_RECORD}{name}", own / f"{_FILE}{name}"
        stream = disk.open(record, is_private=True)
        try:
            stream.write(encoded(_with(roll, rest)))
        finally:
            stream.close()
        disk.sync_file(record)
        write = partial(self._format.of_ending(roll.ending).extract, disk, target, _spans(roll.lengths, rest))
        disk.create(file, self._storage.new_part(), write)
        disk.sync_folder(own)
        disk.rename(record, record_path)
        disk.sync_folder(record_path.parent)
        disk.sync_folder(own)
        self._replace(file, target)

    def _replace(self, file: Path, target: Path) -> None:
        if target.exists():
            self._disk.rename(file, target)
            self._disk.sync_folder(target.parent)
        else:
            self._disk.remove(file)

    def _remove(self, names: Sequence[str]) -> None:
        """Remove staged files, durably."""
        self._storage.remove(names)
        self._storage.make_durable(names)


def _with(roll: Roll, rest: Sequence[int]) -> Roll:
    """A roll with some of its transactions."""
    transactions, lengths = ([of[number] for number in rest] for of in (roll.transactions, roll.lengths))
    return roll._replace(transactions=tuple(transactions), lengths=tuple(lengths))


def _spans(lengths: Sequence[int], rest: Sequence[int]) -> list[Span]:
    """The places of some transactions in a file.

    >>> _spans([3, 4, 5], [0, 2])
    [(0, 3), (7, 5)]
    """
    return [(sum(lengths[:number]), lengths[number]) for number in rest]
