"""Checks once per class that pickled values can be unpickled; otherwise only a restore would notice.

An exception whose `__init__` takes two arguments can be pickled, but not unpickled. Unpickling everything would double
the cost of a capture. This file only looks at the classes and functions that a pickle names, which is cheap, and
unpickles it if one of them is new to this process. Values of builtin types name none.

The pickler writes a name as SHORT_BINUNICODE (an opcode, its length, its bytes), MEMOIZE and STACK_GLOBAL. If the name
was written before, for example as the key of a dict, the pickler writes a reference instead, which is not detected
here.
"""

from __future__ import annotations

import pickle
from typing import Any, cast

STACK_GLOBAL = b"\x93"
"""A pickle without this byte names no class or function."""

_MEMOIZE = 0x94
_NAME_END = b"\x94" + STACK_GLOBAL
_TEXT = b"\x8c"
_NAME_BYTES_MAX = 255
# These two bytes may also occur in numbers and texts; pickles that are full of them are not searched to the end.
_LOOKED_AT_MAX = 64

_readable: set[bytes] = set()
"""The names that occurred in pickles which this process has unpickled."""


def check_reads_back(payload: bytes) -> None:
    """Unpickle a payload if it contains a name that no earlier one did; raises what that raises.

    >>> check_reads_back(pickle.dumps([1 + 2j, 147], 5))
    """
    if STACK_GLOBAL not in payload:
        return
    names = _names_in(payload)
    if not _readable.issuperset(names):
        pickle.loads(payload)
        _readable.update(names)


def unreadable_class(value: Any) -> str:
    """The class of the innermost part of a value that cannot be unpickled; empty if all of it can.

    >>> unreadable_class([1, {"a": 2}])
    ''
    """
    try:
        pickle.loads(pickle.dumps(value, 5))
    except Exception:  # noqa: BLE001  # whether it raises is the question
        for part in _parts(value):
            if inner := unreadable_class(part):
                return inner
        kind = cast("type[Any]", type(value))
        return f"{kind.__module__}.{kind.__qualname__}"
    return ""


def _parts(value: Any) -> list[Any]:
    parts: Any = value
    if isinstance(value, dict):
        return [*parts, *parts.values()]
    return list(parts) if isinstance(value, list | tuple | set | frozenset) else []


def _names_in(payload: bytes) -> set[bytes]:
    names: set[bytes] = set()
    at = payload.find(_NAME_END)
    for _ in range(_LOOKED_AT_MAX):
        if at < 0:
            break
        start = _text_before(payload, at)
        if start is not None:
            # The module precedes the name, unless it is a reference to an earlier occurrence.
            module = _text_before(payload, start - 1) if payload[start - 1] == _MEMOIZE else None
            names.add(payload[start if module is None else module : at])
        at = payload.find(_NAME_END, at + 1)
    return names


def _text_before(payload: bytes, end: int) -> int | None:
    """The start of the short text that ends here; None if there is none."""
    start = payload.rfind(_TEXT, max(0, end - _NAME_BYTES_MAX - 2), end)
    return start if start >= 0 and payload[start + 1] == end - start - 2 else None
