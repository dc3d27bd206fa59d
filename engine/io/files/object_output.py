"""The output of a sink of files in an object store.

    PATH/part-RUN.TRANSACTION.ENDING  an object that is published, named after the first transaction in it
    PATH/_staging/owner.json          the run to which this place belongs
    PATH/_staging/JOB/SINK/           what waits, and what is known of what was published (`object_staging.py`)

A part is written to an anonymous local file, and uploaded when its transaction is prepared. Those of several cuts
become one object (`object_rolls.py`); without limits, each becomes one of its own, by the same steps.

Nothing is replaced: an object with other bytes in that place is an error. Objects are found by name; a list serves only
to remove what is dead, and to see whether a place is empty.

At the end of a run its tasks publish what waits. What they have left, because a process died, the supervisor publishes:
the last cut of the run lists it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic
from typing import Any

from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError, unpublished
from backedge.engine.io.files.folder_output import published_name
from backedge.engine.io.files.names import path_name
from backedge.engine.io.files.object_rolls import PIECES_MAX, ObjectRolls, lines_of
from backedge.engine.io.files.object_staging import ObjectStaging
from backedge.engine.io.files.output_folders import STAGING, claim_place, is_claimed, refuse_other_output, release_place
from backedge.engine.io.files.parts import FileFormat, Part
from backedge.engine.io.files.rolls import RollLimits
from backedge.engine.io.files.writers import NewPart, StagedWriter
from backedge.graphs.ids import prepared_by
from backedge.graphs.io import Rollback, SinkPlace, Withdrawal
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import store_at


@lru_cache(maxsize=16)
def _store_of(location: str) -> Any:
    """The store of a place, with its connections: each sweep asks for it.

    Typed as any, because only stores of objects copy, and their module is imported only if they are used.
    """
    return store_at(location)


class ObjectOutput:
    """The output of one task below a URI, with the methods of `FolderOutput`."""

    can_withdraw = False
    """What was published after a cut could only be found by a list, which may be incomplete."""

    def __init__(self, sink: FileFormat, place: SinkPlace, store: Any = None) -> None:
        """`store`: by default that of the sink's path."""
        self._place = place
        try:
            self._store = store or _store_of(sink.path.rstrip("/"))
        except StoreError as error:
            raise OutputError(f"sink {place.operator!r} cannot write: {error}") from error
        self._limits = RollLimits(sink.roll_bytes, sink.roll_s)
        self._above = f"{STAGING}/{path_name(place.job)}/{path_name(place.operator)}"
        self._staging = ObjectStaging(self._store.below(self._above), (sink.ending, *sink.other_endings))
        self._rolls = ObjectRolls(
            sink, place, self._staging, self._copy, partial(published_name, place), joins=not self._limits.are_none
        )

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
        place, staging = self._place, self._store.below(STAGING)
        return claim_place(place.operator, self._store.location, staging, place.job, place.run)

    @property
    def is_claimed(self) -> bool:
        return is_claimed(self._store.below(STAGING), self._place.job, self._place.run)

    def release(self) -> None:
        release_place(self._store.below(STAGING), self._place.job, self._place.run)

    def open_writer(self, new_part: NewPart) -> ObjectWriter:
        return ObjectWriter(self._place, self._staging, new_part, self._rolls, self._limits, self._store.location)

    def roll_back(self, rollback: Rollback) -> None:
        place = self._place
        try:
            for line in lines_of(name for name in rollback.committed if prepared_by(name)[0] == place.operator):
                self._rolls.publish(line)
        except OSError as error:
            raise unpublished(place.operator, self._staging.location, error) from error
        self._staging.roll_back(rollback)

    def withdraw(self, later: Withdrawal) -> None:
        """Not possible; `can_withdraw` says so before anything runs."""
        raise OutputError(f"sink {self._place.operator!r} cannot remove objects from {self._store.location}")

    def _copy(self, source: str, target: str) -> bool:
        return self._store.copy(f"{self._above}/{source}", target)

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


class ObjectWriter(StagedWriter[ObjectStaging]):
    """Publishes the transactions of several cuts as one object, at these limits; without, each as one of its own."""

    def __init__(
        self,
        place: SinkPlace,
        staging: ObjectStaging,
        new_part: NewPart,
        rolls: ObjectRolls,
        limits: RollLimits,
        published: str,
    ) -> None:
        def new_hidden_part(path: Path) -> Part:
            part = new_part(path)
            staging.hide(path)
            return part

        super().__init__(place, staging, new_hidden_part, published)
        self._rolls = rolls
        self._limits = limits
        # The committed pieces that wait for later ones, with their bytes, and when the first was committed.
        self._waiting: dict[str, int] = {}
        self._since_s = 0.0

    def commit(self, name: str) -> None:
        """Publish a transaction, or have it wait for later ones."""
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Publish transactions, except for those that wait for later ones. Returns all that wait."""
        sizes = self._staging.sizes
        for line in lines_of(name for name in names if name not in sizes):
            self._rolls.publish(line)
        own = {name: sizes[name] for name in names if name in sizes}
        if not self._waiting:
            self._since_s = monotonic()
        self._waiting |= own
        if self._is_due():
            self._publish_waiting()
        return self._waiting.keys()

    def close(self) -> None:
        """Drop the open transaction, and publish what waits for later ones; the writer is not used any more."""
        super().close()
        # If this attempt was superseded, all of it may be gone. What is lost is found where the cut is restored.
        with suppress(UnknownTransactionError):
            self._publish_waiting()

    def _is_due(self) -> bool:
        limits = self._limits
        return bool(self._waiting) and (
            limits.are_none
            or len(self._waiting) >= PIECES_MAX
            or limits.are_reached(sum(self._waiting.values()), monotonic() - self._since_s)
        )

    def _publish_waiting(self) -> None:
        # If this fails, so does the attempt; closing does not try again.
        waiting, self._waiting = list(self._waiting), {}
        if waiting:
            self._rolls.publish(waiting)
            for name in waiting:
                del self._staging.sizes[name]

    def _is_published(self, name: str) -> bool:
        return False  # what is published is noted
