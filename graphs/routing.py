"""Maps a key to the task that keeps its state: key -> one of 128 key groups -> task.

The group of a key is the same in every process and run, for a record's value and for the same value in a column. Keys
that are equal in Python share a group: 1, 1.0, True and numpy's 1 are one key, as in a dict. NaN is one key too, alone
and in tuples, as in Spark, although in Python it differs from itself: `canonical_key` makes it a single object. Keys of
other types than these are in `other_keys.py`.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backedge.graphs.graph_errors import UnkeyableError
from backedge.graphs.public import public

_GROUP_BITS = 7
KEY_GROUPS = 1 << _GROUP_BITS
_WORD = (1 << 64) - 1
# 2**64 divided by the golden ratio, made odd: its multiples spread evenly over the 64-bit words (Knuth, volume 3, 6.4).
_SPREAD = 0x9E3779B97F4A7C15
_SPREAD_INVERSE = pow(_SPREAD, -1, 1 << 64)
_SHIFT = 64 - _GROUP_BITS
_NONE = 0x6E6F6E65
_NAN = 0x6E616E
_EXACT = 2.0**62
_BLOCK = 16_384


def key_group(key: Any) -> int:
    """The key group of one key.

    >>> key_group("alice"), key_group(7) == key_group(7.0)
    (51, True)
    """
    return key_word(key) >> _SHIFT


def key_word(key: Any) -> int:
    """A 64-bit word for a key, equal for equal keys. Its upper bits are the key group.

    >>> key_word("alice") >> 57 == key_group("alice")
    True
    """
    return (_code(key) * _SPREAD) & _WORD


def key_in_group(group: int, number: int = 0) -> int:
    """An integer of this key group, to address the group itself: each has 2**57, numbered from 0.

    >>> [key_group(key_in_group(group, 5)) for group in (0, 64, 127)], key_in_group(3) == key_in_group(3, 1)
    ([0, 64, 127], False)
    """
    word = ((group << _SHIFT | number) * _SPREAD_INVERSE) & _WORD
    return word - (word >> 63 << 64)


def key_groups(keys: npt.NDArray[Any] | Iterable[Any]) -> npt.NDArray[np.int64]:
    """The key groups of a column of keys.

    >>> key_groups(np.array([7, 8])).tolist() == [key_group(7), key_group(8)]
    True
    """
    return small_key_groups(keys).astype(np.int64)


def small_key_groups(keys: npt.NDArray[Any] | Iterable[Any]) -> npt.NDArray[np.uint8]:
    """The same in one byte each, which is compared and sorted several times as fast."""
    if isinstance(keys, np.ndarray):
        array = cast(npt.NDArray[Any], keys)
        if array.dtype.kind in "iub":
            return _groups(array.view(np.uint64) if array.dtype == np.int64 else array.astype(np.uint64))
        if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            return _groups_of_floats(array.astype(np.float64))
        if array.dtype.kind not in "OUS":
            raise _unkeyable(array.dtype)
        keys = cast(list[Any], array.tolist())
    # Columns repeat keys, so each distinct key is hashed once.
    values = list(keys)
    groups = {key: key_group(key) for key in set(values)}
    return np.fromiter((groups[key] for key in values), np.uint8, len(values))


Part = npt.NDArray[Any] | tuple[list[Any], npt.NDArray[np.integer[Any]]]
"""A column, or its distinct values and the position of each row's value among them."""


