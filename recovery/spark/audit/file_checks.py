"""Checks the rows of one file of a cut. Needs no Spark; Spark's tasks check many files in parallel.

The rows of a state file are of known kinds. Each key occurs once, with a value or as one that is gone, in the key group
computed from its value, and the groups are those that the manifest names for the file; as each group is in one file, no
key is in two places. The typed columns of a key agree with its pickle. A value that is not pickled is in one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from graphs.graph_errors import UnkeyableError
from graphs.routing import key_group, key_groups
from graphs.wording import counted
from recovery.spark.audit.page_checks import ColumnPages, Leaf, pages_of
from recovery.spark.audit.row_checks import row_faults
from recovery.spark.cut_tables.decoding import json_of
from recovery.spark.cut_tables.plain_pickles import UnreadablePickleError, load
from recovery.stores.parquet_tables import ROWS_KINDS, ROWS_NAMES, pa, parquet
from recovery.stores.record_tables import LOG, REPEATING_IN_LOG, ROUNDS, TRANSACTIONS
from recovery.stores.state_table import ADDED, REPEATING, STATE

compute: Any = import_module("pyarrow.compute")

VALUE_BYTES_MAX = 64 << 20
"""Largest value that the audit reads."""

KINDS = ("value", "timer", "gone", "pending", "whole")
_KEYED = ("value", "timer", "gone")
_BATCH_ROWS = 10_000
_AT_ONCE_BYTES = 256 << 20
_VALUES = {"value_int", "value_float", "value_str", "value_bytes"}
_LARGE = ("data", "payload", "key_str", "value_str", "value_bytes")

# Table -> the statement that needs its columns, and the columns that must not be null.
_FILLED: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "log": (2, ("position", "edge", "sender", "receiver", "seq", "digest_before", "digest_after", "payload")),
    "transactions": (6, ("name", "epoch", "attempt", "records")),
    "state": (5, ("kind",)),
    "rounds": (5, ("phase", "current", "data")),
}

_SCHEMAS: Mapping[str, Any] = {"log": LOG, "transactions": TRANSACTIONS, "state": STATE, "rounds": ROUNDS}
_REPEATING: Mapping[str, tuple[str, ...]] = {"state": REPEATING, "log": REPEATING_IN_LOG}
TABLES = (*_SCHEMAS, "rows")

Fault = tuple[int, str]
Numbers = npt.NDArray[np.int64]


class TooLargeError(ValueError):
    """A file holds a value of more than `VALUE_BYTES_MAX`."""


Span = tuple[int, int] | None


def faults_in(table: str, file: Any, span: Span = None) -> list[Fault]:
    """Faults in the rows of a file whose bytes have been verified, each with its statement.

    `span`: the first and the last key group that the manifest names for a state file; None: its rows belong to none.
    Raises `TooLargeError`, `PageError` if no store writes such a file, or an error of pyarrow if it is not Parquet.
    """
    opened = parquet.ParquetFile(file)
    _check_types(table, opened.schema_arrow)
    pages = pages_of(file, _leaves(table, opened.schema_arrow))
    if table == "rows":
        return row_faults(opened, span)
    _check_sizes(opened, pages)
    at_once = _rows_at_once(opened, pages)
    faults = list(_nulls(table, opened, at_once))
    if table == "state":
        faults += _State(span).faults(opened, at_once)
    return faults


def _check_types(table: str, found: Any) -> None:
    """Raise unless a file has the columns of a table, of the types with which a store reads them."""
    if table == "rows":
        kinds = [str(kind).partition("<")[0] for kind in found.types]
        parts = [field.type for kind in found.types[1:] for field in kind] if kinds == ROWS_KINDS else []
        are_right = found.names == ROWS_NAMES and bool(parts)
        are_right &= all(pa.types.is_primitive(kind) or pa.types.is_string(kind) for kind in parts)
    else:
        wanted = _SCHEMAS[table]
        earlier = pa.schema([field for field in wanted if field.name not in ADDED]) if table == "state" else wanted
        are_right = (found.names, found.types) in [(each.names, each.types) for each in (wanted, earlier)]
    if not are_right:
        raise pa.ArrowInvalid(f"its columns are not those of a {table} table")


def _leaves(table: str, schema: Any) -> list[Leaf]:
    """The columns that have pages. Those of a struct have no place in the checks, so their names do not matter."""
    repeating = _REPEATING.get(table, ())
    kinds = [(f.name, part.type) for f in schema for part in (f.type if pa.types.is_struct(f.type) else (f,))]
    return [Leaf(name, pa.types.is_string(kind) or pa.types.is_binary(kind), name in repeating) for name, kind in kinds]


def _rows_at_once(opened: Any, pages: Sequence[ColumnPages]) -> int:
    """The number of rows that can be decoded together: those that are large on average, or repeat values, are few."""
    each = max((of_column.dictionary for of_column in pages), default=0)
    each += sum(of_column.size for of_column in pages) // max(opened.metadata.num_rows, 1)
    return min(_BATCH_ROWS, max(1, _AT_ONCE_BYTES // max(each, 1)))


def _check_sizes(opened: Any, pages: Sequence[ColumnPages]) -> None:
    for name, (size, _) in zip(opened.schema_arrow.names, pages, strict=True):
        if name not in _LARGE or size <= VALUE_BYTES_MAX:
            continue
        # All values together exceed the limit. If their mean does as well, no value has to be read.
        largest = size // max(opened.metadata.num_rows, 1)
        if largest <= VALUE_BYTES_MAX:
            batches = opened.iter_batches(batch_size=_BATCH_ROWS // 100, columns=[name])
            largest = max(compute.max(compute.binary_length(batch[0])).as_py() or 0 for batch in batches)
        if largest > VALUE_BYTES_MAX:
            raise TooLargeError(
                f"holds a value of {largest:,} bytes in column {name}, over the limit of {VALUE_BYTES_MAX:,}"
            )


def _nulls(table: str, opened: Any, at_once: int) -> Iterator[Fault]:
    statement, columns = _FILLED[table]
    found = dict.fromkeys(columns, 0)
    for batch in opened.iter_batches(batch_size=at_once, columns=[*columns]):
        for name in columns:
            found[name] += batch[name].null_count
    for name, count in found.items():
        if count:
            yield statement, f"{counted(count, 'row')} without a value in column {name} of table {table}"


class _State:
    """Checks a state file. Reports the first fault of each kind and how often that kind occurs."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._groups: set[int | None] = set()
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._numbers: list[Numbers] = []
        self._texts: set[str] = set()
        self._others: set[Any] = set()

    def faults(self, opened: Any, at_once: int) -> list[Fault]:
        """All faults of the file."""
        for batch in opened.iter_batches(batch_size=at_once):
            self._look_at(pa.table(batch.columns, batch.schema.names))
        self._check_numbers()
        self._check_span()
        return [(5, f"{counted(self._counts[what], what)}; first: {first}") for what, first in self._first.items()]

    def _find(self, what: str, first: Any, count: int = 1) -> None:
        self._first.setdefault(what, repr(first)[:100])
        self._counts[what] = self._counts.get(what, 0) + count

    def _check_span(self) -> None:
        # A restore at another parallelism reads only the files whose span it needs.
        groups = sorted(group for group in self._groups if group is not None)
        found = (groups[0], groups[-1]) if groups else None
        if found != self._span or (groups and None in self._groups):
            self._find("file with key groups that the manifest does not name", found)

    def _look_at(self, rows: Any) -> None:
        self._groups.update(compute.unique(rows["key_group"]).to_pylist())
        unknown = rows.filter(compute.invert(compute.is_in(rows["kind"], pa.array(KINDS))))
        if len(unknown):
            self._find("row of an unknown kind of state", unknown["kind"][0].as_py(), len(unknown))
        keyed = rows.filter(compute.is_in(rows["kind"], pa.array(_KEYED)))
        without = keyed.filter(compute.is_null(keyed["key_group"]))
        if len(without):
            self._find("key without a group", _shown_key(without), len(without))
        keyed = keyed.filter(compute.is_valid(keyed["key_group"]))
        is_typed, names = compute.is_null(keyed["data"]), {*rows.schema.names}
        typed = keyed.filter(is_typed)
        for column in ("key_int", "key_str"):
            of_type = typed.filter(compute.is_valid(typed[column]))
            if len(of_type):
                self._add_typed(column, of_type)
        count = sum(compute.cast(compute.is_valid(typed[name]), pa.int8()).to_numpy() for name in _VALUES & names)
        odd = np.flatnonzero(count != 1)
        if len(odd):
            self._find("row with no value, or several", _shown_key(typed.slice(int(odd[0]))), len(odd))
        nothing = compute.and_(compute.is_null(typed["key_int"]), compute.is_null(typed["key_str"]))
        if compute.any(nothing).as_py():
            self._find("row of a value without a key", None, int(compute.sum(nothing).as_py()))
        self._add_pickled(keyed.filter(compute.invert(is_typed)))

    def _add_typed(self, column: str, rows: Any) -> None:
        values = rows[column].to_numpy()
        wrong = np.flatnonzero(key_groups(values) != rows["key_group"].to_numpy())
        if len(wrong):
            self._find("key in the wrong group", rows[column][int(wrong[0])].as_py(), len(wrong))
        if column == "key_int":
            self._numbers.append(values)
            return
        for text in values.tolist():
            self._add(text, self._texts)

    def _add_pickled(self, rows: Any) -> None:
        columns = (rows[name].to_pylist() for name in ("kind", "key_group", "key_int", "key_str", "data"))
        for kind, group, key_int, key_str, data in zip(*columns, strict=True):
            key = _key_in(data)
            if key is _UNKNOWN:
                continue  # reported when an invariant reads this key
            typed = key_int if key_int is not None else key_str
            if typed is not None and (type(typed), typed) != (type(key), key):
                self._find("key that differs from its pickle", typed)
            try:
                right = key_group(key)
            except UnkeyableError:
                continue  # an object of a user's class: its group cannot be computed without that class
            if right != group:
                self._find("key in the wrong group", key)
            if kind == "timer":
                continue
            if type(key) is int and -(1 << 63) <= key < 1 << 63:
                self._numbers.append(np.array([key], np.int64))
            elif type(key) is str:
                self._add(key, self._texts)
            else:
                self._add(key if key == key else json_of(key), self._others)

    def _add(self, key: Any, seen: set[Any]) -> None:
        if key in seen:
            self._find("duplicate key", key)
        seen.add(key)

    def _check_numbers(self) -> None:
        # Equal numbers are the same key, even if their types differ.
        equal = (key for key in self._others if type(key) is bool or (type(key) is float and key.is_integer()))
        others = np.array([int(key) for key in equal if abs(key) < 1 << 62], np.int64)
        numbers = np.sort(np.concatenate([*self._numbers, others])) if self._numbers or len(others) else others
        doubled = numbers[1:][numbers[1:] == numbers[:-1]]
        if len(doubled):
            self._find("duplicate key", int(doubled[0]), len(doubled))


_UNKNOWN = object()


def _key_in(data: bytes) -> Any:
    """The key in a pickled entry."""
    try:
        entry = load(data)
    except UnreadablePickleError:
        return _UNKNOWN
    parts = list(cast("tuple[Any, ...]", entry)) if type(entry) is tuple else []
    return parts[0] if parts else _UNKNOWN


def _shown_key(rows: Any) -> Any:
    key = rows["key_int"][0].as_py()
    return rows["key_str"][0].as_py() if key is None else key
