"""Key groups whose keys and values are plain numbers, kept as columns and encoded to bytes on demand.

The bytes of a group are a pickle of ("columns", "i", "i" or "f", keys, values), with keys as 64-bit integers and values
as 64-bit integers or floats, little-endian. A store that keeps columns uses the columns directly.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from backedge.graphs.routing import KEY_GROUPS

COLUMNS = "columns"
Column = npt.NDArray[Any]


def places_of(groups: Column, first: int, last: int) -> tuple[int, int]:
    """Where the entries of these groups, both included, begin and end. `groups` has the group of each, in order.

    >>> places_of(np.array([1, 3, 3, 5], np.uint8), 3, 4)
    (1, 3)
    """
    # If these had another type than the column, numpy would first convert all of the column.
    low, high = np.searchsorted(groups, np.array((first, last + 1), groups.dtype)).tolist()
    return low, high


class Numbers(NamedTuple):
    """Entries ordered by group. `code` is the type of the values: "i" for integers, "f" for floats."""

    code: str
    groups: Column
    keys: Column
    values: Column

    def of(self, first: int, last: int) -> Numbers:
        """The entries of these groups, both included."""
        low, high = places_of(self.groups, first, last)
        return Numbers(self.code, *(column[low:high] for column in self[1:]))


class TypedGroups(Mapping[int, bytes]):
    """Group -> its encoded entries, in the order of the groups.

    >>> groups = TypedGroups((Numbers("i", np.array([3, 3, 5]), np.array([7, 8, 9]), np.array([1, 2, 3])),))
    >>> list(groups), len(pickle.loads(groups[3])[3]) // 8
    ([3, 5], 2)
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: tuple[Numbers, ...]) -> None:
        self.numbers = numbers

    def __getitem__(self, group: int) -> bytes:
        found = b""
        for numbers in self.numbers:
            code, groups, keys, values = numbers.of(group, group)
            if len(groups):
                found += many(code, keys, values)
        if not found:
            raise KeyError(group)
        return found

    def counts(self) -> list[int]:
        """The number of entries of each key group."""
        return self._counts().tolist()

    def _counts(self) -> Column:
        found = np.zeros(KEY_GROUPS, np.int64)
        for part in self.numbers:
            # Counting one by one would hold Python's lock: 15 ms for ten million entries, in which a task stands still.
            starts = np.searchsorted(part.groups, np.arange(KEY_GROUPS + 1, dtype=part.groups.dtype))
            found += np.diff(starts)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._counts()).tolist())

    def __bool__(self) -> bool:
        return any(len(part.keys) for part in self.numbers)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._counts()))


def many(code: str, keys: Column, values: Column) -> bytes:
    """Encode many entries at once."""
    parts = (keys.astype("<i8", copy=False), values.astype(f"<{code}8", copy=False))
    return pickle.dumps((COLUMNS, "i", code, *(part.tobytes() for part in parts)), 5)
