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
- A part moves from `prepared/` to `rolls/`, `joining/` and `published/`, one step at a time. A lookup in the same order
  finds it.
- A task that opens takes over the rolls of earlier attempts, and the end of a run those of all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.files.disk import Disk
from engine.files.names import name_of, path_name
from engine.files.staging import Staging
from graphs.ids import Attempt

Join = Callable[[Sequence[Path], Path], None]
"""Writes the records of these files, in order, into a new file."""

_ROLL = re.compile(r"attempt-(\d+)\.\d+-[0-9a-f]+")
_JOINED = "joined."
"""Sorts behind the numbers of parts."""


@dataclass(frozen=True)
class RollLimits:
    """When a roll is published: at this size, or this long after its first part. None: no limit of that kind."""

    bytes: int | None
    seconds: float | None

    @property
    def are_none(self) -> bool:
        return self.bytes is None and self.seconds is None


class Rolls:
    """The rolls of one sink. `target_of` gives the path under which a transaction is published."""

    def __init__(self, staging: Staging, disk: Disk, join: Join, target_of: Callable[[str], Path]) -> None:
        self._staging = staging
        self._disk = disk
        self._join = join
        self._target_of = target_of
        self._rolls = staging.rolls
        self._joining = staging.joining

    def new(self, attempt: Attempt, index: int) -> Path:
        """The folder of a new roll."""
        roll = self._rolls / _new_name(attempt, index)
        self._disk.make_folder(roll, is_private=True)
        return roll

    def settle(self, name: str, roll: Path, number: int) -> bool:
        """Move a prepared transaction into a roll, durably. False if there is no such transaction or roll any more."""
        try:
            self._disk.rename(self._staging.path_of(name), roll / f"{number:06}.{path_name(name)}")
        except FileNotFoundError:
            return False
        try:
            self._disk.sync_folder(roll)
        except FileNotFoundError:  # it was taken over, which changes where the part is
            self.hold(name)
        self._staging.sync_prepared()
        return True

    def hold(self, name: str) -> bool:
        """Whether a roll holds this transaction."""
        wanted = path_name(name)
        while True:
            has_moved = False
            for roll in self._all():
                parts = self._disk.names(roll)
                if any(_transaction_in(part) == wanted for part in parts):
                    # The task that settled it may have died before that was durable.
                    with suppress(FileNotFoundError):
                        self._disk.sync_folder(roll)
                    self._staging.sync_prepared()
                    return True
                has_moved |= not roll.exists()
            if not has_moved:
                return False

    def take_over(self, attempt: Attempt, index: int, is_over: Callable[[int], bool]) -> None:
        """Publish the rolls of attempts that are over."""
        for roll in self._all():
            found = _ROLL.fullmatch(roll.name)
            if found is not None and is_over(int(found[1])):
                self.publish(roll, attempt, index)

    def publish(self, roll: Path, attempt: Attempt, index: int) -> None:
        """End a roll and publish its parts as one file, unless someone else has taken it over."""
        self._disk.make_folder(self._joining, is_private=True)
        own = self._joining / _new_name(attempt, index)
        try:
            self._disk.rename(roll, own)
        except FileNotFoundError:
            return
        self._disk.sync_folder(self._joining)
        self._disk.sync_folder(roll.parent)
        try:
            if names := self._disk.names(own):
                self._publish(own, names, attempt, index)
        except FileNotFoundError:
            if own.exists():
                raise
            return  # it was taken over in turn
        self._disk.remove_empty(own)

    def _publish(self, roll: Path, names: list[str], attempt: Attempt, index: int) -> None:
        """Each step can be repeated: what is left in the folder says what is to be done."""
        disk, staging = self._disk, self._staging
        parts = [roll / name for name in names if not name.startswith(_JOINED)]
        joined = roll / names[-1]
        if parts and parts[-1] == joined:
            # Its parts leave only after they were joined, so they are all here.
            joined = roll / f"{_JOINED}{_transaction_in(names[0])}"
            self._make_joined(joined, parts, attempt, index)
        first = name_of(_transaction_in(joined.name))
        staging.show(joined, self._target_of(first), first)
        for part in parts:
            name = _transaction_in(part.name)
            if name == _transaction_in(joined.name):
                disk.remove(part)
            else:
                staging.note(part, name_of(name))
        staging.sync_notes()
        disk.sync_folder(roll)
        staging.note(joined, first)
        staging.sync_notes()

    def _make_joined(self, joined: Path, parts: Sequence[Path], attempt: Attempt, index: int) -> None:
        disk = self._disk
        if len(parts) == 1:
            disk.link(parts[0], joined)
        else:
            made = self._staging.new_part(attempt, index)
            try:
                self._join(parts, made)
                disk.sync_file(made)
                disk.link(made, joined)
            finally:
                disk.remove(made)
        disk.sync_folder(joined.parent)

    def _all(self) -> Iterable[Path]:
        for folder in (self._rolls, self._joining):
            yield from (folder / name for name in self._disk.names(folder))


def _new_name(attempt: Attempt, index: int) -> str:
    return f"attempt-{attempt}.{index}-{secrets.token_hex(8)}"


def _transaction_in(part: str) -> str:
    """The file name of a transaction, from that of its part in a roll."""
    return part.partition(".")[2]
