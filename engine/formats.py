"""Batch formats of map_batches: lists of records, and columns of records that are dicts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np

from engine.errors import MisuseError, show


def to_format(records: list[Any], batch_format: str) -> Any:
    """The records as a function of this format wants them.

    >>> to_format([{"a": 1}, {"a": 2}], "numpy")
    {'a': array([1, 2])}
    """
    return _TO[batch_format](records)


def to_records(batch: Any) -> list[Any]:
    """The records of a batch in any format.

    >>> to_records({"a": np.array([1, 2])})
    [{'a': 1}, {'a': 2}]
    """
    if isinstance(batch, list):
        return cast("list[Any]", batch)
    if isinstance(batch, dict):
        return _rows({name: _values(column) for name, column in cast("dict[str, Any]", batch).items()})
    if hasattr(batch, "to_pylist") and hasattr(batch, "schema"):
        return batch.to_pylist()
    if hasattr(batch, "to_dict") and hasattr(batch, "columns"):
        return batch.to_dict(orient="records")
    raise MisuseError(
        f"a function of map_batches returned {show(batch)}, a {type(batch).__name__}: "
        "return a list of records, a dict of columns, a pandas frame or a pyarrow table"
    )


def _columns(records: list[Any]) -> dict[str, list[Any]]:
    first = records[0]
    if not isinstance(first, dict):
        raise MisuseError(
            f"map_batches is to make columns of records, and {show(first)} is a {type(first).__name__}: "
            'give it records that are dicts, or batch_format="records"'
        )
    names = list(cast("dict[str, Any]", first))
    for record in records:
        if record.keys() != first.keys():
            raise MisuseError(
                f"map_batches is to make columns of records whose columns differ: {names} and {list(record)}: "
                'give all records the same columns, or use batch_format="records"'
            )
    return {name: [record[name] for record in records] for name in names}


def _rows(columns: dict[str, list[Any]]) -> list[Any]:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise MisuseError(f"a function of map_batches returned columns of different lengths: {lengths}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: Any) -> list[Any]:
    # An array of several dimensions is a column of arrays.
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return cast("list[Any]", column.tolist())
    return list(cast("list[Any]", column))


def _to_numpy(records: list[Any]) -> dict[str, Any]:
    return {name: np.array(column) for name, column in _columns(records).items()}


def _to_pandas(records: list[Any]) -> Any:
    return import_module("pandas").DataFrame(_columns(records))


def _to_arrow(records: list[Any]) -> Any:
    return import_module("pyarrow").table(_columns(records))


def _to_list(records: list[Any]) -> list[Any]:
    return list(records)


_TO: dict[str, Callable[[list[Any]], Any]] = {
    "records": _to_list,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "pyarrow": _to_arrow,
}
