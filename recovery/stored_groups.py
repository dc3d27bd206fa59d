"""Key groups in the form in which a store's table holds them: columns, encoded to bytes only on demand.

A restore uses the columns directly, so no entry is pickled in between, and pickles stay in the buffer that they were
read into until they are loaded.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from backedge.recovery.table_groups import Rows
from backedge.recovery.typed_groups import Column, Numbers, many


class Pairs(NamedTuple):
    """Entries with a plain key and a plain value that are not both numbers."""

    groups: Column
    keys: list[Any]
    values: list[Any]


class Pickles(NamedTuple):
    """Pickled entries: entry `i` is in `data`, from `ends[i]` to `ends[i + 1]`."""

    groups: Column
    ends: Column
    data: memoryview

    def each(self) -> Iterator[memoryview]:
        """The pickle of each entry."""
        data, ends = self.data, self.ends.tolist()
        return (data[start:end] for start, end in pairwise(ends))


StoredPart = Numbers | Pairs | Pickles | Rows


class StoredGroups(Mapping[int, bytes]):
    """Group -> its entries, as concatenated pickles.

    >>> groups = StoredGroups((Pairs(np.array([3, 5]), ["a", "b"], [1, 2]),))
    >>> list(groups), pickle.loads(groups[5])
    ([3, 5], ('b', 2))
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[StoredPart]) -> None:
        """The parts may be read from files, each time that they are iterated over."""
        self.parts = parts

    def __getitem__(self, group: int) -> bytes:
        found = b"".join(entry for part in self.parts for entry in _entries(part, group))
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({int(group) for part in self.parts for group in np.unique(part.groups)}))

    def __bool__(self) -> bool:
        return any(len(part.groups) for part in self.parts)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _entries(part: StoredPart, group: int) -> Iterator[bytes]:
    places = np.flatnonzero(part.groups == group)
    if not len(places):
        return
    match part:
        case Numbers(code, _, keys, values):
            yield many(code, keys[places], values[places])
        case Pairs(_, keys, values):
            for place in places.tolist():
                yield pickle.dumps((keys[place], values[place]), 5)
        case Pickles(_, ends, data):
            for place in places.tolist():
                yield bytes(data[ends[place] : ends[place + 1]])
        case Rows():
            yield part.at(places).encoded()


def joined(several: Sequence[Mapping[int, bytes]]) -> Mapping[int, bytes]:
    """The key groups of several tasks; each group belongs to one task only."""
    stored = tuple(groups for groups in several if isinstance(groups, StoredGroups))
    if len(stored) < len(several):
        return {group: data for groups in several for group, data in groups.items()}
    return stored[0] if len(stored) == 1 else StoredGroups(_PartsOfAll(stored))


class _PartsOfAll(Struct, frozen=True):
    groups: tuple[StoredGroups, ...]

    def __iter__(self) -> Iterator[StoredPart]:
        for groups in self.groups:
            yield from groups.parts
