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

The numpy form of a column, as in Ray Data: numbers and truth values are arrays of their type, text and bytes arrays of
objects, dates and times datetime64. Among numbers, None becomes NaN; among times, NaT. Lists of numbers that all have
the same length are a two-dimensional array. Everything else is an array of objects: truth values with None, integers
beyond 2**53 with None, lists of different lengths, dicts, times with a time zone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from engine.arrays import rows_to_arrow, to_array, to_arrow, values_to_arrow
from engine.columns import Columns, Records, to_columns
from engine.files.arrow import arrow
from engine.task_errors import MisuseError, show


def to_format(records: Records, batch_format: str) -> Any:
    """Convert records to the given format.

    >>> to_format([{"a": 1}, {"a": 2}], "numpy")
    {'a': array([1, 2])}
    """
    return _TO[batch_format](records)


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
        return [*cast("list[Any]", batch)]
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
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise MisuseError(f"{whose} columns of different lengths: {lengths}")
    if not any(lengths.values()):
        return []
    if all(type(name) is str for name in columns):
        arrays = [to_arrow(column) for column in columns.values()]
        if all(array is not None for array in arrays):
            return Columns(arrow().RecordBatch.from_arrays(arrays, list(columns)))
    rows = zip(*map(_values, columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _from_pandas(frame: Any, whose: str) -> Records:
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise MisuseError(f"{whose} a frame with the columns {names}: make the names unique")
    return _from_arrays({name: frame[name].to_numpy() for name in names}, whose)


def _values(column: Any) -> list[Any]:
    # A column whose values are arrays.
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return cast("list[Any]", column.tolist())
    return list(cast("list[Any]", column))


def _columns(records: list[Any]) -> dict[str, list[Any]]:
    first = records[0]
    if not isinstance(first, dict):
        raise MisuseError(
            f"batch_format needs records with columns, but {show(first)} is of type {type(first).__name__}: "
            'give it records that are dicts, or batch_format="records"'
        )
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
    found: dict[str, npt.NDArray[Any]] = {}
    for name, values in _columns(records).items():
        array = values_to_arrow(values)
        found[name] = _as_they_are(values) if array is None else to_array(array)
    return found


def _as_they_are(values: list[Any]) -> npt.NDArray[Any]:
    try:
        return np.array(values)
    except ValueError:
        return np.fromiter(values, np.object_, len(values))


def _to_numpy(records: Records) -> dict[str, npt.NDArray[Any]]:
    arrays = _arrays(records)
    return {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}


def _to_pandas(records: Records) -> Any:
    # The frame copies its arguments.
    columns = {name: array if array.ndim == 1 else list(array) for name, array in _to_numpy(records).items()}
    return _optional("pandas").DataFrame(columns)


def _to_polars(records: Records) -> Any:
    polars = _optional("polars")
    return polars.from_arrow(_to_table(records))


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
    columns = {name: (rows_to_arrow(values), values) for name, values in _columns(records).items()}
    return arrow().table({name: values if rows is None else rows for name, (rows, values) in columns.items()})


_TO: dict[str, Callable[[Records], Any]] = {
    "records": _to_list,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "polars": _to_polars,
    "pyarrow": _to_table,
}
