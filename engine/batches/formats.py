"""Batch formats of map_batches and process: what the user's function receives, and what it may return or emit.

    records   a list
    numpy     a dict of arrays, owned by the function and writable
    pandas    a pandas frame, owned by the function
    polars    an immutable polars frame
    pyarrow   an immutable table

If the format needs columns, records must be dicts with the same keys. The function's input looks the same whether its
batch arrived as records or as columns.

Returned columns travel as columns, without a look at each record: arrays of numbers, truth values, text, bytes and
dates, also of several dimensions, and arrays of objects that all have one such type, or are lists of one, or None. If
one column holds anything else, the batch travels as records, with unchanged values.

The numpy form of a column: numbers and truth values are arrays of their type, text and bytes arrays of objects, dates
and times datetime64; arrays that are alike in type and shape are an array with one more dimension. Integers among
floats are floats if these hold them exactly. Everything else is an array of objects, so that a function which returns
what it was given returns the same values: a column with None, numbers beyond 64 bits, values of several types, lists,
dicts, times with a time zone. Only among nanoseconds, which no object of Python holds, None is NaT.

A table of Arrow or polars has no objects: values that it cannot hold unchanged are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrays import (
    comes_back,
    is_arrow,
    rows_to_arrow,
    to_array,
    to_arrow,
    values_to_array,
    values_to_arrow,
)
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import without_repeats
from backedge.engine.batches.columns import Columns, Records, is_tensor, python_values, to_columns
from backedge.graphs.task_errors import MisuseError, show


def to_format(records: Records, batch_format: str) -> Any:
    """Convert records to the given format.

    >>> to_format([{"a": 1}, {"a": 2}], "numpy")
    {'a': array([1, 2])}
    """
    return _TO[batch_format](records)


@contextmanager
def errors_of(operator: str) -> Generator[None]:
    """Has an error about a batch name the operator."""
    try:
        yield
    except MisuseError as error:
        raise MisuseError(f"operator {operator!r}: {error}") from error


def prepare(batch_format: str) -> None:
    """Load what conversions need, so that the first batch need not wait: Arrow, which looks for pandas when used."""
    if batch_format != "records":
        values_to_arrow([0])


def from_format(batch: Any, whose: str = "a function of map_batches returned") -> Records:
    """Convert a batch in any format to records, or to columns if its columns can travel. `whose` begins an error.

    >>> from_format({"a": np.array([1, 2])})
    Columns(2 rows of a int64)
    """
    if isinstance(batch, list):
        return [*without_repeats(cast("list[Any]", batch))]
    if isinstance(batch, dict):
        return _from_arrays(cast("dict[Any, Any]", batch), whose)
    if hasattr(batch, "to_pylist") and hasattr(batch, "schema"):
        return to_columns(batch)
    if hasattr(batch, "to_arrow") and hasattr(batch, "columns"):
        return to_columns(batch.to_arrow())
    if hasattr(batch, "to_dict") and hasattr(batch, "columns"):
        return _from_pandas(batch, whose)
    raise MisuseError(
        f"{whose} {show(batch)}, of type {type(batch).__name__}: "
        "give a list of records, a dict of columns, a frame of pandas or polars, or a pyarrow table"
    )


def _from_arrays(columns: dict[Any, Any], whose: str) -> Records:
    for name, column in columns.items():
        if (
            isinstance(column, str | bytes | dict)
            or not hasattr(column, "__len__")
            or getattr(column, "shape", 1) == ()
        ):
            raise MisuseError(
                f"{whose} {show(column)} as column {name!r}, of type {type(column).__name__}: give a list or an array "  # pyright: ignore[reportUnknownArgumentType]
                "with a value for each row"
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise MisuseError(f"{whose} columns of different lengths: {lengths}")
    if not any(lengths.values()):
        return []
    arrays = {name: to_arrow(column) for name, column in columns.items()}
    if all(type(name) is str and arrays[name] is not None for name in columns):
        return Columns(arrow().RecordBatch.from_arrays(list(arrays.values()), list(columns)))
    values = [
        _values(column) if arrays[name] is None else python_values(arrays[name]) for name, column in columns.items()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _from_pandas(frame: Any, whose: str) -> Records:
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise MisuseError(f"{whose} a frame with the columns {names}: make the names unique")
    return _from_arrays({name: _of_series(frame[name]) for name in names}, whose)


def _of_series(series: Any) -> Any:
    # Types that only pandas has: Arrow has None for what is missing.
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else arrow().array(series)


def _values(column: Any) -> list[Any]:
    """The values of a column that no Arrow array holds."""
    if is_arrow(column):
        return python_values(column)
    if not isinstance(column, np.ndarray):
        return list(cast("list[Any]", column))
    array = cast("npt.NDArray[Any]", column)
    if array.ndim > 1:
        # The function may keep the array and change it later, and the receiver of a record may keep that alone.
        return [row.copy() for row in array]
    values = cast("list[Any]", array.tolist())
    # Python has no time of this unit or year: NumPy would make a bare number of it.
    if array.dtype.kind in "mM":
        return [own if type(value) is int else value for own, value in zip(array, values, strict=True)]
    return values


def _columns(records: list[Any]) -> dict[str, list[Any]]:
    for record in records:
        if not isinstance(record, dict):
            raise MisuseError(
                f"batch_format needs records with columns, but {show(record)} is of type {type(record).__name__}: "
                'give it records that are dicts, or batch_format="records"'
            )
    first = records[0]
    names = list(cast("dict[str, Any]", first))
    for record in records:
        if record.keys() != first.keys():
            raise MisuseError(
                f"a batch has records with different columns, {names} and {list(record)}: "
                'give all records the same columns, or use batch_format="records"'
            )
    return {name: [record[name] for record in records] for name in names}


def _to_list(records: Records) -> list[Any]:
    return records.to_records() if isinstance(records, Columns) else list(records)


def _arrays(records: Records) -> dict[str, npt.NDArray[Any]]:
    """Column name -> its values, which may be shared and must not be modified."""
    if isinstance(records, Columns):
        return dict(zip(records.names, map(to_array, records.batch.columns), strict=True))
    return {name: values_to_array(values) for name, values in _columns(records).items()}


def _to_numpy(records: Records) -> dict[str, npt.NDArray[Any]]:
    arrays = _arrays(records)
    return {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}


def _to_pandas(records: Records) -> Any:
    pandas = _optional("pandas")
    # The frame copies its arguments.
    return pandas.DataFrame({name: _to_series(pandas, array) for name, array in _to_numpy(records).items()})


def _to_series(pandas: Any, array: npt.NDArray[Any]) -> Any:
    if array.ndim > 1:
        return list(array)
    # Left to itself, pandas would make times of days, and NaN of None among texts.
    objects = array.astype(object) if array.dtype == "M8[D]" else array
    return pandas.Series(objects, dtype=object) if objects.dtype == object else objects


def _to_polars(records: Records) -> Any:
    polars, table = _optional("polars"), _to_table(records)
    for field in table.schema:
        if isinstance(field.type, arrow().BaseExtensionType) and not is_tensor(field.type):
            raise MisuseError(
                f"column {field.name!r} is of type {field.type}, of which polars makes bare bytes: convert its values "
                'to text first, or use batch_format="pyarrow"'
            )
    return polars.from_arrow(table)


def _optional(package: str) -> Any:
    """An optional package that a format is named after."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MisuseError(
            f'an operator has batch_format="{package}", but there is no module {error.name!r} here: run '
            f"`pip install {package}` on every machine of the cluster, or choose another format"
        ) from error


