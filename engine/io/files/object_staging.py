"""The staging of one sink in an object store: what waits to be published, and what is known of what was.

    prepared/TRANSACTION.ENDING  a piece: a durable part, which any task of any attempt may publish
    rolls/FIRST                  the record of a roll, under the name of its first transaction
    joined/FIRST/NAME.ENDING     the joined pieces of a roll, under a name that nothing else has
    published/FIRST              an empty note that a roll was published

`object_rolls.py` has the rules. All of these are found by name; a list serves only to remove what is dead.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backedge.engine.io.files.file_errors import DamagedOutputError
from backedge.engine.io.files.names import name_of, new_name, path_name, staged_name
from backedge.graphs.ids import Attempt
from backedge.graphs.io import Rollback
from backedge.recovery.stores.store_calls import create_exclusively, exists, full_name

_PREPARED = "prepared"
_ROLLS = "rolls"
_JOINED = "joined"
_NOTED = "published"
_COPIED_BYTES = 8 << 20


class Roll(NamedTuple):
    """The transactions that are published as one object, the staged object that it is copied from, and its ending."""

    transactions: tuple[str, ...]
    source: str
    ending: str

    @property
    def first(self) -> str:
        """The transaction that the roll and its published object are named after."""
        return self.transactions[0]


class ObjectStaging:
    """The staging of one sink, in `store`, and the local files of parts that are being written.

    `endings`: that of the format of this sink, then those of others, in which an earlier run may have prepared parts.
    """

    def __init__(self, store: Any, endings: Sequence[str]) -> None:
        self.location = store.location
        self._store = store
        self._endings = endings
        self._open: dict[Path, int] = {}
        self.sizes: dict[str, int] = {}
        """The bytes of the pieces that were prepared through this object, by transaction."""

    # -- parts ---------------------------------------------------------------------------------------------------

    def new_part(self, attempt: Attempt, index: int) -> Path:
        return Path(tempfile.gettempdir(), f"backedge-{new_name(attempt, index)}")

    def hide(self, part: Path) -> None:
        """Remove the name of a local file that is open, so that it goes when this process dies."""
        self._open[part] = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        part.unlink()

    def prepare(self, part: Path, name: str) -> None:
        with os.fdopen(os.dup(self._open[part]), "rb") as file:
            self._store.upload(self.place_of(name, self._endings[0]), file)
            self.sizes[name] = os.fstat(file.fileno()).st_size
        self.drop(part)

    def drop(self, part: Path) -> None:
        """Let go of a local file."""
        if part in self._open:
            os.close(self._open.pop(part))

    def is_prepared(self, name: str) -> bool:
        return exists(self._store, self.place_of(name, self._endings[0]))

    def place_of(self, name: str, ending: str) -> str:
        """The name of the piece of a transaction in the format that has this ending."""
        return f"{_PREPARED}/{path_name(name)}{ending}"

    def ending_of(self, name: str) -> str | None:
        """The ending of the piece of a transaction; None if it is not there."""
        return next((ending for ending in self._endings if exists(self._store, self.place_of(name, ending))), None)

    def download(self, name: str, path: Path) -> str:
        """Copy the piece of a transaction to a local file. Returns its ending. `FileNotFoundError` if it is gone."""
        for ending in self._endings:
            try:
                with self._store.open(self.place_of(name, ending)) as piece, path.open("wb") as file:
                    shutil.copyfileobj(piece, file, _COPIED_BYTES)
                return ending
            except FileNotFoundError:
                continue
        raise FileNotFoundError(2, "No such object", full_name(self._store, self.place_of(name, self._endings[0])))

    def prepared_names(self) -> list[str]:
        """The transactions that are listed as prepared."""
        return [staged_name(file).transaction for file in self._listed(_PREPARED)]

    # -- rolls ---------------------------------------------------------------------------------------------------

    def upload_joined(self, path: Path, first: str, attempt: Attempt, index: int, ending: str) -> str:
        """Upload the joined pieces of a roll under a name that nothing else has. Returns it."""
        place = f"{_JOINED}/{path_name(first)}/{new_name(attempt, index)}{ending}"
        with path.open("rb") as file:
            self._store.upload(place, file)
        return place

    def record(self, roll: Roll) -> bool:
        """Record a roll durably, unless another one is recorded under its name. Whatever a reply says, it is read."""
        return create_exclusively(self._store, self._record_of(roll.first), json.dumps(roll._asdict()).encode())

    def roll_of(self, first: str) -> Roll | None:
        try:
            data = self._store.read(self._record_of(first))
        except FileNotFoundError:
            return None
        try:
            found: Any = json.loads(data)
            return Roll(tuple(map(str, found["transactions"])), str(found["source"]), str(found["ending"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedOutputError(
                f"{full_name(self._store, self._record_of(first))} does not say what is published together ({error}): "
                "something else has written there; restore it from a backup, or start a new run elsewhere"
            ) from error

    def is_noted(self, name: str) -> bool:
        return exists(self._store, f"{_NOTED}/{path_name(name)}")

    def note(self, first: str) -> None:
        """Note that a roll was published."""
        self._store.write({f"{_NOTED}/{path_name(first)}": b""})

    def remove_staged(self, roll: Roll) -> None:
        """Remove the pieces of a roll that was published and noted, and what joins them."""
        self._store.remove([*(self.place_of(name, roll.ending) for name in roll.transactions), roll.source])

    def remove(self, place: str) -> None:
        """Remove an object that no record names, and that this task has written."""
        self._store.remove([place])

    def _record_of(self, first: str) -> str:
        return f"{_ROLLS}/{path_name(first)}"

    # -- clean-up ------------------------------------------------------------------------------------------------

    def roll_back(self, rollback: Rollback) -> None:
        """Remove what is dead, as far as it is listed: pieces that will not be published, and what is known of rolls
        that no restorable cut lists any more.
        """
        dead = [file for file in self._listed(_PREPARED) if rollback.removes(staged_name(file).transaction)]
        dead = [f"{_PREPARED}/{file}" for file in dead]
        for folder in (_JOINED, _ROLLS, _NOTED):
            dead += [f"{folder}/{file}" for file in self._listed(folder) if rollback.forgets(_first_in(file))]
        self._store.remove(dead)

    def _listed(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self._store.list(folder))


def _first_in(file: str) -> str:
    """The first transaction of a roll, from the name of its record, of its note, or of what joins its pieces."""
    return name_of(file.split("/")[0])
