"""Converts values and numpy arrays to Arrow arrays and back, if a column can hold the values exactly.

No value is changed by a conversion. If an Arrow array cannot hold the values, the result is None, and their batch
travels as records; if an array of a type cannot, the result is an array of objects. `formats.py` describes what users
see.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns, is_tensor, python_values, to_columns

_TYPES: dict[type[Any], tuple[Any, ...]] = {
    int: ("int64",),
    float: ("float64",),
    bool: ("bool_",),
    str: ("string",),
    bytes: ("binary",),
    date: ("date32",),
    datetime: ("timestamp", "us"),
    timedelta: ("duration", "us"),
    type(None): ("null",),
}
"""Python type -> Arrow type and its arguments. If Arrow inferred the type, it would look for pandas each time."""
_UNITS = {"M": {"D", "s", "ms", "us", "ns"}, "m": {"s", "ms", "us", "ns"}}
_DAYS_MAX = 2**31 - 1
"""Arrow has days of 32 bits, and cuts off others."""
_EXACT = 2**53
"""The largest magnitude up to which a float represents every integer."""


def to_arrow(column: Any) -> Any | None:
    """Convert a column that a user's function has made to an Arrow array; None if that is impossible.

    The array is a copy, because the function may keep what it returned and change it later.

    >>> to_arrow(np.array([1.5, 2.5])).to_pylist(), to_arrow(np.array([1j]))
    ([1.5, 2.5], None)
    """
    if is_arrow(column):
        made = to_columns(arrow().table({"": column}))
        return made.batch.column(0) if isinstance(made, Columns) else None
    if type(column) is np.memmap:
        column = np.asarray(column)
    if type(column) is not np.ndarray:
        # Subclasses may have a meaning of their own, such as the missing values of a masked array.
        return values_to_arrow(list(column))
    array: npt.NDArray[Any] = column
    kind = array.dtype.kind
    if kind in "OUS":
        # Arrow would truncate text at a NUL.
        return values_to_arrow(array.tolist()) if array.ndim == 1 else None
    if kind in _UNITS and (
        np.datetime_data(array.dtype)[0] not in _UNITS[kind] or np.datetime_data(array.dtype)[1] > 1
    ):
        return None
    if kind not in "biufMm" or array.dtype.itemsize > 8:
        return None
    own = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if own.dtype == "M8[D]" and (np.abs(own[~np.isnat(own)].view(np.int64)) > _DAYS_MAX).any():
        return None
    if own.ndim == 1:
        return arrow().array(own)
    return arrow().FixedShapeTensorArray.from_numpy_ndarray(own) if own.size and kind in "iuf" else None


def is_arrow(column: Any) -> bool:
    return isinstance(column, arrow().Array | arrow().ChunkedArray)


def values_to_arrow(values: list[Any]) -> Any | None:
    """Convert values of one type (or lists of one type) and None to an Arrow array; None if there are other values.

    >>> values_to_arrow(["a", None]).to_pylist(), values_to_arrow([1, 2.5])
    (['a', None], None)
    """
    kinds, leaves, depth = _kinds(values), values, 0
    while kinds == {list}:
        leaves = list(chain.from_iterable(leaf for leaf in leaves if leaf is not None))
        kinds, depth = _kinds(leaves), depth + 1
    kind, *others = kinds or {type(None)}
    if others or kind not in _TYPES:
        return None
    if kind is datetime and any(leaf.tzinfo is not None or leaf.fold for leaf in leaves if leaf is not None):
        return None
    name, *arguments = _TYPES[kind]
    arrow_type = getattr(arrow(), name)(*arguments)
    for _ in range(depth):
        arrow_type = arrow().list_(arrow_type)
    try:
        found = arrow().array(values, arrow_type)
    except (ValueError, TypeError, OverflowError):
        # Numbers, times or characters without an Arrow type.
        return None
    # Several arrays: one holds 2 GiB of text or bytes.
    return None if isinstance(found, arrow().ChunkedArray) else found


def rows_to_arrow(values: list[Any]) -> Any | None:
    """Convert rows that are arrays of numbers, alike in type and shape, to an Arrow tensor; None for other values.

    >>> rows_to_arrow([np.array([1, 2]), np.array([3, 4])]).to_numpy_ndarray().tolist(), rows_to_arrow([1, 2])
    ([[1, 2], [3, 4]], None)
    """
    if not values or set(map(type, values)) != {np.ndarray} or len({(row.dtype, row.shape) for row in values}) > 1:
        return None
    stacked = np.stack(values)
    return to_arrow(stacked) if stacked.ndim > 1 else None


RowTypes = tuple[str | None, ...]


def row_types(columns: Columns) -> RowTypes | None:
    """The types with which `from_rows` makes the same columns of their records; None for a tensor.

    None if no columns can be made of them again.

    >>> row_types(Columns(arrow().record_batch({"x": arrow().array([0.5], "float"), "n": [1]})))
    ('float', 'int64')
    """
    arrays = columns.batch.columns
    if not all(_has_row_type(column.type) for column in arrays):
        return None
    for column in arrays:
        if arrow().types.is_temporal(column.type):
            # Python has no times after the year 9999: refuse them now, and not in a cut.
            python_values(column)
    return tuple(None if is_tensor(column.type) else str(column.type) for column in arrays)


def from_rows(records: list[dict[str, Any]], types: RowTypes) -> Columns:
    arrays: list[Any] = []
    for name, kind in zip(records[0], types, strict=True):
        values = [record[name] for record in records]
        arrays.append(rows_to_arrow(values) if kind is None else arrow().array(values, arrow().type_for_alias(kind)))
    return Columns(arrow().RecordBatch.from_arrays(arrays, list(records[0])))


@cache
def _has_row_type(kind: Any) -> bool:
    types = arrow().types
    if is_tensor(kind):
        # Names and another order of the dimensions would be lost, and so would rows without values.
        is_plain = kind.dim_names is None and kind.permutation == list(range(len(kind.shape)))
        return (
            is_plain and all(kind.shape) and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))
        )
    if types.is_temporal(kind) and getattr(kind, "unit", "") == "ns":
        return False
    try:
        return arrow().type_for_alias(str(kind)) == kind
    except ValueError:
        return False


def _kinds(values: list[Any]) -> set[type[Any]]:
    return set(map(type, values)) - {type(None)}


def to_array(column: Any) -> npt.NDArray[Any]:
    """Convert an Arrow array to numpy. The result may share its memory, and is then not writable.

    >>> to_array(arrow().array([1, 2])), to_array(arrow().array([1, None]))
    (array([1, 2]), array([1, None], dtype=object))
    """
    kind, types = column.type, arrow().types
    if is_tensor(kind):
        return column.to_numpy_ndarray()
    if types.is_timestamp(kind) or types.is_duration(kind):
        # No object of Python holds nanoseconds, so a missing time is NaT among them.
        has_type = kind.unit == "ns" or not column.null_count
        has_type &= types.is_duration(kind) or kind.tz is None
    else:
        has_type = not column.null_count and any(getattr(types, f"is_{name}")(kind) for name in _SIMPLE)
    return column.to_numpy(zero_copy_only=False) if has_type else _objects(python_values(column))


_SIMPLE = "integer", "floating", "boolean", "string", "large_string", "binary", "large_binary", "date32"
"""The types of columns whose values NumPy has, unless one is missing."""


def values_to_array(values: list[Any]) -> npt.NDArray[Any]:
    """Convert values to an array of their type if all have one, otherwise to an array of objects.

    An integer is the same as a float if that holds it exactly, as keys are, too.

    >>> values_to_array([1, 2.5]), values_to_array([2**60 + 1, 2.5]), values_to_array([1, "1"])
    (array([1. , 2.5]), array([1152921504606846977, 2.5], dtype=object), array([1, '1'], dtype=object))
    """
    column = values_to_arrow(values)
    if column is not None:
        return to_array(column)
    kinds = set(map(type, values))
    if kinds == {int, float}:
        is_exact = all(abs(value) <= _EXACT for value in values if type(value) is int)
        return np.array(values) if is_exact else _objects(values)
    if kinds == {complex}:
        return np.array(values)
    kind = kinds.pop()
    if kinds or not (kind is np.ndarray or issubclass(kind, np.number | np.bool_ | np.datetime64 | np.timedelta64)):
        return _objects(values)
    arrays = cast("list[npt.NDArray[Any]]", values)
    first = arrays[0]
    is_number = first.dtype.kind in "biufcmM" and (kind is not np.ndarray or first.ndim > 0)
    is_alike = is_number and all(array.dtype == first.dtype and array.shape == first.shape for array in arrays)
    return np.stack(arrays) if is_alike else _objects(values)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    return np.fromiter(values, np.object_, len(values))


def comes_back(value: Any, found: Any) -> bool:
    """Whether a value is the same after it was in an Arrow array. Scalars of NumPy become objects of Python.

    >>> comes_back(1, 1.0), comes_back((1,), [1]), comes_back({"a": [1]}, {"a": [1], "b": None})
    (True, False, False)
    """
    if issubclass(cast("type[Any]", type(value)), np.generic):
        value = value.item()
    kinds = cast("set[type[Any]]", {type(value), type(found)})
    if len(kinds) > 1:
        return kinds == {int, float} and value == found
    if kinds == {list}:
        return len(value) == len(found) and all(map(comes_back, value, found))
    if kinds == {dict}:
        return value.keys() == found.keys() and all(comes_back(part, found[key]) for key, part in value.items())
    if kinds <= {datetime, time} and (value.utcoffset() != found.utcoffset() or value.fold != found.fold):
        return False
    return bool(value == found) or bool(value != value and found != found)