def _to_table(records: Records) -> Any:
    if isinstance(records, Columns):
        return arrow().Table.from_batches([records.batch])
    columns = _columns(records)
    for name in cast("dict[Any, Any]", columns):
        if not isinstance(name, str):
            raise MisuseError(
                f"a column is named {name!r}, but columns of Arrow are named by texts: rename it, or use "
                'batch_format="numpy" or "records"'
            )
    return arrow().table({name: _to_column(name, values) for name, values in columns.items()})


def _to_column(name: str, values: list[Any]) -> Any:
    for convert in (values_to_arrow, rows_to_arrow):
        if (column := convert(values)) is not None:
            return column
    try:
        column = arrow().array(values)
        changed = [
            value for value, found in zip(values, column.to_pylist(), strict=True) if not comes_back(value, found)
        ]
        if not changed:
            return column
    except (ValueError, TypeError, OverflowError, arrow().ArrowException):
        known = [value for value in values if value is not None]
        changed = [value for value in known if type(value) is not type(known[0])] or known
    types = ", ".join(sorted({type(value).__name__ for value in values}))
    raise MisuseError(
        f"column {name!r} has values of type {types}, such as {show(changed[0])}, which a table of Arrow cannot hold "
        'unchanged: convert them first, or use batch_format="numpy" or "records"'
    )


_TO: dict[str, Callable[[Records], Any]] = {
    "records": _to_list,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "polars": _to_polars,
    "pyarrow": _to_table,
}
