"""Checks the rows of one file of a cut. Needs no Spark; Spark's tasks check many files in parallel.

The rows of a state file are of known kinds. Each key occurs once, with a value or as one that is gone, in the key group
computed from its value, and the groups are those that the manifest names for the file; as each group is in one file, no
key is in two places. Each row is one that a store would have written (`odd_rows`, `pickled_row`): what its columns show
is what a restore reads from its pickle. Rows of a process class's table are in columns of their own (`_row_faults`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backedge.graphs.graph_errors import UnkeyableError
from backedge.graphs.routing import groups_of_keys, key_group, key_groups
from backedge.graphs.wording import counted
from backedge.recovery.cut.keyed_parts import ITEMS
from backedge.recovery.spark.cut_tables.decoding import identity_of
from backedge.recovery.spark.cut_tables.plain_pickles import (
    OPCODES_MAX,
    BrokenPickleError,
    UncheckedPickleError,
    UnreadablePickleError,
    check_nesting,
    check_pickle,
    load,
)
from backedge.recovery.spark.cut_tables.table_files import TableFile, opened_table
from backedge.recovery.stores.file_contents import held_in
from backedge.recovery.stores.parquet_tables import pa
from backedge.recovery.stores.record_tables import records_in_batch
from backedge.recovery.stores.state_table import PICKLED, odd_rows, pickled_row

compute: Any = import_module("pyarrow.compute")

VALUE_BYTES_MAX = 64 << 20
"""Largest value that the audit reads."""

_LARGE = ("data", "payload", "key_str", "value_str", "value_bytes")

# Table -> the statement that needs its columns, and the columns that must not be null.
_FILLED: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "log": (2, ("position", "edge", "sender", "receiver", "seq", "digest_before", "digest_after", "payload")),
    "transactions": (6, ("name", "epoch", "attempt", "records")),
    "state": (5, ("kind",)),
    "rounds": (5, ("phase", "current", "data")),
}

Fault = tuple[int, str]
Numbers = npt.NDArray[np.int64]


class TooLargeError(ValueError):
    """A file holds a value of more than `VALUE_BYTES_MAX`."""


Span = tuple[int, int] | None


def faults_in(table: str, file: Any, span: Span = None, said: str | None = None) -> list[Fault]:
    """Faults in the rows of a file whose bytes have been verified, each with its statement.

    `span`: the first and the last key group that the manifest names for a state file; None: its rows belong to none.
    `said`: what the manifest says of the rows (`file_contents.py`), as JSON; None if it says nothing.
    Raises `TooLargeError`, `PageError` if no store writes such a file, or an error of pyarrow if it is not Parquet.
    """
    opened = opened_table(table, file)
    if table == "rows":
        return _row_faults(opened.parquet, span)
    _check_sizes(opened)
    faults = list(_nulls(table, opened))
    if table == "state":
        faults += _State(span).faults(opened)
    if said is not None and not faults:
        faults += _contradictions(table, opened.batches(), said)
    return faults


def _contradictions(table: str, parts: Iterator[Any], said: str) -> Iterator[Fault]:
    """The manifest says what the rows hold, no more and no less."""
    statement, expected = _FILLED[table][0], json.loads(said)
    try:
        held = held_in(table, (pa.table(part.columns, part.schema.names) for part in parts), _loaded, records_in)
    except UncheckedPickleError:
        return
    except Exception:  # noqa: BLE001  # a forged pickle may hold anything
        yield statement, f"its row of table {table} differs from its pickle, or no store has written it"
        return
    if table == "log" and expected and held[2] is None:
        held[2] = expected[2]  # it has a batch whose records cannot be counted here
    if held != expected:
        yield statement, f"holds {json.dumps(held)[:200]} but the manifest says {json.dumps(expected)[:200]}"


def _loaded(data: bytes) -> Any:
    """The value of a pickle of ours. Raises `UncheckedPickleError` if it may be right, but cannot be read here."""
    try:
        return load(data)
    except BrokenPickleError:
        raise
    except UnreadablePickleError as error:
        # One that is not too long refers to something outside of it.
        if isinstance(error, UncheckedPickleError) and len(data) <= OPCODES_MAX:
            raise BrokenPickleError(str(error)) from error
        raise UncheckedPickleError(str(error)) from error


def records_in(payload: bytes) -> int | None:
    """The number of records in a batch; None if it is unknown, or if counting them might take too much memory."""
    if payload[:1] not in (b"M", b"A"):
        try:
            check_pickle(payload)
            check_nesting(payload)
        except UnreadablePickleError:
            return None
    return records_in_batch(payload)


def _check_sizes(opened: TableFile) -> None:
    for name, (size, _) in zip(opened.parquet.schema_arrow.names, opened.pages, strict=True):
        if name not in _LARGE or size <= VALUE_BYTES_MAX:
            continue
        # All values together exceed the limit. If their mean does as well, no value has to be read.
        largest = size // max(opened.parquet.metadata.num_rows, 1)
        if largest <= VALUE_BYTES_MAX:
            lengths = (compute.binary_length(batch[0]) for batch in opened.batches([name]))
            largest = max(compute.max(found).as_py() or 0 for found in lengths)
        if largest > VALUE_BYTES_MAX:
            raise TooLargeError(
                f"holds a value of {largest:,} bytes in column {name}, over the limit of {VALUE_BYTES_MAX:,}"
            )


def _nulls(table: str, opened: TableFile) -> Iterator[Fault]:
    statement, columns = _FILLED[table]
    found = dict.fromkeys(columns, 0)
    for batch in opened.batches(columns):
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
        self._others: set[str] = set()
        self._has_whole = False

    def faults(self, opened: TableFile) -> list[Fault]:
        for batch in opened.batches():
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
        for odd in odd_rows(rows):
            self._find(odd.what, _shown_key(rows, odd.first), odd.rows)
        self._add_wholes(rows)
        keyed = rows.filter(compute.is_in(rows["kind"], pa.array(list(ITEMS))))
        keyed = keyed.filter(compute.is_valid(keyed["key_group"]))
        is_typed = compute.is_null(keyed["data"])
        typed = keyed.filter(is_typed)
        for column in ("key_int", "key_str"):
            of_type = typed.filter(compute.is_valid(typed[column]))
            if len(of_type):
                self._add_typed(column, of_type)
        self._add_pickled(keyed.filter(compute.invert(is_typed)))
        for data in rows.filter(compute.is_null(rows["key_group"]))["data"].to_pylist():
            with suppress(UnreadablePickleError):
                self._loaded(data or b"", None)

    def _add_wholes(self, rows: Any) -> None:
        """One row at most has the state of the task itself. `odd_rows` sees those of one batch."""
        count = int(compute.sum(compute.cast(compute.equal(rows["kind"], "whole"), pa.int64())).as_py() or 0)
        if count and self._has_whole:
            self._find("second state of the task itself", None, count)
        self._has_whole |= count > 0

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
        for row in zip(*(rows[name].to_pylist() for name in PICKLED), strict=True):
            kind, group, key_int, key_str, _, data = row
            shown = key_int if key_int is not None else key_str
            try:
                entry = self._loaded(data, shown)
            except UncheckedPickleError:
                # One that is not too long refers to something outside of it, and a store finds no key in it.
                if shown is not None and len(data) <= OPCODES_MAX:
                    self._find("row that differs from its pickle", shown)
                continue
            except BrokenPickleError:
                continue
            if row != pickled_row(group, data) or (entry is not None and len(entry) != ITEMS[kind]):
                self._find("row that differs from its pickle", shown)
                continue
            identity = None if entry is None else identity_of(entry[0], group, len(data))
            if entry is None or identity is None:
                continue  # reported when an invariant reads this key
            if (right := _group_of(entry[0])) not in {None, group}:
                self._find("key in the wrong group" if right != _NO_KEY else "key that cannot be one", entry[0])
            if kind != "timer":
                self._add_key(entry[0], identity)

    def _loaded(self, data: bytes, key: Any) -> tuple[Any, ...] | None:
        """The items of a pickled entry; None if they cannot be read. A broken pickle, or two of them, are a fault."""
        try:
            entry = load(data)
        except BrokenPickleError:
            self._find("row whose pickle is broken, or is not all of it", key)
            raise
        except UncheckedPickleError:
            raise
        except UnreadablePickleError:
            return None
        return cast("tuple[Any, ...]", entry) if type(entry) is tuple else ()

    def _add_key(self, key: Any, identity: str) -> None:
        """Note a key by what makes it equal to others. Numbers are, whatever their type."""
        if identity[:1] == '"':
            self._add(identity[1:-1], self._texts)
        elif identity.lstrip("-").isdecimal() and -(1 << 63) <= int(identity) < 1 << 63:
            self._numbers.append(np.array([int(identity)], np.int64))
        else:
            self._add(identity, self._others, key)

    def _add(self, key: Any, seen: set[str], shown: Any = None) -> None:
        if key in seen:
            self._find("duplicate key", key if shown is None else shown)
        seen.add(key)

    def _check_numbers(self) -> None:
        if not self._numbers:
            return
        numbers = np.sort(np.concatenate(self._numbers))
        doubled = numbers[1:][numbers[1:] == numbers[:-1]]
        if len(doubled):
            self._find("duplicate key", int(doubled[0]), len(doubled))


_NO_KEY = -1


def _group_of(key: Any) -> int | None:
    """The group of a key. None for an object of a user's class, without which it cannot be computed."""
    try:
        hash(key)
        return key_group(key)
    except UnkeyableError:
        return None
    except TypeError:
        return _NO_KEY


