"""Removes what a sink has published after a cut, for a run that goes back to that cut and replaces its output.

    replacing/ATTEMPT-TOKEN/    what an attempt writes meanwhile

1. Folders of earlier attempts at this are taken over by renaming them, so their processes fail at the next step.
2. Prepared transactions are removed. A process that was presumed dead, and is about to publish one, finds it gone, or
   has recorded it before this step.
3. The rolls of earlier attempts are taken over, without the parts to be removed, and published.
4. Each file that `contents.py` has recorded is dealt with. One that holds only what is to be removed is removed, and
   then its record. One that holds both kinds is replaced by one with the rest of its records, in one step.

Nothing else is touched. Whatever is removed is dead for good, and its names are never used again, so all of this may be
repeated, and a removal may be late. A file that a consumer has taken stays taken.

A file is replaced in these steps: write the new record, then the new file; move the record to its place, then the file.
If both are still in the folder, nothing has happened yet; if only the file is, it has to be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from backedge.engine.io.files.contents import Content, Contents, write_contents
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.names import attempt_in, new_name, staged_name
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.rolls import Rolls, TargetOf
from backedge.engine.io.files.staging import Staging
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Withdrawal

_FILE = "file."
_RECORD = "record."


Span = tuple[int, int]
"""A part of a joined file: where it begins, and its length, in the unit of its format."""


class Withdrawing:
    """Removes the later output of one sink."""

    def __init__(self, staging: Staging, disk: Disk, rolls: Rolls, target_of: TargetOf, form: FileFormat) -> None:
        self._staging = staging
        self._contents: Contents = staging.contents
        self._disk = disk
        self._rolls = rolls
        self._target_of = target_of
        self._format = form

    def run(self, later: Withdrawal) -> None:
        """Remove it. Can be repeated."""
        attempt = Attempt(later.attempt)
        own = self._staging.replacing / new_name(attempt, 0)
        self._disk.make_folder(own, is_private=True)
        for name in self._disk.names(self._staging.replacing):
            found = attempt_in(name)
            if found is not None and later.removes_open(found):
                self._finish(self._staging.replacing / name, attempt)
        self._staging.remove_prepared(later.removes)
        self._rolls.take_over(attempt, 0, later.removes_open, later.removes)
        for name in self._contents.names():
            self._withdraw(name, own, later)
        self._disk.remove_empty(own)

    def _finish(self, folder: Path, attempt: Attempt) -> None:
        taken = self._staging.replacing / new_name(attempt, 0)
        try:
            self._disk.rename(folder, taken)
        except FileNotFoundError:  # another attempt was faster
            return
        self._disk.sync_folder(self._staging.replacing)
        names = self._disk.names(taken)
        for name in names:
            recorded = name.removeprefix(_FILE)
            if recorded != name and f"{_RECORD}{recorded}" not in names:
                self._replace(taken / name, recorded)
        for name in names:
            self._disk.remove(taken / name)
        self._disk.remove_empty(taken)

    def _withdraw(self, name: str, own: Path, later: Withdrawal) -> None:
        contents = self._contents.read(name)
        rest = [content for content in contents if not later.removes(content.transaction)]
        if len(rest) == len(contents):
            return
        target = self._target(name)
        if not rest:
            self._disk.remove(target)
            if target.parent.is_dir():
                self._disk.sync_folder(target.parent)
            self._disk.remove(self._contents.folder / name)
            return
        if not target.exists():
            return  # a consumer has taken it
        record, file = own / f"{_RECORD}{name}", own / f"{_FILE}{name}"
        write_contents(self._disk, rest, record)
        self._disk.sync_file(record)
        write = partial(self._format.of_ending(staged_name(name).ending).extract, target, _spans(contents, rest))
        self._disk.create(file, self._staging.new_part(Attempt(later.attempt), 0), write)
        self._disk.sync_folder(own)
        self._disk.rename(record, self._contents.folder / name)
        self._disk.sync_folder(self._contents.folder)
        self._disk.sync_folder(own)
        self._replace(file, name)

    def _replace(self, file: Path, name: str) -> None:
        target = self._target(name)
        if target.exists():
            self._disk.rename(file, target)
            self._disk.sync_folder(target.parent)
        else:
            self._disk.remove(file)

    def _target(self, name: str) -> Path:
        staged = staged_name(name)
        return self._target_of(staged.transaction, staged.ending)


def _spans(contents: Sequence[Content], rest: Sequence[Content]) -> list[Span]:
    """The places of some transactions in a file.

    >>> _spans([Content("a", 3), Content("b", 4), Content("c", 5)], [Content("a", 3), Content("c", 5)])
    [(0, 3), (7, 5)]
    """
    spans: list[Span] = []
    start = 0
    for content in contents:
        if content in rest:
            spans.append((start, content.length))
        start += content.length
    return spans
