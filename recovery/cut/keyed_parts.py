"""Keyed state as parts: numbers and other plain entries in columns, pickled entries, and rows of a table.

The parts are the same on the way from a capture to files and on the way back to a restore or a compaction: nothing is
pickled or unpickled in between. What an operator keeps by key in one task is any iterable of parts. One that reads
files reads them again each time, and one file at a time.

The entries of a part that a capture has made are in the order of their key groups, so those of some groups are a slice.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Kind = Literal["value", "timer", "gone"]
"""What an entry is: (key, value), (key, at_ms, hops), or (key,) for a key that has no value any more."""

ITEMS: Mapping[str, int] = {"value": 2, "timer": 3, "gone": 1}
"""The number of items in an entry of each kind."""


class Numbers(NamedTuple):
    """Integers with numbers. `code` is the type of the values: "i" for integers, "f" for floats."""

    code: str
    groups: Column
    keys: Column
    values: Column


class Pairs(NamedTuple):
    """Other plain entries: all keys are integers or all are texts, and all values are of one type of `PLAIN_VALUES`."""

    groups: Column
    keys: Column | list[str]
    values: list[Any]


PLAIN_KEYS = frozenset[type[Any]]((int, str))
PLAIN_VALUES = frozenset[type[Any]]((int, float, str, bytes))


class Data(Protocol):
    """Bytes in memory, or in a file that they are read from."""

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class Pickles(NamedTuple):
    """Entries of one kind, each pickled on its own: entry `i` is in `data`, from `starts[i]` to `starts[i + 1]`.

    `keys` and `times` are what columns show beside a pickle, None where that is not plain: a store knows them without
    reading it. If all keys are integers, they are in a column. A part from a store has neither.
    """

    kind: Kind
    groups: Column
    starts: Column
    data: Data
    keys: Column | list[Any] | None = None
    times: list[Any] | None = None

    @property
    def stretch(self) -> bytes | memoryview:
        """The pickles, one behind the other."""
        return self.data[int(self.starts[0]) : int(self.starts[-1])]

    def each(self) -> Iterator[memoryview]:
        """The pickle of each entry."""
        data, starts = memoryview(self.stretch), (self.starts - self.starts[0]).tolist()
        return (data[start:end] for start, end in pairwise(starts))


class Rows(NamedTuple):
    """Some rows of a table. Texts are in arrays of objects."""

    groups: Column
    keys: Mapping[str, Column]
    values: Mapping[str, Column]

    def at(self, places: Any) -> Rows:
        keys, values = ({name: column[places] for name, column in part.items()} for part in self[1:])
        return Rows(self.groups[places], keys, values)

    def entries(self) -> list[tuple[Any, Any]]:
        """Each key with its values by name. The key is a tuple if it has several parts.

        >>> Rows(np.array([3]), {"id": np.array([7])}, {"sum": np.array([2.5])}).entries()
        [(7, {'sum': 2.5})]
        """
        keys, values = ([column.tolist() for column in part.values()] for part in self[1:])
        records = [dict(zip(self.values, row, strict=True)) for row in zip(*values, strict=True)]
        return list(zip(keys[0] if len(keys) == 1 else zip(*keys, strict=True), records, strict=True))


KeyedPart = Numbers | Pairs | Pickles | Rows


_INT_MAX, _INT_MIN = (1 << 63) - 1, -(1 << 63)


def fits(value: Any) -> bool:
    """Whether a typed column can hold this int, float or text: at most 64 bits, and no half of a surrogate pair."""
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_plain(key: Any) -> bool:
    """Whether a key, or a time, is shown in a column.

    >>> is_plain(7), is_plain("a"), is_plain(True), is_plain(1 << 63)
    (True, True, False, False)
    """
    return type(key) in PLAIN_KEYS and fits(key)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, of which there is at least one."""
    first = parts[0]
    return Rows(
        np.concatenate([part.groups for part in parts]),
        {name: np.concatenate([part.keys[name] for part in parts]) for name in first.keys},
        {name: np.concatenate([part.values[name] for part in parts]) for name in first.values},
    )


def in_groups(parts: Iterable[KeyedPart], first: int, last: int) -> Iterator[KeyedPart]:
    """What captured parts hold of these key groups, both included. Only keys and values are copied, and no bytes.

    >>> part = Pairs(np.array([1, 3, 3, 5], np.uint8), ["a", "b", "c", "d"], [1, 2, 3, 4])
    >>> [found.keys for found in in_groups([part], 3, 4)], list(in_groups([part], 6, 9))
    ([['b', 'c']], [])
    """
    for part in parts:
        groups = part.groups
        if not len(groups) or groups[0] > last or groups[-1] < first:
            continue
        if first <= groups[0] and groups[-1] <= last:
            yield part
            continue
        # If these had another type than the column, numpy would first convert all of the column.
        low, high = np.searchsorted(groups, np.array((first, last + 1), groups.dtype)).tolist()
        if low < high:
            yield _between(part, low, high)


def _between(part: KeyedPart, low: int, high: int) -> KeyedPart:
    match part:
        case Numbers(code):
            return Numbers(code, *(column[low:high] for column in part[1:]))
        case Pairs(groups, keys, values):
            return Pairs(groups[low:high], keys[low:high], values[low:high])
        case Rows():
            return part.at(slice(low, high))
        case Pickles(kind, groups, starts, data, keys, times):
            keys, times = None if keys is None else keys[low:high], None if times is None else times[low:high]
            return Pickles(kind, groups[low:high], starts[low : high + 1], data, keys, times)


def entries_of(parts: Iterable[KeyedPart]) -> list[tuple[Any, ...]]:
    """All entries of some parts, as tuples.

    >>> entries_of([Pairs(np.array([3]), ["a"], [1]), Numbers("i", np.array([5]), np.array([7]), np.array([2]))])
    [('a', 1), (7, 2)]
    """
    return list(chain.from_iterable(map(entries_in, parts)))


def entries_in(part: KeyedPart) -> Iterable[tuple[Any, ...]]:
    """The entries of a part, as tuples."""
    match part:
        case Numbers(_, _, keys, values):
            return zip(keys.tolist(), values.tolist(), strict=True)
        case Pairs(_, keys, values):
            return zip(keys if isinstance(keys, list) else keys.tolist(), values, strict=True)
        case Rows():
            return part.entries()
        case Pickles():
            return map(pickle.loads, part.each())
