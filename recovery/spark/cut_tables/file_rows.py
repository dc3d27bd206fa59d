"""Reads the files of a cut as Arrow batches, without Spark: from any store, and verified before they are decoded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graphs.wording import one_line
from recovery.spark.cut_tables.decoding import identity_in, json_of, pair_of, records_of
from recovery.spark.cut_tables.table_rows import as_state
from recovery.spark.cut_tables.table_schemas import RENAMED
from recovery.spark.spark_errors import UnreadableError
from recovery.stores.digests import has_digest
from recovery.stores.names import is_of_rows, parts_of
from recovery.stores.parquet_tables import decode, decode_rows, pa
from recovery.stores.record_tables import LOG, ROUNDS, TRANSACTIONS
from recovery.stores.shapes import shown
from recovery.stores.state_table import STATE
from recovery.stores.store_calls import read_sized
from recovery.stores.store_errors import StoreError
from recovery.stores.store_schemes import store_at

_ON_DISK = {
    "log": LOG,
    "in_flight": LOG,
    "state": STATE,
    "state_layers": STATE,
    "transactions": TRANSACTIONS,
    "rounds": ROUNDS,
}
_BATCH_ROWS = 10_000
KEYED = ("value", "timer", "gone")

Columns = dict[str, list[Any]]


def verified_bytes(folder: str, name: str, size: int, digest: str) -> bytes:
    """The bytes of a file in a folder or another store. `UnreadableError` unless they are what a manifest lists."""
    path = os.path.join(folder, name)
    if parts_of(name) is None:
        raise UnreadableError(f"a manifest lists {shown(name)}, which is outside {folder}: it is forged")
    try:
        data = read_sized(store_at(folder), name, size)
    except StoreError as error:
        raise UnreadableError(one_line(error)) from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}): restore it from a backup") from error
    if not has_digest(data, digest):
        raise UnreadableError(f"{path} does not match the manifest: restore it from a backup")
    return data


def stored_batches(table: str, data: bytes, path: str) -> Iterator[Any]:
    """The rows of a file whose bytes have been verified, in the columns that it was written with.

    Those of a process class's table are in columns of `state`.
    """
    if table == "rows":
        return iter(as_state(decode_rows(data, path)).to_batches(_BATCH_ROWS))
    return iter(decode(data, _ON_DISK[table], path).to_batches(_BATCH_ROWS))


def batches_of(table: str, data: bytes, path: str, cut: Mapping[str, Any], schema: Any) -> Iterator[Any]:
    """The rows of a file whose bytes have been verified, in the columns of an Arrow schema.

    `cut` holds columns from the manifest, constant for the file; they take precedence over columns in the file.
    """
    renamed: Mapping[str, str] = RENAMED.get(table, {})
    has_values = is_of_rows(path)
    for batch in stored_batches("rows" if has_values else table, data, path):
        columns: Columns = {
            renamed.get(field.name, field.name): batch[field.name].to_pylist() for field in batch.schema
        }
        if has_values:
            columns |= {name: [None] * batch.num_rows for name in STATE.names if name not in columns}
        elif table in {"state", "state_layers"}:
            _add_values(columns)
        elif table == "in_flight":
            columns = _per_record(columns)
        count = len(next(iter(columns.values())))
        columns.update({name: [value] * count for name, value in cut.items()})
        yield pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def merged(files: Iterable[tuple[int, Iterator[Any]]]) -> Iterator[Any]:
    """The state that layers of files make up: for each key what the last layer says that holds it.

    `files` are the batches of each file with its layer, the last layer first.
    """
    newer: set[str] = set()
    current = -1
    found: set[str] = set()
    for layer, batches in files:
        if layer != current:
            newer |= found
            current = layer
            found = set()
        for batch in batches:
            columns = (batch[name].to_pylist() for name in ("kind", "key_group", "key_int", "key_str", "key", "data"))
            keys = [identity(*row) for row in zip(*columns, strict=True)]
            is_left = [key is None or key not in newer for key in keys]
            found.update(key for key in keys if key is not None)
            is_there = pa.array([kind != "gone" for kind in batch["kind"].to_pylist()])
            yield batch.filter(pa.array(is_left, pa.bool_())).filter(is_there.filter(pa.array(is_left, pa.bool_())))


def identity(
    kind: str, group: int | None, key_int: int | None, key_str: str | None, key: str | None, data: bytes | None
) -> str | None:
    """What makes a key the same in two layers; None for what belongs to no key. Numbers are equal across types.

    >>> import pickle
    >>> identity("value", 79, 1, None, "1", None), identity("gone", 79, None, None, "true", pickle.dumps((True,)))
    ('1', '1')
    >>> identity("pending", None, None, None, None, b"") is None
    True
    """
    if kind not in KEYED:
        return None
    if key_int is not None:
        return str(key_int)
    if key_str is not None:
        return f'"{key_str}"'
    if data is None:
        return key
    return identity_in(kind, group, data) or f"pickled {data!r}"


def _add_values(columns: Columns) -> None:
    """Add key and value as JSON, from typed columns or else from pickles."""
    keyed = zip(*(columns[name] for name in ("kind", "data", "key_int", "key_str")), strict=True)
    values = zip(*(columns[name] for name in ("value_int", "value_float", "value_str", "value_bytes")), strict=True)
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
