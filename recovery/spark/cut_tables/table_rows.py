"""The rows of process classes' tables as rows of `state`: their columns become the JSON of a key and of a value.

A key of one column is its value, such as 7 or "a"; one of several is an object, as every value is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from backedge.recovery.spark.cut_tables.decoding import json_of
from backedge.recovery.stores.parquet_tables import pa

compute: Any = import_module("pyarrow.compute")


def as_state(rows: Any) -> Any:
    """The rows of a file in columns of `state`.

    >>> struct = lambda **columns: pa.StructArray.from_arrays(list(map(pa.array, columns.values())), list(columns))
    >>> rows = pa.table({"key_group": [3], "key": struct(user=[7], day=["a"]), "value": struct(sum=[2.5])})
    >>> as_state(rows).select(["key", "value"]).to_pylist()
    [{'key': '{"user":7,"day":"a"}', 'value': '{"sum":2.5}'}]
    """
    key = rows["key"].combine_chunks()
    names = [field.name for field in key.type]
    one = key.field(0) if len(names) == 1 else None
    columns = {
        "kind": pa.repeat(pa.scalar("value"), len(rows)),
        "key_group": rows["key_group"],
        "key_int": _if_type(one, pa.int64(), len(rows)),
        "key_str": _if_type(one, pa.string(), len(rows)),
        "key": _object(key) if one is None else _json(one),
        "value": _object(rows["value"].combine_chunks()),
    }
    return pa.table(columns)


def _if_type(column: Any, kind: Any, count: int) -> Any:
    return column if column is not None and column.type == kind else pa.nulls(count, kind)


def _object(struct: Any) -> Any:
    parts: list[Any] = []
    for place, field in enumerate(struct.type):
        parts += [f"{',' if place else '{'}{json_of(field.name)}:", _json(struct.field(place))]
    return compute.binary_join_element_wise(*parts, "}", "")


def _json(column: Any) -> Any:
    if pa.types.is_string(column.type):
        texts = column.dictionary_encode()
        return pa.array(list(map(json_of, texts.dictionary.to_pylist())), pa.string()).take(texts.indices)
    text = column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        return text
    for found, name in (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
        text = compute.if_else(compute.equal(text, found), name, text)
    return text