def groups_of_keys(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """The key groups of keys whose parts are these columns; one part alone is a plain key.

    >>> columns = [np.array(["a", "b"], object), np.array([1, -2])]
    >>> groups_of_keys(columns).tolist() == [key_group(("a", 1)), key_group(("b", -2))]
    True
    """
    return small_key_groups(parts[0]) if len(parts) == 1 else _groups_of_tuples(parts)


def _groups_of_tuples(parts: Sequence[Part]) -> npt.NDArray[np.uint8]:
    codes = np.uint64(len(parts))
    for part in parts:
        codes = (codes ^ _codes(part)) * np.uint64(_SPREAD)
        codes ^= codes >> np.uint64(32)
    return _groups(cast(Any, codes))


def _codes(part: Part) -> npt.NDArray[np.uint64]:
    if isinstance(part, tuple):
        distinct, positions = part
        return np.array([_code(value) for value in distinct], np.uint64)[positions]
    if part.dtype.kind in "iub":
        return part.astype(np.uint64)
    values = cast(list[Any], part.tolist())
    codes = {value: _code(value) for value in set(values)}
    return np.fromiter((codes[value] for value in values), np.uint64, len(values))


NEVER_NAN = frozenset({int, str, bool, bytes, type(None)})
"""Types of keys that are canonical as they are."""
_known_types: set[type[Any]] = {*NEVER_NAN}
"""Types of which each value is known to be a key."""


def canonical_key(key: Any) -> Any:
    """The key itself, with each NaN replaced by `math.nan`, so that it can be found in a dict. Raises if it is no key.

    >>> canonical_key(float("nan")) is math.nan, canonical_key((1, ("a", float("nan")))) == (1, ("a", math.nan))
    (True, True)
    """
    if isinstance(key, tuple):
        parts = cast(tuple[Any, ...], key)
        if not any(type(part) not in NEVER_NAN and canonical_key(part) is not part for part in parts):
            return parts
        found = tuple(map(canonical_key, parts))
        return cast(Any, type(parts))._make(found) if hasattr(parts, "_make") else found
    if isinstance(key, float | np.floating):
        return math.nan if math.isnan(cast(float, key)) else cast(Any, key)
    if type(key) not in _known_types:
        hash(key)
        _code(key)
        # A decimal may be NaN, and then it is no key.
        if not hasattr(key, "is_nan"):
            _known_types.add(cast("type[Any]", type(key)))
    return key


def task_of_group(group: int, parallelism: int) -> int:
    """The index of the task that keeps a key group.

    >>> [task_of_group(group, 2) for group in (0, 63, 64, 127)]
    [0, 0, 1, 1]
    """
    return group * parallelism // KEY_GROUPS


@public
def tasks_of_keys(keys: npt.NDArray[Any] | Iterable[Any], parallelism: int) -> npt.NDArray[np.int64]:
    """The index of the task to which `key_by` sends each key of a column.

    >>> tasks_of_keys(np.array([7, 8]), 2).tolist() == [task_of_group(key_group(key), 2) for key in (7, 8)]
    True
    """
    return small_tasks_of_keys(keys, parallelism).astype(np.int64)


def small_tasks_of_keys(keys: npt.NDArray[Any] | Iterable[Any], parallelism: int) -> npt.NDArray[np.unsignedinteger]:
    """The same in as few bytes as they need."""
    return _tasks(small_key_groups(keys), parallelism)


def small_tasks_of_tuples(parts: Sequence[Part], parallelism: int) -> npt.NDArray[np.unsignedinteger]:
    """The same for keys that are tuples with these parts."""
    return _tasks(_groups_of_tuples(parts), parallelism)


def groups_of_task(index: int, parallelism: int) -> range:
    """The key groups that a task keeps.

    >>> groups_of_task(1, 3)
    range(43, 86)
    """
    return range(-(-index * KEY_GROUPS // parallelism), -(-(index + 1) * KEY_GROUPS // parallelism))


def _code(key: Any) -> int:
    """A 64-bit word for a key, equal for equal keys."""
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, int):
        return key & _WORD
    if isinstance(key, float):
        return _code_of_float(key)
    # To NumPy, a duration is an integer: of any unit, so equal ones would have different codes.
    if isinstance(key, np.integer | np.bool_) and not isinstance(key, np.timedelta64):
        return int(cast(Any, key)) & _WORD
    if isinstance(key, np.floating):
        return _code_of_float(float(cast(Any, key)))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if key is None:
        return _NONE
    if isinstance(key, tuple):
        parts = cast(tuple[Any, ...], key)
        code = len(parts)
        for part in parts:
            # The shift mixes the upper bits into the lower ones, so that the order of the parts affects all bits.
            code = ((code ^ _code(part)) * _SPREAD) & _WORD
            code ^= code >> 32
        return code
    from backedge.graphs.other_keys import (
        code_of,  # rarely needed, and what it imports delays the first record of a run
    )

    found = code_of(key)
    if found is None:
        raise _unkeyable(type(key))
    return _code(found)


def _code_of_float(key: float) -> int:
    if key.is_integer():
        return int(key) & _WORD
    if math.isnan(key):
        return _NAN
    return struct.unpack("<Q", struct.pack("<d", key))[0]


def _groups(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    groups = np.empty(len(codes), np.uint8)
    # Block by block, so that what is computed on the way stays in the processor's cache.
    for start in range(0, len(codes), _BLOCK):
        block = codes[start : start + _BLOCK] * np.uint64(_SPREAD)
        block >>= np.uint64(_SHIFT)
        groups[start : start + _BLOCK] = block
    return groups


def _tasks(groups: npt.NDArray[np.uint8], parallelism: int) -> npt.NDArray[np.unsignedinteger]:
    """The tasks that keep these groups."""
    products = groups.astype(np.min_scalar_type((KEY_GROUPS - 1) * parallelism))
    products *= products.dtype.type(parallelism)
    products >>= products.dtype.type(_GROUP_BITS)
    return products.astype(np.min_scalar_type(parallelism), copy=False)


def _groups_of_floats(keys: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    # Values that do not fit a 64-bit integer, and NaN, are rare and handled one by one.
    odd = ~(np.abs(keys) < _EXACT)
    plain = np.where(odd, 0.0, keys)
    whole = np.trunc(plain) == plain
    codes = np.where(whole, plain.astype(np.int64).view(np.uint64), plain.view(np.uint64))
    groups = _groups(codes)
    if odd.any():
        groups[odd] = [key_group(key) for key in keys[odd].tolist()]
    return groups


def _unkeyable(kind: Any) -> UnkeyableError:
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return UnkeyableError(
        f"a key of type {name} has no hash that is the same in every process: "
        "use numbers, text, bytes, dates, UUIDs, members of enums, None or a tuple of these, for example str(key)"
    )