def _shown_key(rows: Any, place: int) -> Any:
    key = rows["key_int"][place].as_py()
    return rows["key_str"][place].as_py() if key is None else key


# -- tables of process classes -------------------------------------------------------------------------------------


def _row_faults(opened: Any, span: tuple[int, int] | None) -> list[Fault]:
    """Faults in a file, each with its statement. `span`: the key groups that the manifest names for it."""
    rows = opened.read()
    groups = rows["key_group"]
    keys, values = (rows[name].combine_chunks() for name in ("key", "value"))
    columns = {**_parts("key", keys), **_parts("value", values), "key_group": groups}
    faults = [
        (5, f"{counted(column.null_count, 'row')} without a value in column {name} of table rows")
        for name, column in columns.items()
        if column.null_count
    ]
    if faults or not len(rows):
        return faults
    found = groups.to_numpy()
    if span != (found.min(), found.max()):
        faults.append((5, "1 file with key groups that the manifest does not name"))
    wrong = np.flatnonzero(groups_of_keys([part.to_numpy(zero_copy_only=False) for part in keys.flatten()]) != found)
    if len(wrong):
        first = keys[int(wrong[0])].as_py()
        faults.append((5, f"{counted(len(wrong), 'key in the wrong group')}; first: {first}"))
    once = pa.table(_parts("key", keys)).group_by(list(_parts("key", keys))).aggregate([([], "count_all")])
    doubled = once.filter(pa.compute.greater(once["count_all"], 1)) if len(once) < len(rows) else once.slice(0, 0)
    if len(doubled):
        first = list(doubled.select(list(_parts("key", keys))).to_pylist()[0].values())
        faults.append((5, f"{counted(len(doubled), 'duplicate key')}; first: {first}"))
    return faults


def _parts(name: str, struct: Any) -> dict[str, Any]:
    return {f"{name}.{field.name}": part for field, part in zip(struct.type, struct.flatten(), strict=True)}
