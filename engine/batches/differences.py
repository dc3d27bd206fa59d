"""Compares two lists of records as multisets, by equality, whatever the records are.

Hashable records are equal if they compare equal. Other records are compared by structure: dicts, lists and sets by
their parts, objects without their own equality by type and content, as pickle would see them. NaN equals NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from types import BuiltinFunctionType, EllipsisType, FunctionType, NoneType
from typing import Any, cast

_ONE_OF_EACH = (NoneType, EllipsisType, Enum, type, FunctionType, BuiltinFunctionType)
"""They have no equality of their own and need none, because a copy of one is the same object."""


def differences(expected: Iterable[Any], found: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The missing records, and the surplus ones (unexpected, or too many).

    >>> differences([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 2}])
    ([{'id': 1}], [{'id': 2}])
    """
    waiting: dict[Any, list[Any]] = {}
    for record in expected:
        waiting.setdefault(countable(record), []).append(record)
    surplus: list[Any] = []
    for record in found:
        same = waiting.get(countable(record))
        if same:
            same.pop()
        else:
            surplus.append(record)
    return [record for same in waiting.values() for record in same], surplus


def countable(value: Any) -> Any:
    """A hashable stand-in for a record, equal for equal records.

    >>> countable([1, {"a": {2.0}}]) == countable([True, {"a": {2}}])
    True
    """
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "mapping", frozenset((countable(key), countable(item)) for key, item in items)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return kind, tuple(map(countable, cast("Iterable[Any]", value)))
    if isinstance(value, Set):
        return "set", frozenset(map(countable, cast("Iterable[Any]", value)))
    if isinstance(value, _ONE_OF_EACH):
        return value
    if type(value).__eq__ is object.__eq__ or not _can_be_found(value):
        return _taken_apart(value)
    return value


def _can_be_found(value: Any) -> bool:
    """Whether a dict finds a copy of it: it can be hashed, and is not a NaN of some type."""
    try:
        hash(value)
        return bool(value == value)
    except TypeError:
        return False


def _taken_apart(value: Any) -> Any:
    parts: Any = value.__reduce_ex__(4)
    if isinstance(parts, str):
        # The name of something that exists only once.
        return value
    _, arguments, state, items, pairs, *_ = (*parts, None, None, None)
    return (
        type(value),
        countable(arguments),
        countable(state),
        countable(list(items or ())),
        countable(list(pairs or ())),
    )
