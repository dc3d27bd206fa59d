"""Publishes the transactions of several cuts as one file, in a folder or in an object store, by the same steps.

A cut's transaction is a staged piece. A task collects the pieces that were committed until they are large or old
enough; together they are a roll, and become one file.

- **The cut says which pieces wait.** A piece stays among the transactions that a sink lists in its cuts until its roll
  is published. So no sweep removes it, a restore from any cut finds it, and a rescale hands it to another task. Whole
  rolls leave the list, in their order.
- A line is what one task of one attempt has prepared, in that order. Cuts complete in order, so the committed pieces of
  a line are its beginning, and those that a cut lists begin where a roll ends. A roll holds consecutive pieces of one
  line; its name is that of the first.
- **A record, created exclusively, decides what a roll holds.** It names the transactions, and the staged file that gets
  the published name: the piece itself, or the joined pieces, which were staged before under a name that nothing else
  has. So each roll has the same bytes for everyone, even if two versions of a format join differently. Whatever
  publishes a line, at any time, and with more or fewer of its pieces, reads the record of the first one, finishes that
  roll, and goes on behind it. Without records, two attempts would publish [1, 2] and [1, 2, 3].
- The task that prepared a line adds to it. Any other publishes at once what its cut lists of it: after a restart a line
  gets no further pieces.
- The steps of a roll: stage the joined pieces, record, publish under the name if that is free, note, remove the pieces
  and what joins them. Each can be repeated, and be late. Once there is a note, nothing is published; the record is
  read after the note, or it could be missed and the other pieces be published again. Once what is published is staged
  no more, nothing can be: a process that read the record and then slept finds that.
- Records and notes go when no restorable cut lists the first transaction, and its piece has gone before. So a process
  that slept until then, and creates a record that was there before, finds the piece gone, and stops.
- A reply of an object store proves nothing. A record whose creation got none is read back. What joins the pieces is
  removed only by the process that wrote it, and only if another record is there; else by a sweep, together with the
  records.
- The pieces of a roll have one format, which their ending names: that in which they were written. A consumer that takes
  only files with a note never takes one that would be published again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.names import path_name, turn_of
from backedge.engine.io.files.parts import FileFormat
from backedge.engine.io.files.staging import Roll, Staging
from backedge.graphs.io import SinkPlace
from backedge.recovery.stores.store_calls import each

PIECES_MAX = 500
"""How many pieces may wait for one another. Each cut lists them, so their number is limited."""


class RollLimits(Struct, frozen=True):
    """When a roll is published: at this size, or this long after its first piece. None: no limit of that kind."""

    bytes: int | None
    seconds: float | None

    @property
    def are_none(self) -> bool:
        return self.bytes is None and self.seconds is None

    def are_reached(self, size: int, age_s: float) -> bool:
        """Whether a roll of this size is to be published, so long after its first piece."""
        is_large = self.bytes is not None and size >= self.bytes
        return is_large or (self.seconds is not None and age_s >= self.seconds)


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


def published_name(run: str, transaction: str, ending: str) -> str:
    """The name under which a transaction is published: no other run, sink, task or epoch has the same."""
    return f"part-{run}.{path_name(transaction)}{ending}"


class Rolls:
    """Publishes the rolls of one sink. Unless it `joins`, a new roll has one piece."""

    def __init__(self, sink: FileFormat, place: SinkPlace, staging: Staging, *, joins: bool) -> None:
        self._sink = sink
        self._place = place
        self._staging = staging
        self._storage = staging.storage
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
        is_noted = staging.is_noted(first)
        roll = staging.roll_of(first)
        if roll is not None:
            staging.settle(first)
        if not is_noted:
            roll = roll or self._decide(line)
            try:
                self._show(roll)
                staging.note(roll)
            except FileNotFoundError:
                # Another process may just have published it, and removed what is published.
                if not staging.is_noted(first):
                    raise self._unknown(first) from None
                staging.settle(first)
        if roll is None:  # no restorable cut lists it any more
            return [first]
        staging.remove_staged(roll)
        return [first, *roll.transactions]

    def _show(self, roll: Roll) -> None:
        target = published_name(self._place.run, roll.first, roll.ending)
        if not self._storage.publish(roll.source, target):
            raise OutputError(
                f"transaction {roll.first!r} would be published as {self._storage.location}/{target}, but another file "
                "is there: something else writes to this place; remove that file, and give each job a place of its own"
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
            self._storage.remove([roll.source])
        found = roll if is_ours else staging.roll_of(first)
        if found is None or (is_ours and is_joined and self._is_forgotten(first)):
            raise self._unknown(first)
        return found

    def _is_forgotten(self, first: str) -> bool:
        """Whether a roll was published so long ago that its record could be created again."""
        return self._staging.ending_of(first) is None and not self._staging.is_noted(first)

    def _staged(self, line: Sequence[str]) -> Roll:
        first, staging = line[0], self._staging
        if len(line) == 1 or not self._joins:
            ending = staging.ending_of(first)
            if ending is None:
                raise FileNotFoundError(2, "No such file", first)
            return Roll((first,), staging.place_of(first, ending), ending)
        with TemporaryDirectory(prefix="backedge-") as spare:
            copies = [(name, Path(spare, str(number))) for number, name in enumerate(line)]
            pieces = each(self._storage.fetched_at_once, lambda piece: staging.fetch(*piece), copies)
            ending = pieces[0][1]
            sink = self._sink.of_ending(ending)
            form = sink.form_of(pieces[0][0])
            count = 1
            while count < len(line) and pieces[count][1] == ending and sink.form_of(pieces[count][0]) == form:
                count += 1
            if count == 1:
                return Roll((first,), staging.place_of(first, ending), ending)
            paths = [path for path, _ in pieces[:count]]
            lengths = tuple(map(sink.length_of, paths))
            source = self._join(sink, paths, first, ending)
        return Roll(tuple(line[:count]), source, ending, lengths)

    def _join(self, sink: FileFormat, pieces: Sequence[Path], first: str, ending: str) -> str:
        joined = self._storage.new_part()
        try:
            sink.join(self._storage.disk, pieces, joined)
            return self._staging.stage_joined(joined, first, ending)
        finally:
            self._storage.disk.remove(joined)

    def _unknown(self, name: str) -> UnknownTransactionError:
        prepared, storage = self._staging.prepared_names(), self._storage
        return UnknownTransactionError(
            f"sink {self._place.operator!r} was asked to commit transaction {name!r}, which is neither prepared in "
            f"{storage.staging_location} (there: {', '.join(prepared) or 'nothing'}) nor noted there as published in "
            f"{storage.location}: put back what was removed, or start a new run with another place for its output"
        )
