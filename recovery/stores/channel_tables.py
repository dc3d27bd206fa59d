"""The channels of a task as a manifest lists them: what each end has counted, in tables with a row for each.

A graph may have hundreds of channels for each task. Those of one edge differ in a few numbers only, so these are the
columns of a table. In manifests of format 12 each end is an object (`ChannelFigures`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.cut.cut import InputRecord, LogEntry, OutputRecord
from backedge.recovery.stores.shapes import Count, Index, Text

Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]


class _Ends(Struct, frozen=True, forbid_unknown_fields=True):
    edge: Text
    sender: tuple[Text, Index]
    receiver: tuple[Text, Index]
    restored: bool


class ChannelFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """One end of a channel: the number of batches sent, or consumed and logged, and their digest."""

    direction: Literal["in", "out"]
    ends: _Ends = field(name="channel")
    is_back: bool | None
    count: Count
    digest: Crc
    ended: bool | None
    log_count: Count | None

    @classmethod
    def of_input(cls, record: InputRecord) -> ChannelFigures:
        """Those of the receiver's end."""
        counts = (record.consumed, record.digest, record.ended, len(record.log))
        return cls("in", _Ends(*record.channel), record.is_back, *counts)

    @classmethod
    def of_output(cls, record: OutputRecord) -> ChannelFigures:
        """Those of the sender's end."""
        return cls("out", _Ends(*record.channel), None, record.sent, record.digest, None, None)

    @property
    def channel(self) -> ChannelId:
        ends = self.ends
        return ChannelId(ends.edge, TaskId(*ends.sender), TaskId(*ends.receiver), ends.restored)

    def as_input(self, log: tuple[LogEntry, ...]) -> InputRecord:
        return InputRecord(self.channel, bool(self.is_back), self.count, self.digest, log, bool(self.ended))

    def as_output(self) -> OutputRecord:
        return OutputRecord(self.channel, self.count, self.digest)


class ChannelTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The ends of some channels of an edge in one task, a row for each.

    - own: the index of the task, which is a receiver ("in") or a sender ("out").
    - others, counts, digests: of each row the index of the task at the other end, and the figures.
    - ended, logged: the rows of inputs that have ended, and those with a log, each with its number of batches.
    """

    direction: Literal["in", "out"]
    edge: Text
    sender: Text
    receiver: Text
    own: Index
    restored: bool
    is_back: bool | None
    others: tuple[Index, ...]
    counts: tuple[Count, ...]
    digests: tuple[Crc, ...]
    ended: tuple[Index, ...] = ()
    logged: tuple[tuple[Index, Count], ...] = ()

    def __post_init__(self) -> None:
        check_columns(len(self.others), (self.counts, self.digests), (self.ended, [row for row, _ in self.logged]))

    @property
    def ends(self) -> Iterator[ChannelFigures]:
        """Each row by itself."""
        is_in, ended, logged = self.direction == "in", frozenset(self.ended), dict(self.logged)
        for row, (other, count, digest) in enumerate(zip(self.others, self.counts, self.digests, strict=True)):
            sender, receiver = (other, self.own) if is_in else (self.own, other)
            ends = _Ends(self.edge, (self.sender, sender), (self.receiver, receiver), self.restored)
            more = (row in ended, logged.get(row, 0)) if is_in else (None, None)
            yield ChannelFigures(self.direction, ends, self.is_back, count, digest, *more)


def check_columns(size: int, columns: Iterable[Sequence[int]], chosen: Iterable[Sequence[int]]) -> None:
    """Raise unless the columns of a table have `size` rows, and each list of chosen rows has rows of it, in order.

    >>> check_columns(2, [[7, 7]], [[0, 1]]), check_columns(2, [[7, 7]], [[1, 0]])
    Traceback (most recent call last):
    ValueError: a table of channels lists rows that it does not have, or lists them out of order
    """
    if any(len(column) != size for column in columns):
        raise ValueError("a table of channels has columns of different lengths")
    if any(row >= later for rows in chosen for row, later in pairwise((*rows, size))):
        raise ValueError("a table of channels lists rows that it does not have, or lists them out of order")


def tables_of(ends: Iterable[ChannelFigures]) -> tuple[ChannelTable, ...]:
    """The same in tables, in the same order.

    >>> ends = [ChannelFigures("in", _Ends("e", ("a", i), ("b", 3), False), False, 7, 0, False, i) for i in (0, 1)]
    >>> (table,) = tables_of(ends)
    >>> table.own, table.others, table.counts, table.logged, list(table.ends) == ends
    (3, (0, 1), (7, 7), ((1, 1),), True)
    """
    tables: list[ChannelTable] = []
    for kind, group in groupby(ends, _kind):
        rows = list(group)
        table = ChannelTable(
            *kind,
            others=tuple((end.ends.sender if kind[0] == "in" else end.ends.receiver)[1] for end in rows),
            counts=tuple(end.count for end in rows),
            digests=tuple(end.digest for end in rows),
            ended=tuple(row for row, end in enumerate(rows) if end.ended),
            logged=tuple((row, end.log_count) for row, end in enumerate(rows) if end.log_count),
        )
        tables.append(table)
    return tuple(tables)


def _kind(end: ChannelFigures) -> tuple[Literal["in", "out"], str, str, str, int, bool, bool | None]:
    """What the rows of a table have in common."""
    ends = end.ends
    own = ends.receiver[1] if end.direction == "in" else ends.sender[1]
    return end.direction, ends.edge, ends.sender[0], ends.receiver[0], own, ends.restored, end.is_back
