"""The output of a sink of files in an object store.

    PATH/part-RUN.TRANSACTION.ENDING             an object that is published
    PATH/_staging/owner.json                     the run to which this place belongs
    PATH/_staging/JOB/SINK/prepared/TRANSACTION  a durable part, which any task of any attempt may commit
    PATH/_staging/JOB/SINK/published/TRANSACTION an empty note that it was published

A part is written to an anonymous local file, and uploaded when its transaction is prepared. A commit takes three steps:
the store copies the part to its place, if that name is free; a note is made; the part is removed. A commit that is
repeated, by any task, looks for the note first, then for the part, and goes on from there. So it may be repeated after
any step, or come late: once there is a note, nothing is copied again, and once the part is gone, nothing could be.

Nothing is replaced: an object with other bytes in that place is an error. Objects are found by name; a list serves only
to remove what is dead, and to see whether a place is empty.

Unlike a folder, it joins no parts: each cut has an object of its own. A folder's rolls are handed from process to
process by renaming them, and objects cannot be renamed.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.files.file_errors import OutputError
from engine.files.folder_output import published_name
from engine.files.names import new_name, path_name, staged_name
from engine.files.output_folders import STAGING, claim_place, refuse_other_output, release_place
from engine.files.output_place import NewPart
from engine.files.parts import Part
from engine.files.writers import StagedWriter
from graphs.ids import Attempt
from graphs.io import Rollback, SinkPlace, Withdrawal
from recovery.stores.store_calls import exists
from recovery.stores.store_errors import StoreError
from recovery.stores.store_schemes import store_at

if TYPE_CHECKING:
    from engine.files.file_formats import FileSink

_PREPARED = "prepared"
_NOTED = "published"


@lru_cache(maxsize=16)
def _store_of(location: str) -> Any:
    """The store of a place, with its connections: each sweep asks for it.

    Typed as any, because only stores of objects copy, and their module is imported only if they are used.
    """
    return store_at(location)


class ObjectOutput:
    """The output of one task below a URI."""

    can_withdraw = False
    """What was published after a cut could only be found by a list, which may be incomplete."""

    def __init__(self, sink: FileSink, place: SinkPlace) -> None:
        self._place = place
        try:
            self._store = _store_of(sink.path.rstrip("/"))
        except StoreError as error:
            raise OutputError(f"sink {place.operator!r} cannot write: {error}") from error
        self._staging = ObjectStaging(
            self._store.below(f"{STAGING}/{path_name(place.job)}/{path_name(place.operator)}"), sink.ending
        )
        self._endings = (sink.ending, *sink.other_endings)

    def check(self, fresh: bool) -> None:
        """Raise unless objects can be written and are not copied over others."""
        sink, location = self._place.operator, self._store.location
        try:
            self._store.prepare(is_signed=True)
            self._try_out()
            published = self._published() if fresh else []
        except StoreError as error:
            raise OutputError(f"sink {sink!r} cannot write: {error}") from error
        except OSError as error:
            raise OutputError(
                f"sink {sink!r} cannot write to {location} ({error}): make it writable, or give another location"
            ) from error
        refuse_other_output(sink, location, published)

    def claim(self) -> bool:
        """Claim the place."""
        place, staging = self._place, self._store.below(STAGING)
        return claim_place(place.operator, self._store.location, staging, place.job, place.run)

    def release(self) -> None:
        """Release the claim."""
        release_place(self._store.below(STAGING), self._place.job, self._place.run)

    def open_writer(self, new_part: NewPart) -> ObjectWriter:
        """A writer of objects."""
        return ObjectWriter(self._place, self._staging, new_part, self._store, self._endings)

    def roll_back(self, rollback: Rollback) -> None:
        """Remove parts that will not be published, and notes that nobody will ask for."""
        self._staging.roll_back(rollback)

    def withdraw(self, later: Withdrawal) -> None:
        """Not possible; `can_withdraw` says so before anything runs."""
        raise OutputError(f"sink {self._place.operator!r} cannot remove objects from {self._store.location}")

    def _published(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self._store.list() if name[0] not in "._"})

    def _try_out(self) -> None:
        """Write an object, and copy another to its name: only this shows that the store refuses that."""
        names = [f"{STAGING}/try-{secrets.token_hex(8)}.{number}" for number in range(3)]
        try:
            self._store.write({names[0]: b"one", names[1]: b"other"})
            if not self._store.copy(names[0], names[2]) or self._store.copy(names[1], names[2]):
                raise OutputError(
                    f"sink {self._place.operator!r} cannot write to {self._store.location}: its store copies objects "
                    "over others although it is told not to; set AWS_COPY_IF_NOT_EXISTS to the header that this store "
                    "has for it, or write elsewhere"
                )
        finally:
            with suppress(OSError):
                self._store.remove(names)


class ObjectStaging:
    """The parts and notes of one sink, in `store`, and the local files of parts that are being written."""

    def __init__(self, store: Any, ending: str) -> None:
        self.location = store.location
        self._store = store
        self._ending = ending
        self._open: dict[Path, int] = {}

    def new_part(self, attempt: Attempt, index: int) -> Path:
        """A path for a new local file."""
        return Path(tempfile.gettempdir(), f"backedge-{new_name(attempt, index)}")

    def hide(self, part: Path) -> None:
        """Remove the name of a local file that is open, so that it goes when this process dies."""
        self._open[part] = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        part.unlink()

    def prepare(self, part: Path, name: str) -> None:
        """Upload a closed part."""
        with os.fdopen(os.dup(self._open[part]), "rb") as file:
            self._store.upload(self.place_of(name), file)
        self.drop(part)

    def drop(self, part: Path) -> None:
        """Let go of a local file."""
        if part in self._open:
            os.close(self._open.pop(part))

    def is_prepared(self, name: str) -> bool:
        """Whether a transaction is prepared."""
        return exists(self._store, self.place_of(name))

    def is_noted(self, name: str) -> bool:
        """Whether a note says that a transaction was published."""
        return exists(self._store, f"{_NOTED}/{path_name(name)}")

    def note(self, name: str) -> None:
        """Note that a transaction was published."""
        self._store.write({f"{_NOTED}/{path_name(name)}": b""})

    def remove_part(self, name: str, ending: str) -> None:
        """Remove the part of a transaction that was published."""
        self._store.remove([self.place_of(name, ending)])

    def place_of(self, name: str, ending: str | None = None) -> str:
        """The name of a prepared part in the format that has this ending, by default that of the sink."""
        return f"{_PREPARED}/{path_name(name)}{self._ending if ending is None else ending}"

    def prepared_names(self) -> list[str]:
        """The transactions that are listed as prepared."""
        return [staged_name(file).transaction for file in self._listed(_PREPARED)]

    def roll_back(self, rollback: Rollback) -> None:
        """Remove what is dead, as far as it is listed."""
        dead: list[str] = []
        for folder, goes in ((_PREPARED, rollback.removes), (_NOTED, rollback.forgets)):
            dead += [f"{folder}/{file}" for file in self._listed(folder) if goes(staged_name(file).transaction)]
        self._store.remove(dead)

    def _listed(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self._store.list(folder))


class ObjectWriter(StagedWriter[ObjectStaging]):
    """Each transaction becomes one object: part-RUN.TRANSACTION with the ending of its format.

    `endings`: that of the format of this sink, then those of others, in which an earlier run may have prepared parts.
    """

    def __init__(
        self, place: SinkPlace, staging: ObjectStaging, new_part: NewPart, store: Any, endings: Sequence[str]
    ) -> None:
        def new_hidden_part(path: Path) -> Part:
            part = new_part(path)
            staging.hide(path)
            return part

        super().__init__(place.operator, Attempt(place.attempt), place.task, staging, new_hidden_part, store.location)
        self._place = place
        self._store = store
        self._endings = endings

    def commit(self, name: str) -> None:
        """Publish what any task of any attempt has prepared under this name."""
        staging = self._staging
        if staging.is_noted(name):
            for ending in self._endings:
                staging.remove_part(name, ending)
            return
        for ending in self._endings:
            try:
                self._publish(name, ending)
            except FileNotFoundError:
                continue
            staging.note(name)
            staging.remove_part(name, ending)
            return
        # Another process may just have published it, and removed the part.
        if not staging.is_noted(name):
            raise self._unknown(name)

    def _publish(self, name: str, ending: str) -> None:
        target = published_name(self._place, name, ending)
        above = f"{STAGING}/{path_name(self._place.job)}/{path_name(self._place.operator)}"
        if not self._store.copy(f"{above}/{self._staging.place_of(name, ending)}", target):
            raise OutputError(
                f"transaction {name!r} would be published as {self._store.location}/{target}, but another object is "
                "there: something else writes to this place; remove that object, and give each job a place of its own"
            )

    def _is_published(self, name: str) -> bool:
        return exists(self._store, published_name(self._place, name, self._endings[0]))
