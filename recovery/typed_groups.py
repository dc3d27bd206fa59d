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

COLUMNS = "columns"
Column = npt.NDArray[Any]


class Numbers(NamedTuple):
    """Entries ordered by group. `code` is the type of the values: "i" for integers, "f" for floats."""

    code: str
    groups: Column
    keys: Column
    values: Column


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
        for code, groups, keys, values in self.numbers:
            start, end = np.searchsorted(groups, (group, group + 1))
            if start < end:
                found += many(code, keys[start:end], values[start:end])
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({g for part in self.numbers for g in np.flatnonzero(np.bincount(part.groups)).tolist()}))

    def __bool__(self) -> bool:
        return any(len(part.keys) for part in self.numbers)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def many(code: str, keys: Column, values: Column) -> bytes:
    """Encode many entries at once."""
    parts = (keys.astype("<i8", copy=False), values.astype(f"<{code}8", copy=False))
    return pickle.dumps((COLUMNS, "i", code, *(part.tobytes() for part in parts)), 5)
