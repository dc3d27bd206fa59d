"""Key groups whose entries are rows of a table, kept as columns and encoded to bytes on demand.

The bytes of a group are a pickle of (ROWS, 1, keys, values), the last two (name, type, data) per column: a list of
texts if the type is "string", otherwise the bytes of an array. A store that keeps columns uses the columns directly.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from backedge.recovery.typed_groups import Column

ROWS = "rows of a table"
_VERSION = 1


class Rows(NamedTuple):
    """Some rows of a table. `groups` is the key group of each; texts are in arrays of objects."""

    groups: Column
    keys: Mapping[str, Column]
    values: Mapping[str, Column]

    def at(self, places: Any) -> Rows:
        """The rows at these places."""
        keys, values = ({name: column[places] for name, column in part.items()} for part in self[1:])
        return Rows(self.groups[places], keys, values)

    def encoded(self) -> bytes:
        """All rows, which are of one group, as an entry of that group."""
        parts = ([(name, *_packed(column)) for name, column in part.items()] for part in self[1:])
        return pickle.dumps((ROWS, _VERSION, *parts), 5)

    def entries(self) -> list[tuple[Any, Any]]:
        """Each key with its values by name. The key is a tuple if it has several parts.

        >>> Rows(np.array([3]), {"id": np.array([7])}, {"sum": np.array([2.5])}).entries()
        [(7, {'sum': 2.5})]
        """
        keys, values = ([column.tolist() for column in part.values()] for part in self[1:])
        records = [dict(zip(self.values, row, strict=True)) for row in zip(*values, strict=True)]
        return list(zip(keys[0] if len(keys) == 1 else zip(*keys, strict=True), records, strict=True))


def _packed(column: Column) -> tuple[str, Any]:
    return ("string", column.tolist()) if column.dtype == object else (column.dtype.str, column.tobytes())


def _unpacked(kind: str, data: Any) -> Column:
    return np.array(data, object) if kind == "string" else np.frombuffer(data, kind)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, of which there is at least one."""
    first = parts[0]
    return Rows(
        np.concatenate([part.groups for part in parts]),
        {name: np.concatenate([part.keys[name] for part in parts]) for name in first.keys},
        {name: np.concatenate([part.values[name] for part in parts]) for name in first.values},
    )


class TableGroups(Mapping[int, bytes]):
    """Group -> its encoded rows, in the order of the groups. No piece has rows of two groups.

    >>> groups = TableGroups([Rows(np.array([3]), {"id": np.array([7])}, {"sum": np.array([2.5])})])
    >>> list(groups), rows_in(3, pickle.loads(groups[3])).entries()
    ([3], [(7, {'sum': 2.5})])
    """

    def __init__(self, pieces: Sequence[Rows]) -> None:
        self._pieces: dict[int, list[Rows]] = {}
        for piece in pieces:
            self._pieces.setdefault(int(piece.groups[0]), []).append(piece)

    def of(self, group: int) -> Rows:
        """The rows of a group."""
        return concatenated(self._pieces[group])

    def counts(self) -> dict[int, int]:
        """The number of rows of each group, in the order of the groups."""
        return {group: sum(len(piece.groups) for piece in self._pieces[group]) for group in self}

    def __getitem__(self, group: int) -> bytes:
        return self.of(group).encoded()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._pieces))

    def __len__(self) -> int:
        return len(self._pieces)


def are_rows(entry: Any) -> bool:
    """Whether a decoded entry holds rows of a table."""
    return type(entry) is tuple and len(cast("Any", entry)) == 4 and cast("Any", entry)[:2] == (ROWS, _VERSION)


def rows_in(group: int, entry: tuple[Any, ...]) -> Rows:
    """The rows in a decoded entry of a group."""
    keys, values = ({name: _unpacked(kind, data) for name, kind, data in part} for part in entry[2:])
    return Rows(np.full(len(next(iter(keys.values()))), group, np.int32), keys, values)
