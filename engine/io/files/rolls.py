"""Joins committed parts of a sink into files of a useful size, in two more folders of its staging.

    rolls/ATTEMPT.INDEX-TOKEN/     a roll: committed parts, numbered in the order of their commits
    joining/ATTEMPT.INDEX-TOKEN/   a roll that takes no more parts, while it becomes one published file

- A commit moves a part from `prepared/` into a roll. What is in a roll will be published, whatever becomes of the
  attempt: no cut names rolls, and to publish one late or twice does no harm.
- Renaming the folder of a roll ends it and hands it to the process that renames it. No part is added after that, so
  every process that joins its parts gets the same bytes. The former owner finds the folder gone, and stops.
- The joined file is created in that folder by an exclusive link, and published by an exclusive link under the name of
  the first part. Then the other parts become their notes, and the joined file that of the first part. A consumer that
  takes only what is noted therefore never takes a file that would be published again.
- The name of the joined file says how many parts it holds. A move into the roll that the system was carrying out while
  its folder was renamed may end later; that part stays, and becomes a file of its own.
- The parts of a roll have one format, which their ending names. A run whose sink has another format cannot join the
  parts of its predecessor, so it publishes each as a file of its own, with that ending.
- A part moves from `prepared/` to `rolls/`, `joining/` and `published/`, one step at a time. A lookup in the same order
  finds it.
- A task that opens takes over the rolls of earlier attempts, and the end of a run those of all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from backedge.engine.io.files.contents import Content
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.names import attempt_in, new_name, path_name, staged_name
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.staging import Staging
from backedge.graphs.ids import Attempt

TargetOf = Callable[[str, str], Path]
"""The path under which a transaction is published in the format that has this ending."""

_PART = re.compile(r"(joined\.)?(\d+)\.(.+)", re.DOTALL)


class RollLimits(Struct, frozen=True):
    """When a roll is published: at this size, or this long after its first part. None: no limit of that kind."""

    bytes: int | None
    seconds: float | None

    @property
    def are_none(self) -> bool:
        return self.bytes is None and self.seconds is None

    def are_reached(self, size: int, age_s: float) -> bool:
        """Whether a roll of this size is to be published, so long after its first part."""
        is_large = self.bytes is not None and size >= self.bytes
        return is_large or (self.seconds is not None and age_s >= self.seconds)


class Rolls:
    """The rolls of one sink."""

    def __init__(self, staging: Staging, disk: Disk, form: FileFormat, target_of: TargetOf) -> None:
        self._staging = staging
        self._disk = disk
        self._format = form
        self._target_of = target_of
        self._rolls = staging.rolls
        self._joining = staging.joining

    def new(self, attempt: Attempt, index: int) -> Path:
        roll = self._rolls / new_name(attempt, index)
        self._disk.make_folder(roll, is_private=True)
        return roll

    def settle(self, name: str, roll: Path, number: int) -> bool:
        """Move a prepared transaction into a roll, durably. False if there is no such transaction or roll any more."""
        try:
            self._disk.rename(self._staging.path_of(name), roll / f"{number:06}.{self._staging.path_of(name).name}")
        except FileNotFoundError:
            return False
        try:
            self._disk.sync_folder(roll)
        except FileNotFoundError:  # it was taken over, which changes where the part is
            self.hold(name)
        self._staging.sync_prepared()
        return True

    def hold(self, name: str) -> bool:
        while True:
            has_moved = False
            for roll in self._all():
                if any(part.transaction == name for part in self._parts_in(roll)):
                    # The task that settled it may have died before that was durable.
                    with suppress(FileNotFoundError):
                        self._disk.sync_folder(roll)
                    self._staging.sync_prepared()
                    return True
                has_moved |= not roll.exists()
            if not has_moved:
                return False

    def take_over(
        self, attempt: Attempt, index: int, is_over: Callable[[int], bool], drops: Callable[[str], bool] | None = None
    ) -> None:
        """Publish the rolls of attempts that are over. Transactions that it `drops` are left out."""
        for roll in self._all():
            found = attempt_in(roll.name)
            if found is not None and is_over(found):
                self.publish(roll, attempt, index, drops)

    def publish(self, roll: Path, attempt: Attempt, index: int, drops: Callable[[str], bool] | None = None) -> None:
        """End a roll and publish its parts as one file, unless someone else has taken it over.

        A part that it `drops` is left out, unless the parts are joined already.
        """
        own = self._joining / new_name(attempt, index)
        self._disk.make_folder(self._joining, is_private=True)
        try:
            self._disk.rename(roll, own)
        except FileNotFoundError:
            return
        self._disk.sync_folder(self._joining)
        self._disk.sync_folder(roll.parent)
        try:
            found = self._parts_in(own)
            if drops is not None and not any(part.is_joined for part in found):
                for part in found:
                    if drops(part.transaction):
                        self._disk.remove(own / part.file)
            while found := self._parts_in(own):
                self._publish(own, found, attempt, index)
        except FileNotFoundError:
            if own.exists():
                raise
            return  # it was taken over in turn
        self._disk.remove_empty(own)

    def _publish(self, roll: Path, found: list[_Part], attempt: Attempt, index: int) -> None:
        """Publish one file. Each step can be repeated: what is left in the folder says what is to be done."""
        disk, staging = self._disk, self._staging
        joined = next((part for part in found if part.is_joined), None)
        parts = [part for part in found if not part.is_joined]
        if joined is None:
            # Its parts leave only after they were joined, so they are all here.
            if parts[0].ending not in ("", staging.ending):
                parts = parts[:1]
            joined = parts[0].joining(parts[-1].number + 1)
            self._make_joined(roll / joined.file, [roll / part.file for part in parts], attempt, index)
        first = joined.transaction
        self._record(roll, joined, [part for part in parts if part.number < joined.number], attempt, index)
        staging.show(roll / joined.file, self._target_of(first, joined.ending or staging.ending), first)
        for part in parts:
            if part.transaction == first:
                disk.remove(roll / part.file)
            elif part.number < joined.number:
                staging.note(roll / part.file, part.transaction)
        staging.sync_notes()
        disk.sync_folder(roll)
        staging.note(roll / joined.file, first)
        staging.sync_notes()

    def _record(self, roll: Path, joined: _Part, parts: Sequence[_Part], attempt: Attempt, index: int) -> None:
        name = self._staging.record_name(joined.transaction, joined.ending)
        contents = self._staging.contents
        if [part.transaction for part in parts] == [joined.transaction]:
            contents.note_one(name)
        elif not contents.has(name):
            # All parts are here: they leave after this.
            lengths = [
                Content(part.transaction, self._format.of_ending(part.ending).length_of(roll / part.file))
                for part in parts
            ]
            contents.note_joined(name, lengths, self._staging.new_part(attempt, index))

    def _make_joined(self, joined: Path, parts: Sequence[Path], attempt: Attempt, index: int) -> None:
        disk = self._disk
        if len(parts) == 1:
            disk.link(parts[0], joined)
        else:
            disk.create(joined, self._staging.new_part(attempt, index), partial(self._format.join, parts))
        disk.sync_folder(joined.parent)

    def _parts_in(self, roll: Path) -> list[_Part]:
        """The files of a roll, in the order of their numbers. Others are not ours, such as those of a network share."""
        found = [_PART.fullmatch(name) for name in self._disk.names(roll)]
        return [_Part(int(file[2]), *staged_name(file[3]), file[1] is not None) for file in found if file is not None]

    def _all(self) -> Iterable[Path]:
        for folder in (self._rolls, self._joining):
            yield from (folder / name for name in self._disk.names(folder))


class _Part(NamedTuple):
    """A file in a roll: a part with its number, or the joined file of all parts with numbers below its own."""

    number: int
    transaction: str
    ending: str
    is_joined: bool = False

    def joining(self, number: int) -> _Part:
        """The joined file of which this is the first part."""
        return self._replace(number=number, is_joined=True)

    @property
    def file(self) -> str:
        return f"{'joined.' if self.is_joined else ''}{self.number:06}.{path_name(self.transaction)}{self.ending}"
