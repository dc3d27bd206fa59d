"""The staging of one sink: what waits to be published, and what is known of what was.

    prepared/TRANSACTION.ENDING  a piece: a durable part, which any task of any attempt may publish. The ending is that
                                 of its format, which the run that resumes this one may have changed
    rolls/FIRST                  the record of a roll, under the name of its first transaction
    joined/FIRST.TOKEN.ENDING    the joined pieces of a roll, under a name that nothing else has
    published/FIRST              the note that a roll was published

`rolls.py` has the rules. All of these are found by name; a list serves to remove what is dead, and in a folder to find
what a run withdraws (`withdrawing.py`).

Every name contains the attempt, and no name is used twice. So a removal only affects what an attempt wrote and will not
publish (`Rollback`), and a late removal does not harm a later attempt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backedge.engine.io.files.file_errors import DamagedOutputError
from backedge.engine.io.files.names import attempt_in, name_of, path_name, staged_name
from backedge.engine.io.files.output_storage import OutputStorage
from backedge.graphs.io import Rollback

PREPARED = "prepared"
ROLLS = "rolls"
_JOINED = "joined"
_NOTED = "published"


class Roll(NamedTuple):
    """What is published as one file: its transactions, in order; the staged file with its bytes; and its ending.

    `lengths` are those of the transactions' records, in a unit of the format, unless there is only one transaction.
    """

    transactions: tuple[str, ...]
    source: str
    ending: str
    lengths: tuple[int, ...] = ()

    @property
    def first(self) -> str:
        """The transaction that the roll and its published file are named after."""
        return self.transactions[0]


class Staging:
    """The staging of one sink, in `storage`.

    `endings`: that of the format of this sink, then those of others, in which an earlier run may have prepared pieces.
    """

    def __init__(self, storage: OutputStorage, endings: Sequence[str]) -> None:
        self.storage = storage
        self._endings = endings
        self.sizes: dict[str, int] = {}
        """The bytes of the pieces that were prepared through this object, by transaction."""

    # -- pieces --------------------------------------------------------------------------------------------------

    def prepare(self, part: Path, name: str) -> None:
        """Make a closed part durable as the piece of this transaction."""
        self.sizes[name] = self.storage.stage(part, self.place_of(name, self._endings[0]))

    def is_prepared(self, name: str) -> bool:
        return self.storage.exists(self.place_of(name, self._endings[0]))

    def place_of(self, name: str, ending: str) -> str:
        """The staged name of the piece of a transaction, in the format that has this ending."""
        return f"{PREPARED}/{path_name(name)}{ending}"

    def ending_of(self, name: str) -> str | None:
        """The ending of the piece of a transaction; None if it is not there."""
        return next((ending for ending in self._endings if self.storage.exists(self.place_of(name, ending))), None)

    def fetch(self, name: str, to: Path) -> tuple[Path, str]:
        """A local file with the piece of a transaction, and its ending. `FileNotFoundError` if it is gone."""
        for ending in self._endings[:-1]:
            try:
                return self.storage.fetch(self.place_of(name, ending), to), ending
            except FileNotFoundError:
                continue
        return self.storage.fetch(self.place_of(name, self._endings[-1]), to), self._endings[-1]

    def prepared_names(self) -> list[str]:
        """The transactions that are listed as prepared."""
        return [staged_name(file).transaction for file in self.storage.list(PREPARED)]

    # -- rolls ---------------------------------------------------------------------------------------------------

    def stage_joined(self, part: Path, first: str, ending: str) -> str:
        """Stage the joined pieces of a roll under a name that nothing else has. Returns it."""
        place = f"{_JOINED}/{path_name(first)}.{secrets.token_hex(8)}{ending}"
        self.storage.stage(part, place)
        return place

    def record(self, roll: Roll) -> bool:
        """Record a roll durably. False if another one is recorded under its name."""
        return self.storage.create(record_of(roll.first), encoded(roll))

    def roll_of(self, first: str) -> Roll | None:
        """The roll that is recorded under the name of its first transaction."""
        try:
            data = self.storage.read(record_of(first))
        except FileNotFoundError:
            return None
        try:
            found: Any = json.loads(data)
            transactions, lengths = tuple(map(str, found["transactions"])), tuple(map(int, found["lengths"]))
            return Roll(transactions, str(found["source"]), str(found["ending"]), lengths)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedOutputError(
                f"{self.storage.staging_location}/{record_of(first)} does not say what is published together "
                f"({error}): something else has written there; restore it from a backup, or start a new run elsewhere"
            ) from error

    def is_noted(self, first: str) -> bool:
        return self.storage.exists(_note_of(first))

    def note(self, roll: Roll) -> None:
        self.storage.note(roll.source, _note_of(roll.first))

    def settle(self, first: str) -> None:
        """Make the record and the note of a roll durable: the task that made them may have died before they were."""
        self.storage.make_durable([record_of(first), _note_of(first)])

    def remove_staged(self, roll: Roll) -> None:
        """Remove the pieces of a roll that was published and noted, and what joins them."""
        pieces = [self.place_of(name, roll.ending) for name in roll.transactions]
        self.storage.remove(pieces if roll.source in pieces else [*pieces, roll.source])

    def recorded(self) -> list[str]:
        """The first transactions of the rolls that are listed."""
        return [name_of(file) for file in self.storage.list(ROLLS)]

    # -- clean-up ------------------------------------------------------------------------------------------------

    def roll_back(self, rollback: Rollback, *, can_withdraw: bool) -> None:
        """Remove what is dead, as far as it is listed: parts and pieces that will not be published, and what is known
        of rolls that no restorable cut lists any more. If they can be withdrawn, records stay until none will be.
        """
        storage = self.storage
        # There may be as many as files, as long as a cut is kept that was taken before all of them.
        rolls = self.recorded() if rollback.settles or not can_withdraw else []
        dead = [name for name in storage.unfinished() if _is_over(name, rollback)]
        for folder, goes in ((PREPARED, rollback.removes), (_JOINED, rollback.forgets), (_NOTED, rollback.forgets)):
            files = storage.list(folder)
            dead += [f"{folder}/{file}" for file in files if goes(staged_name(file).transaction)]
        if can_withdraw:
            rolls = [first for first in rolls if self._is_settled(first, rollback)]
        # Records go last.
        dead += [record_of(first) for first in rolls if rollback.forgets(first)]
        try:
            storage.remove(dead)
        finally:
            if rollback.is_over:
                # Not earlier, because a task that is about to write would find its folder gone.
                storage.remove_empty_folders()

    def _is_settled(self, first: str, rollback: Rollback) -> bool:
        # The first is looked at before the record is read: most are not settled.
        if not rollback.is_settled(first):
            return False
        try:
            roll = self.roll_of(first)
        except DamagedOutputError:
            return False
        return roll is not None and all(map(rollback.is_settled, roll.transactions))


def record_of(first: str) -> str:
    """The staged name of the record of a roll."""
    return f"{ROLLS}/{path_name(first)}"


def encoded(roll: Roll) -> bytes:
    return json.dumps(roll._asdict()).encode()


def _note_of(first: str) -> str:
    return f"{_NOTED}/{path_name(first)}"


def _is_over(unfinished: str, rollback: Rollback) -> bool:
    attempt = attempt_in(unfinished.rpartition("/")[2])
    return attempt is not None and rollback.removes_open(attempt)
