"""Converts numpy arrays to Arrow arrays and back, if a column can hold their values exactly.

No value is changed by the conversion. An array that would be changed is not converted (the result is None), and its
batch travels as records. `formats.py` describes what users see.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.columns import Columns, is_tensor
from engine.files.arrow import arrow

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
_SURVIVING = {"int64", "double", "bool", "string", "binary"}
_EXACT = 2**53
"""The largest magnitude up to which a float represents every integer."""


def to_arrow(column: Any) -> Any | None:
    """Convert a column that a user's function has made to an Arrow array; None if that is impossible.

    The array is a copy, because the function may keep what it returned and change it later.

    >>> to_arrow(np.array([1.5, 2.5])).to_pylist(), to_arrow(np.array([1j]))
    ([1.5, 2.5], None)
    """
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
    if own.ndim == 1:
        return arrow().array(own)
    return arrow().FixedShapeTensorArray.from_numpy_ndarray(own) if own.size and kind in "iuf" else None


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
    if kind is datetime and any(leaf.tzinfo is not None for leaf in leaves if leaf is not None):
        return None
    name, *arguments = _TYPES[kind]
    arrow_type = getattr(arrow(), name)(*arguments)
    for _ in range(depth):
        arrow_type = arrow().list_(arrow_type)
    try:
        return arrow().array(values, arrow_type)
    except (ValueError, TypeError, OverflowError):
        # Numbers, times or characters without an Arrow type.
        return None


def rows_to_arrow(values: list[Any]) -> Any | None:
    """Convert rows that are arrays of numbers, alike in type and shape, to an Arrow tensor; None for other values.

    >>> rows_to_arrow([np.array([1, 2]), np.array([3, 4])]).to_numpy_ndarray().tolist(), rows_to_arrow([1, 2])
    ([[1, 2], [3, 4]], None)
    """
    if not values or set(map(type, values)) != {np.ndarray} or len({(row.dtype, row.shape) for row in values}) > 1:
        return None
    stacked = np.stack(values)
    return to_arrow(stacked) if stacked.ndim > 1 else None


def survives_records(columns: Columns) -> bool:
    """Whether columns look the same to every batch format after their rows were records.

    >>> survives_records(Columns(arrow().record_batch({"n": [1]}))), survives_records(
    ...     Columns(arrow().record_batch({"n": arrow().array([1], "int32")}))
    ... )
    (True, False)
    """
    return all(not column.null_count and _survives(column.type) for column in columns.batch.columns)


def _survives(kind: Any) -> bool:
    if not is_tensor(kind):
        return str(kind) in _SURVIVING
    # Names and another order of the dimensions would be lost, and so would rows without values.
    is_plain = kind.dim_names is None and kind.permutation == list(range(len(kind.shape)))
    types = arrow().types
    return is_plain and all(kind.shape) and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))


def _kinds(values: list[Any]) -> set[type[Any]]:
    return set(map(type, values)) - {type(None)}


def to_array(column: Any) -> npt.NDArray[Any]:
    """Convert an Arrow array to numpy. The result may share its memory, and is then not writable.

    >>> to_array(arrow().array([1, None])), to_array(arrow().array(["a", None]))
    (array([ 1., nan]), array(['a', None], dtype=object))
    """
    kind, types = column.type, arrow().types
    if is_tensor(kind):
        return column.to_numpy_ndarray()
    if types.is_integer(kind) and column.null_count and not _is_exact(column):
        return _objects(column)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _of_lists(column)
    if types.is_timestamp(kind) and kind.tz is not None:
        return _objects(column)
    if any(is_simple(kind) for is_simple in _simple()):
        return column.to_numpy(zero_copy_only=False)
    return _objects(column)


def _simple() -> tuple[Any, ...]:
    types = arrow().types
    return (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_date,
        types.is_timestamp,
        types.is_duration,
    )


def _is_exact(numbers: Any) -> bool:
    values = numbers.drop_null().to_numpy()
    return bool(((values <= _EXACT) & (values >= -_EXACT)).all())


def _objects(column: Any) -> npt.NDArray[Any]:
    return np.fromiter(column.to_pylist(), np.object_, len(column))


def _of_lists(column: Any) -> npt.NDArray[Any]:
    """Lists of numbers with equal lengths become a two-dimensional array; other lists become objects."""
    inner = column.type.value_type
    types = arrow().types
    while types.is_list(inner):
        inner = inner.value_type
    if column.null_count or not len(column) or not (types.is_integer(inner) or types.is_floating(inner)):
        return _objects(column)
    lengths = column.value_lengths().to_numpy()
    values = column.flatten()
    if values.null_count or not (lengths == lengths[0]).all():
        return _objects(column)
    within = to_array(values)
    return (
        within.reshape(len(column), lengths[0], *within.shape[1:]) if within.dtype.kind in "iuf" else _objects(column)
    )
