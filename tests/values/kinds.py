"""Every kind of value that a record may have, and what is the same as what went in."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta, timezone
from enum import Enum
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns, as_records, to_columns


class Color(Enum):
    RED = 1


def _near(*numbers: int) -> st.SearchStrategy[int]:
    return st.sampled_from([sign * number + by for number, sign, by in product(numbers, (1, -1), (-1, 0, 1))])


INTEGERS = st.one_of(st.integers(-9, 9), _near(2**24, 2**31, 2**53, 2**63, 2**64), st.integers())
FLOATS = st.one_of(st.floats(), st.sampled_from([0.1, 1e300, 2.0**53, 2.0**63]))
TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["a\0", "\0", "1", "None", "\ud800"]))
TIMES = st.datetimes(allow_imaginary=True) | st.builds(lambda at: at.replace(fold=1), st.datetimes())
PYTHON: dict[str, st.SearchStrategy[Any]] = {
    "None": st.none(),
    "bool": st.booleans(),
    "int": INTEGERS,
    "float": FLOATS,
    "complex": st.complex_numbers(),
    "str": TEXTS,
    "bytes": st.binary(max_size=3) | st.just(b"a\0"),
    "date": st.dates(),
    "datetime": TIMES,
    "datetime with a zone": st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])),
    "time": st.times() | st.times(timezones=st.just(UTC)),
    "timedelta": st.timedeltas(),
    "Decimal": st.decimals(allow_nan=False),
    "Fraction": st.fractions(),
    "UUID": st.uuids(),
    "Enum": st.just(Color.RED),
    "tuple": st.tuples(INTEGERS, TEXTS),
    "list": st.lists(INTEGERS, max_size=2) | st.lists(TEXTS | st.none(), max_size=2),
    "list of lists": st.lists(st.lists(FLOATS, max_size=2), max_size=2),
    "dict": st.dictionaries(st.sampled_from("ab"), INTEGERS | TEXTS, max_size=2),
    "set": st.frozensets(st.integers(), max_size=2) | st.sets(st.integers(), max_size=2),
}
_TYPES = ["?", "i1", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "g", "c8", "M8[D]", "M8[s]", "M8[ns]", "m8[us]"]


def _numbers(kind: str) -> st.SearchStrategy[Any]:
    """Numbers of a type of NumPy, near its ends, too."""
    of_type = np.dtype(kind)
    if of_type.kind in "iu":
        ends = np.iinfo(of_type)
        return st.sampled_from([ends.min, 0, 1, ends.max])
    if of_type.kind in "Mm":
        return st.sampled_from([-1, 0, 1, 1_000])
    return st.sampled_from([0, 1]) if of_type.kind == "b" else st.sampled_from([0.0, 0.1, -1.5, math.inf, math.nan])


NUMPY: dict[str, st.SearchStrategy[Any]] = {
    f"numpy {kind}": _numbers(kind).map(lambda n, kind=kind: np.array([n]).astype(kind)[0]) for kind in _TYPES
} | {
    f"array {kind} {shape}": st.lists(_numbers(kind), min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda numbers, kind=kind, shape=shape: np.array(numbers).astype(kind).reshape(shape)
    )
    for kind, shape in product(["i4", "f4", "f8", "?"], [(2,), (1, 2), (0,)])
}
VALUES = PYTHON | NUMPY

COLUMNS_OF_VALUES = st.one_of(
    *(st.lists(values, min_size=1, max_size=4) for values in VALUES.values()),
    *(st.lists(values | st.none(), min_size=1, max_size=4) for values in VALUES.values()),
    st.lists(INTEGERS | FLOATS, min_size=1, max_size=4),
    st.lists(st.one_of(*VALUES.values()), min_size=1, max_size=4),
)
"""A column of one kind, of one kind and None, of numbers, or of anything."""

NUMBERS = st.one_of(
    st.lists(INTEGERS, min_size=1, max_size=3),
    st.lists(FLOATS, min_size=1, max_size=3),
    st.lists(INTEGERS | FLOATS, min_size=1, max_size=3),
    *(
        st.lists(_numbers(kind), min_size=1, max_size=3).map(lambda n, kind=kind: [*np.array(n, kind)])
        for kind in _TYPES[:9]
    ),
)
"""Columns of numbers."""

VERTICES = st.lists(_near(2**24, 2**53, 2**60) | st.integers(0, 9), min_size=2, max_size=4, unique=True)
"""Numbers of vertices."""

ARROW_TYPES = [
    *("int8", "int32", "int64", "uint64", "halffloat", "float", "double", "bool", "string", "large_string", "binary"),
    *("date32", "date64", "time32[s]", "time64[us]", "timestamp[s]", "timestamp[us]", "timestamp[ns]", "duration[ms]"),
    "null",
]


def _arrow_column(kind: str) -> st.SearchStrategy[Any]:
    numbers = st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=4)
    if kind == "null":
        return numbers.map(lambda numbers: arrow().nulls(len(numbers)))
    if kind == "bool":
        return numbers.map(lambda numbers: arrow().array([n if n is None else n > 50 for n in numbers]))
    way = {"binary": ["string"], "date32": ["int32"], "time32[s]": ["int32"]}.get(kind, [])
    if kind == "date64":
        way = ["int32", "date32"]
    step = 500 if kind == "timestamp[ns]" else 1
    return numbers.map(lambda numbers: _cast(arrow().array(_times(numbers, step), "int64"), [*way, kind]))


def _times(numbers: list[Any], step: int) -> list[Any]:
    return [None if number is None else number * step for number in numbers]


def _cast(column: Any, kinds: list[str]) -> Any:
    for kind in kinds:
        column = column.cast(kind)
    return column


ARROW = st.one_of(
    *map(_arrow_column, ARROW_TYPES),
    st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2), min_size=1, max_size=3).map(
        lambda lists: arrow().array(lists, arrow().list_(arrow().int32()))
    ),
    st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=3).map(
        lambda numbers: arrow().array([None if n is None else {"a": n} for n in numbers], arrow().struct({"a": "int8"}))
    ),
    st.lists(st.sampled_from("ab"), min_size=1).map(lambda texts: arrow().array(texts).dictionary_encode()),
    st.integers(1, 3).map(
        lambda n: arrow().FixedShapeTensorArray.from_numpy_ndarray(np.arange(2 * n, dtype="f4").reshape(n, 2))
    ),
    st.lists(st.decimals(0, 9, places=2), min_size=1, max_size=3).map(
        lambda numbers: arrow().array(numbers, arrow().decimal128(5, 2))
    ),
    st.lists(st.datetimes(), min_size=1, max_size=3).map(
        lambda times: arrow().array(times, arrow().timestamp("us", "UTC"))
    ),
)
"""Columns of Arrow."""


def rows(values: list[Any]) -> list[Any]:
    """A record for each value."""
    return [{"n": number, "v": value} for number, value in enumerate(values)]


def table(column: Any) -> Any:
    """The same of a column of Arrow."""
    return arrow().table({"n": range(len(column)), "v": column})


def values_in(records: Any) -> list[Any]:
    """The values of records that may have changed their order."""
    return [row["v"] for row in sorted(as_records(records), key=lambda row: row["n"])]


def given_as_columns(column: Any) -> Columns | list[Any]:
    """A table as a source reads it."""
    return to_columns(table(column))


def same(value: Any, found: Any) -> bool:
    """Whether a value came through: of its type, except that a scalar of NumPy may be one of Python.

    An integer among floats may be the float that is equal.
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value)) if found is None else bool(type(value)(found) == value)
    value, found = (one.item() if isinstance(one, np.generic) else one for one in (value, found))
    if isinstance(value, np.ndarray):
        is_alike = isinstance(found, np.ndarray) and (value.dtype, value.shape) == (found.dtype, found.shape)
        return is_alike and all(map(same, value.ravel().tolist(), found.ravel().tolist()))
    if {type(value), type(found)} == {int, float}:
        return value == found
    if type(value) is not type(found):
        return False
    if isinstance(value, list | tuple):
        return len(value) == len(found) and all(map(same, value, found))
    if isinstance(value, dict):
        return value.keys() == found.keys() and all(same(part, found[key]) for key, part in value.items())
    if isinstance(value, datetime | time):
        return value == found and (value.utcoffset(), value.fold) == (found.utcoffset(), found.fold)
    return value == found or repr(value) == repr(found)
