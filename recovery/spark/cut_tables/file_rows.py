"""Reads the files of a cut as Arrow batches, without Spark: from any store, and verified before they are decoded."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import Any

from backedge.graphs.wording import one_line
from backedge.recovery.cut.keyed_parts import ITEMS
from backedge.recovery.spark.cut_tables.decoding import identity_in, json_of, pair_of, records_of
from backedge.recovery.spark.cut_tables.page_checks import PageError
from backedge.recovery.spark.cut_tables.table_files import opened_table
from backedge.recovery.spark.cut_tables.table_rows import as_state
from backedge.recovery.spark.cut_tables.table_schemas import RENAMED
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.answer_journal import answers_in
from backedge.recovery.stores.digests import file_has_digest
from backedge.recovery.stores.names import is_of_rows, parts_of
from backedge.recovery.stores.parquet_tables import pa
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.state_table import STATE
from backedge.recovery.stores.store_calls import copy_sized
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import store_at

_ON_DISK = {"in_flight": "log", "state_layers": "state"}
_IN_MEMORY_BYTES = 256 << 20

Listed = tuple[str, str, int, str]
"""What a manifest lists of a file: its store, its name there, its size and digest."""

Columns = dict[str, list[Any]]


@contextmanager
def verified_file(folder: str, name: str, size: int, digest: str) -> Generator[Any]:
    """A copy of a file in a folder or another store that no other process can change, in memory or, if it is large, on
    this machine's disk. Raises `UnreadableError` unless it is what a manifest lists.
    """
    path = os.path.join(folder, name)
    if parts_of(name) is None:
        raise UnreadableError(f"a manifest lists {shown(name)}, which is outside {folder}: it is forged")
    with SpooledTemporaryFile(_IN_MEMORY_BYTES) as copy:
        try:
            copy_sized(store_at(folder), name, size, copy)
        except StoreError as error:
            raise UnreadableError(one_line(error)) from error
        except FileNotFoundError as error:
            raise UnreadableError(f"{path} is missing but listed in a manifest: restore it from a backup") from error
        except OSError as error:
            raise UnreadableError(f"{path} cannot be read ({error.strerror}): restore it from a backup") from error
        copy.seek(0)
        if not file_has_digest(copy, digest):
            raise UnreadableError(f"{path} does not match the manifest: it was changed; restore it from a backup")
        yield copy


def stored_batches(table: str, folder: str, name: str, size: int, digest: str) -> Iterator[Any]:
    """The rows of a file that a manifest lists, in the columns with which a table is written.

    Those of a process class's table are in columns of `state`.
    """
    with verified_file(folder, name, size, digest) as file:
        if table == "answers":
            file.seek(0)
            yield _answer_rows(file.read())
            return
        try:
            for batch in opened_table(table, file).batches():
                rows = pa.table(batch.columns, batch.schema.names)
                yield from (as_state(rows) if table == "rows" else rows).to_batches()
        except (PageError, pa.ArrowException, OSError) as error:
            raise UnreadableError(
                f"{os.path.join(folder, name)} is what the manifest names, and no table of this version: "
                f"{one_line(error)}; read it with the version that wrote it"
            ) from error


def _answer_rows(content: bytes) -> Any:
    rows = [(str(known.question), not known.answer, known.cost, known.answer) for known in answers_in(content)]
    kinds = {"question": pa.string(), "set_aside": pa.bool_(), "cost": pa.float64(), "data": pa.binary()}
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return pa.record_batch([pa.array(c, kind) for c, kind in zip(columns, kinds.values(), strict=True)], list(kinds))


def batches_of(table: str, file: Listed, cut: Mapping[str, Any], schema: Any) -> Iterator[Any]:
    """The rows of a file that a manifest lists, in the columns of an Arrow schema.

    `cut` holds columns from the manifest, constant for the file; they take precedence over columns in the file.
    """
    renamed: Mapping[str, str] = RENAMED.get(table, {})
    for batch in stored_batches("rows" if is_of_rows(file[1]) else _ON_DISK.get(table, table), *file):
        columns: Columns = {
            renamed.get(field.name, field.name): batch[field.name].to_pylist() for field in batch.schema
        }
        if table in {"state", "state_layers"}:
            columns = with_values(columns)
        elif table == "in_flight":
            columns = _per_record(columns)
        elif table == "answers":
            columns["answer"] = [pair_of("pending", data).value if data else None for data in columns["data"]]
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
    if kind not in ITEMS:
        return None
    if key_int is not None:
        return str(key_int)
    if key_str is not None:
        return f'"{key_str}"'
    if data is None:
        return key
    return identity_in(kind, group, data) or f"pickled {data!r}"


def with_values(columns: Columns) -> Columns:
    """The columns of state, with key and value as JSON: from typed columns or pickles; rows of a table have them."""
    if "key" in columns:
        nulls: list[Any] = [None] * len(columns["key"])
        return {**dict.fromkeys(STATE.names, nulls), **columns}
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
    return {**columns, "key": keys_found, "value": values_found}


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
