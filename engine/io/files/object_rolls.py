"""Publishes the transactions of several cuts as one object, without renaming, listing or replacing anything.

A cut's transaction is a staged piece. A task collects the pieces that were committed until they are large or old
enough; together they are a roll, and become one object.

- **The cut says which pieces wait.** A piece stays among the transactions that a sink lists in its cuts until its roll
  is published. So no sweep removes it, a restore from any cut finds it, and a rescale hands it to another task. Whole
  rolls leave the list, in their order.
- A line is what one task of one attempt has prepared, in that order. Cuts complete in order, so the committed pieces of
  a line are its beginning, and those that a cut lists begin where a roll ends. A roll holds consecutive pieces of one
  line; its name is that of the first.
- **A record, created exclusively, decides what a roll holds.** It names the transactions, and the staged object that is
  copied to the published name: the piece itself, or the joined pieces, which were uploaded before under a name that
  nothing else has. So each roll has the same bytes for everyone, even if two versions of a format join differently.
  Whatever publishes a line, at any time, and with more or fewer of its pieces, reads the record of the first one,
  finishes that roll, and goes on behind it. Without records, two attempts would publish [1, 2] and [1, 2, 3].
- The task that prepared a line adds to it. Any other publishes at once what its cut lists of it: after a restart a line
  gets no further pieces.
- The steps of a roll: upload the joined pieces, record, copy to the published name if that is free, note, remove the
  pieces and what joins them. Each can be repeated, and be late. Once there is a note, nothing is copied; the record is
  read after the note, or it could be missed and the other pieces be published again. Once what is copied is gone,
  nothing can be: a process that read the record and then slept finds that.
- Records and notes go when no restorable cut lists the first transaction, and its piece has gone before. So a process
  that slept until then, and creates a record that was there before, finds the piece gone, and stops.
- A reply proves nothing. A record whose creation got none is read back. What joins the pieces is removed only by the
  process that wrote it, and only if another record is there; else by a sweep, together with the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.names import turn_of
from backedge.engine.io.files.object_staging import ObjectStaging, Roll
from backedge.engine.io.files.parts import FileFormat
from backedge.graphs.ids import Attempt
from backedge.graphs.io import SinkPlace

PIECES_MAX = 500
"""How many pieces may wait for one another. Each cut lists them, so their number is limited."""

_READ_AT_ONCE = 8

Copy = Callable[[str, str], bool]
"""Copies a staged object to a published name, if that is free. Whether the name now holds the same bytes."""


def lines_of(transactions: Iterable[str]) -> list[list[str]]:
    """Divide transactions by the task that has prepared them, each in the order of preparation.

    Their names have the order: that of a task's end, which is the last one, has epoch 0.

    >>> lines_of(["out.0.attempt-1.epoch-10", "out.1.attempt-1.epoch-9", "out.0.attempt-1.epoch-0"])
    [['out.1.attempt-1.epoch-9'], ['out.0.attempt-1.epoch-10', 'out.0.attempt-1.epoch-0']]
    """
    lines: dict[tuple[int, int], list[str]] = {}
    for name in sorted(transactions, key=_place_in_line):
        turn = turn_of(name)
        lines.setdefault((turn.attempt, turn.index), []).append(name)
    return list(lines.values())


def _place_in_line(transaction: str) -> tuple[bool, int]:
    epoch = turn_of(transaction).epoch
    return epoch == 0, epoch


class ObjectRolls:
    """Publishes the rolls of one sink. Unless it `joins`, a new roll has one piece.

    `target_of` gives the published name of a transaction and an ending.
    """

    def __init__(
        self,
        sink: FileFormat,
        place: SinkPlace,
        staging: ObjectStaging,
        copy: Copy,
        target_of: Callable[[str, str], str],
        *,
        joins: bool,
    ) -> None:
        self._sink = sink
        self._place = place
        self._staging = staging
        self._copy = copy
        self._target_of = target_of
        self._joins = joins

    def publish(self, line: Sequence[str]) -> None:
        """Publish committed transactions of one line, in their order. Repeating this has no effect."""
        left = list(line)
        while left:
            done = self._publish_first(left)
            left = [name for name in left if name not in done]

    def _publish_first(self, line: Sequence[str]) -> Sequence[str]:
        """Publish the roll that begins with the first of these. Returns the transactions in it."""
        first, staging = line[0], self._staging
        # In this order: a record that is not found before its note may have been made in between.
        if staging.is_noted(first):
            roll = staging.roll_of(first)
            if roll is None:
                return [first]  # by a version that made no records
            staging.remove_staged(roll)
            return roll.transactions
        roll = staging.roll_of(first) or self._decide(line)
        try:
            self._show(roll)
            staging.note(first)
        except FileNotFoundError:
            # Another process may just have published it, and removed what is copied.
            if not staging.is_noted(first):
                raise self._unknown(first) from None
        staging.remove_staged(roll)
        return roll.transactions

    def _show(self, roll: Roll) -> None:
        target = self._target_of(roll.first, roll.ending)
        if not self._copy(roll.source, target):
            raise OutputError(
                f"transaction {roll.first!r} would be published as {target}, but another object is there: something "
                "else writes to this place; remove that object, and give each job a place of its own"
            )

    def _decide(self, line: Sequence[str]) -> Roll:
        """The roll that begins with the first of these: as many as can be joined, unless one is recorded meanwhile."""
        first, staging = line[0], self._staging
        try:
            roll = self._staged(line)
        except FileNotFoundError:
            roll = None
        is_joined = roll is not None and len(roll.transactions) > 1
        is_ours = roll is not None and staging.record(roll)
        if roll is not None and is_joined and not is_ours:
            staging.remove(roll.source)
        found = roll if is_ours else staging.roll_of(first)
        if found is None or (is_ours and is_joined and self._is_forgotten(first)):
            raise self._unknown(first)
        return found

    def _is_forgotten(self, first: str) -> bool:
        """Whether a roll was published so long ago that its record could be created again."""
        return self._staging.ending_of(first) is None and not self._staging.is_noted(first)

    def _staged(self, line: Sequence[str]) -> Roll:
        first, staging, place = line[0], self._staging, self._place
        if len(line) == 1 or not self._joins:
            ending = staging.ending_of(first)
            if ending is None:
                raise FileNotFoundError(2, "No such object", first)
            return Roll((first,), staging.place_of(first, ending), ending)
        with TemporaryDirectory(prefix="backedge-") as folder:
            paths = [Path(folder, str(number)) for number in range(len(line))]
            with ThreadPoolExecutor(min(len(line), _READ_AT_ONCE)) as pool:
                endings = list(pool.map(staging.download, line, paths))
            sink = self._sink.of_ending(endings[0])
            form = sink.form_of(paths[0])
            count = 1
            while count < len(line) and endings[count] == endings[0] and sink.form_of(paths[count]) == form:
                count += 1
            if count == 1:
                return Roll((first,), staging.place_of(first, endings[0]), endings[0])
            joined = Path(folder, "joined")
            sink.join(paths[:count], joined)
            source = staging.upload_joined(joined, first, Attempt(place.attempt), place.task, endings[0])
        return Roll(tuple(line[:count]), source, endings[0])

    def _unknown(self, name: str) -> UnknownTransactionError:
        prepared = self._staging.prepared_names()
        return UnknownTransactionError(
            f"sink {self._place.operator!r} was asked to commit transaction {name!r}, which is neither prepared in "
            f"{self._staging.location} (there: {', '.join(prepared) or 'nothing'}) nor noted as published: put back "
            "what was removed there, or start a new run with another place for its output"
        )
