"""Reads one file of a cut as Arrow batches with the columns of a table, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recovery.spark.cut_tables.decoding import json_of, pair_of, records_of
from recovery.spark.cut_tables.table_schemas import RENAMED
from recovery.stores.parquet_tables import decode, pa
from recovery.stores.record_tables import LOG, ROUNDS, TRANSACTIONS
from recovery.stores.state_table import STATE

_ON_DISK = {
    "log": LOG,
    "in_flight": LOG,
    "state": STATE,
    "transactions": TRANSACTIONS,
    "rounds": ROUNDS,
}
_BATCH_ROWS = 10_000

Columns = dict[str, list[Any]]


def batches_of(table: str, data: bytes, path: str, cut: Mapping[str, Any], schema: Any) -> Iterator[Any]:
    """The rows of a file whose bytes have been verified, in the columns of an Arrow schema.

    `cut` holds columns from the manifest, constant for the file; they take precedence over columns in the file.
    """
    renamed: Mapping[str, str] = RENAMED.get(table, {})
    for batch in decode(data, _ON_DISK[table], path).to_batches(_BATCH_ROWS):
        columns: Columns = {
            renamed.get(field.name, field.name): batch[field.name].to_pylist() for field in batch.schema
        }
        if table == "state":
            _add_values(columns)
        elif table == "in_flight":
            columns = _per_record(columns)
        count = len(next(iter(columns.values())))
        columns.update({name: [value] * count for name, value in cut.items()})
        yield pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _add_values(columns: Columns) -> None:
    """Add key and value as JSON, from typed columns or else from pickles."""
    keyed = zip(*(columns[name] for name in ("kind", "data", "key_int", "key_str")), strict=True)
    values = zip(*(columns[name] for name in ("value_int", "value_float", "value_str")), strict=True)
    keys_found: list[str | None] = []
    values_found: list[str | None] = []
    for (kind, data, *keys), typed in zip(keyed, values, strict=True):
        key, value = _first(keys), _first(typed)
        if data is not None:
            pair = pair_of(kind, data)
            key, value = pair.key if key is None else key, pair.value if value is None else value
        keys_found.append(key)
        values_found.append(value)
    columns["key"], columns["value"] = keys_found, values_found


def _first(values: Any) -> str | None:
    """The JSON of the first value that is not null."""
    return next((json_of(value) for value in values if value is not None), None)


def _per_record(columns: Columns) -> Columns:
    """One row per record instead of one per batch."""
    batches = zip(columns["payload"], columns["skip"], strict=True)
    found = [records_of(payload)[max(0, skip) :] for payload, skip in batches]
    rows = [row for row, records in enumerate(found) for _ in records]
    spread = {name: [values[row] for row in rows] for name, values in columns.items()}
    records = [record for batch in found for record in batch]
    return {**spread, "record": [r.record for r in records], "hops": [r.hops for r in records]}
