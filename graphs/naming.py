"""Checks names and chooses default ones.

State, logs and output are filed under names, in folders that other programs read, so a name must be a valid folder
name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container
from itertools import count
from typing import Any

from backedge.graphs.graph_errors import BadNameError

NAME_BYTES_MAX = 150
_FORBIDDEN = frozenset("/\\=:%*?\"'<>|#{}")


def check_name(name: object, what: str) -> str:
    """Return the name if it is usable as a folder name, on every system and as a table partition; else raise.

    >>> check_name("rank", "operator")
    'rank'
    >>> check_name("../rank", "operator")
    Traceback (most recent call last):
    backedge.BadNameError: operator name '../rank' holds '/': use letters, digits, '-', '_', '.' and spaces
    """
    if not isinstance(name, str):
        raise BadNameError(f"{what} name {name!r} is of type {type(name).__name__}: give a string")
    fault = name_fault(name)
    if fault is not None:
        raise BadNameError(f"{what} name {name!r} {fault}: use letters, digits, '-', '_', '.' and spaces")
    return name


def name_fault(name: str) -> str | None:
    """The reason why a name is not usable as a folder name, or None.

    >>> name_fault("a/b"), name_fault("a-b")
    ("holds '/'", None)
    """
    if not name:
        return "is empty"
    for character in name:
        if character in _FORBIDDEN:
            return f"holds {character!r}"
        # Cc: control characters, NUL among them. Cf, Cs, Zl, Zp: what a reader cannot see or a file system cannot hold.
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            return f"holds the invisible character {character!r}"
    if ".." in name:
        return "holds '..'"
    if name[0] in ". " or name[-1] in ". ":
        return "starts or ends with a dot or a space"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"is longer than {NAME_BYTES_MAX} bytes"
    return None


def automatic_name(base: str, taken: Container[str], given: dict[str, int]) -> str:
    """The first of base-1, base-2, ... that is free. `given`: base -> the last number that was given, to go on from.

    >>> automatic_name("map", {"map-1"}, given := {}), given
    ('map-2', {'map': 2})
    """
    number = next(number for number in count(given.get(base, 0) + 1) if f"{base}-{number}" not in taken)
    given[base] = number
    return f"{base}-{number}"


def numbered(base: str, taken: Container[str]) -> str:
    """The first of base, base#2, base#3, ... that is free."""
    return base if base not in taken else next(n for n in (f"{base}#{number}" for number in count(2)) if n not in taken)


def function_name(function: Any) -> str | None:
    """The name of a function or class; None for a lambda, a partial or an instance.

    >>> function_name(len), function_name(lambda: 0)
    ('len', None)
    """
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None
