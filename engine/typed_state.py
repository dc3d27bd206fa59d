"""Keyed state whose keys and values are plain numbers, encoded as columns: several times faster than entry by entry."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphs.routing import key_groups
from recovery.typed_groups import COLUMNS, Column, Numbers, TypedGroups

_CODES: dict[type, str] = {int: "i", float: "f"}
_FORMS = {"i": "<i8", "f": "<f8"}
_KINDS = {"i": "q", "f": "d"}
PackedKeys = dict[int, Column]
"""The place of an entry among all entries of a state -> the keys from there on, packed: most states keep their keys."""


class TypedEntries:
    """Collects entries as columns, and parts them by key group in the end.

    `known` is looked up before keys are packed, `packed` is where they are kept for the next time.

    >>> typed = TypedEntries()
    >>> typed.add([7, 8], [1, 2]), typed.add(["a"], [1])
    (True, False)
    >>> [numbers.values.tolist() for numbers in typed.groups().numbers]
    [[1, 2]]
    """

    def __init__(self, known: PackedKeys | None = None, packed: PackedKeys | None = None) -> None:
        self._known = known or {}
        self._packed: PackedKeys = {} if packed is None else packed
        self._place = 0
        self._columns: dict[str, tuple[list[Column], list[Column]]] = {}

    def add(self, keys: Sequence[Any], values: Sequence[Any]) -> bool:
        """Take these entries, if all of them have a key and a value that are plain numbers."""
        place, self._place = self._place, self._place + len(keys)
        code = next((code for kind, code in _CODES.items() if _are_all(values, kind)), None)
        if code is None:
            return False
        try:
            known = self._known.get(place)
            if known is None or len(known) != len(keys):
                if not _are_all(keys, int):
                    return False
                known = _column(keys, "i")
            columns = known, _column(values, code)
        except struct.error:
            return False  # a number beyond 64 bits
        self._packed[place] = known
        for column, parts in zip(columns, self._columns.setdefault(code, ([], [])), strict=True):
            parts.append(column)
        return True

    def groups(self) -> TypedGroups:
        """Key group -> its entries."""
        found: list[Numbers] = []
        for code, (key_parts, value_parts) in self._columns.items():
            keys, values = np.concatenate(key_parts), np.concatenate(value_parts)
            # Of single bytes numpy makes a radix sort.
            groups = key_groups(keys).astype(np.uint8)
            order = np.argsort(groups, kind="stable")
            found.append(Numbers(code, groups[order].astype(np.int32), keys[order], values[order]))
        return TypedGroups(tuple(found))


def _are_all(values: Sequence[Any], kind: type) -> bool:
    # A subclass is another type, and comes back as one. To count takes two thirds of what a set of types takes.
    return list(map(type, values)).count(kind) == len(values)


def _column(numbers: Sequence[Any], code: str) -> Column:
    # `struct` takes a list in half the time that `array` takes, and that in a fraction of numpy's.
    packed = struct.pack(f"{len(numbers)}{_KINDS[code]}", *numbers)
    return np.frombuffer(packed, f"{code}8")


def entries_in(loaded: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The entries that one pickle of a key group holds: one, or a chunk of columns."""
    if len(loaded) != 5 or loaded[0] != COLUMNS:
        return [loaded]
    _, key_code, value_code, keys, values = loaded
    key_list = np.frombuffer(keys, _FORMS[key_code]).tolist()
    return list(zip(key_list, np.frombuffer(values, _FORMS[value_code]).tolist(), strict=True))
