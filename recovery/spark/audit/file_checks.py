"""What one file of a cut holds, row by row: no Spark is needed, and Spark's tasks look at many files at once.

A state file has rows of known kinds. Each key is there once, in the group that its value gives: so, with the group in
the task that keeps it, no key is in two places. The columns of a key say what its pickle says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from graphs.graph_errors import UnkeyableError
from graphs.routing import key_group, key_groups
from graphs.wording import counted
from recovery.spark.cut_tables.decoding import json_of
from recovery.spark.cut_tables.plain_pickles import UnreadablePickleError, load
from recovery.stores.parquet_tables import pa, parquet
from recovery.stores.record_tables import LOG, ROUNDS, TRANSACTIONS
from recovery.stores.state_table import STATE

compute: Any = import_module("pyarrow.compute")

VALUE_BYTES_MAX = 64 << 20
"""The largest value of a row that Spark is asked to read."""

KINDS = ("value", "timer", "pending", "whole")
_KEYED = ("value", "timer")
_BATCH_ROWS = 10_000
_LARGE = ("data", "payload", "key_str", "value_str")

# Table -> the statement that needs its columns, and those that have a value in every row.
_FILLED: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "log": (2, ("position", "edge", "sender", "receiver", "seq", "digest_before", "digest_after", "payload")),
    "transactions": (6, ("name", "epoch", "attempt", "records")),
    "state": (5, ("kind",)),
    "rounds": (5, ("phase", "current", "data")),
}

SCHEMAS: Mapping[str, Any] = {"log": LOG, "transactions": TRANSACTIONS, "state": STATE, "rounds": ROUNDS}

Fault = tuple[int, str]
Numbers = npt.NDArray[np.int64]


class TooLargeError(ValueError):
    """A file with a value that is larger than what is read."""


def faults_in(table: str, file: Any) -> list[Fault]:
    """What is wrong with the rows of a file whose bytes have been verified: statements and stories.

    Raises `TooLargeError`, or what pyarrow raises of a file that is no Parquet.
    """
    opened = parquet.ParquetFile(file)
    if opened.schema_arrow.names != SCHEMAS[table].names:
        raise pa.ArrowInvalid(f"its columns are not those of a table of {table}")
    _check_sizes(opened)
    faults = list(_nulls(table, opened))
    if table == "state":
        faults += _State().faults(opened)
    return faults


def _check_sizes(opened: Any) -> None:
    metadata = opened.metadata
    for name in set(_LARGE) & set(opened.schema_arrow.names):
        column = opened.schema_arrow.names.index(name)
        size = sum(metadata.row_group(n).column(column).total_uncompressed_size for n in range(metadata.num_row_groups))
        if size <= VALUE_BYTES_MAX:
            continue
        # Together they are larger than one may be. Where the mean is, too, none has to be read to know it.
        largest = size // max(metadata.num_rows, 1)
        if largest <= VALUE_BYTES_MAX:
            batches = opened.iter_batches(batch_size=_BATCH_ROWS // 100, columns=[name])
            largest = max(compute.max(compute.binary_length(batch[0])).as_py() or 0 for batch in batches)
        if largest > VALUE_BYTES_MAX:
            raise TooLargeError(
                f"holds a value of {largest:,} bytes in column {name}, and no more than {VALUE_BYTES_MAX:,} are read"
            )


def _nulls(table: str, opened: Any) -> Iterator[Fault]:
    statement, columns = _FILLED[table]
    found = dict.fromkeys(columns, 0)
    for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=[*columns]):
        for name in columns:
            found[name] += batch[name].null_count
    for name, count in found.items():
        if count:
            yield statement, f"{counted(count, 'row')} of its table of {table} have no {name}"


class _State:
    """The rows of a state file. Of each kind of fault the first is told, and how many there are."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._numbers: list[Numbers] = []
        self._texts: set[str] = set()
        self._others: set[Any] = set()

    def faults(self, opened: Any) -> list[Fault]:
        """All of them."""
        for batch in opened.iter_batches(batch_size=_BATCH_ROWS):
            self._look_at(pa.table(batch.columns, batch.schema.names))
        self._check_numbers()
        return [
            (5, f"{counted(self._counts[what], what)}, the first is {first}") for what, first in self._first.items()
        ]

    def _find(self, what: str, first: Any, count: int = 1) -> None:
        self._first.setdefault(what, repr(first)[:100])
        self._counts[what] = self._counts.get(what, 0) + count

    def _look_at(self, rows: Any) -> None:
        unknown = rows.filter(compute.invert(compute.is_in(rows["kind"], pa.array(KINDS))))
        if len(unknown):
            self._find("row of an unknown kind of state", unknown["kind"][0].as_py(), len(unknown))
        keyed = rows.filter(compute.is_in(rows["kind"], pa.array(_KEYED)))
        without = keyed.filter(compute.is_null(keyed["key_group"]))
        if len(without):
            self._find("key without a group", _shown_key(without), len(without))
        keyed = keyed.filter(compute.is_valid(keyed["key_group"]))
        is_typed = compute.is_null(keyed["data"])
        typed = keyed.filter(is_typed)
        for column in ("key_int", "key_str"):
            of_type = typed.filter(compute.is_valid(typed[column]))
            if len(of_type):
                self._add_typed(column, of_type)
        nothing = compute.and_(compute.is_null(typed["key_int"]), compute.is_null(typed["key_str"]))
        if compute.any(nothing).as_py():
            self._find("row of a value without a key", None, int(compute.sum(nothing).as_py()))
        self._add_pickled(keyed.filter(compute.invert(is_typed)))

    def _add_typed(self, column: str, rows: Any) -> None:
        values = rows[column].to_numpy()
        wrong = np.flatnonzero(key_groups(values) != rows["key_group"].to_numpy())
        if len(wrong):
            self._find("key in another group than its own", rows[column][int(wrong[0])].as_py(), len(wrong))
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
                continue  # an invariant that asks for it does not pass
            typed = key_int if key_int is not None else key_str
            if typed is not None and (type(typed), typed) != (type(key), key):
                self._find("key that its pickle does not have", typed)
            try:
                right = key_group(key)
            except UnkeyableError:
                continue  # an object of a class of the user's: its group is not known without it
            if right != group:
                self._find("key in another group than its own", key)
            if kind != "value":
                continue
            if type(key) is int and -(1 << 63) <= key < 1 << 63:
                self._numbers.append(np.array([key], np.int64))
            elif type(key) is str:
                self._add(key, self._texts)
            else:
                self._add(key if key == key else json_of(key), self._others)

    def _add(self, key: Any, seen: set[Any]) -> None:
        if key in seen:
            self._find("key that is there twice", key)
        seen.add(key)

    def _check_numbers(self) -> None:
        # Equal numbers are one key, whatever their types.
        equal = (key for key in self._others if type(key) is bool or (type(key) is float and key.is_integer()))
        others = np.array([int(key) for key in equal if abs(key) < 1 << 62], np.int64)
        numbers = np.sort(np.concatenate([*self._numbers, others])) if self._numbers or len(others) else others
        doubled = numbers[1:][numbers[1:] == numbers[:-1]]
        if len(doubled):
            self._find("key that is there twice", int(doubled[0]), len(doubled))


_UNKNOWN = object()


def _key_in(data: bytes) -> Any:
    """The key of an entry, as it was pickled."""
    try:
        entry = load(data)
    except UnreadablePickleError:
        return _UNKNOWN
    parts = list(cast("tuple[Any, ...]", entry)) if type(entry) is tuple else []
    return parts[0] if parts else _UNKNOWN


def _shown_key(rows: Any) -> Any:
    key = rows["key_int"][0].as_py()
    return rows["key_str"][0].as_py() if key is None else key
