"""A table of a SQLite database, to read or to write."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import ne
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from backedge.engine.batches.columns import Records
from backedge.engine.io.databases.commit_ledger import ATTEMPTS, COMMITS, DEFINITIONS, CommitLedger, marked_by_hand
from backedge.engine.io.databases.database_errors import DatabaseError, DatabaseLostError, unreadable
from backedge.engine.io.databases.key_ranges import PAGE_ROWS, RANGE_ROWS_MIN, RANGES_MAX
from backedge.engine.io.databases.table_rows import Column, Row, RowCheck, check_texts, key_columns
from backedge.engine.io.marked_output import Check, MarkedSink
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import Rollback, SinkPlace, Source, SplitReader
from backedge.graphs.public import public

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for another one: SQLite has one writer at a time."""

_MAY_PASS = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN"})
_PLAIN: tuple[type, ...] = (type(None), bool, int, float, str, bytes, np.bool_, np.integer, np.float16, np.float32)
_ROW_IDS = ("rowid", "_rowid_", "oid")
"""What the id of a row can be called, where no column has that name."""

_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1


@public
@dataclass(frozen=True)
class SqliteTable(Source[dict[str, Any]], MarkedSink):
    """A table of a SQLite database, a record a row, to read or to write. Database and table must exist.

    Written, each row is there once. With `key`, the columns of a unique index, a row replaces the one that has the same
    key. Read, the table is split by the ids of its rows. All processes of the run must have the file on a local disk.

    >>> SqliteTable("shop.db", "bookings").label
    'bookings'
    """

    database: str
    table: str
    key: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, value in (("database", self.database), ("table", self.table)):
            given: Any = value
            if not isinstance(given, str) or not given or "\0" in given:
                raise BadOptionError(f"SqliteTable is given {option}={given!r}: give a name")
        object.__setattr__(self, "key", key_columns(self.key, self.table))

    @property
    def label(self) -> str | None:
        return self.table

    @property
    def relative_path(self) -> str | None:
        return None if os.path.isabs(self.database) else self.database

    def absolute(self) -> SqliteTable:
        return replace(self, database=os.path.abspath(self.database))

    @property
    def title(self) -> str:
        return f"{self.table!r} of {self.database}"

    # -- reading -------------------------------------------------------------------------------------------------

    def validate_input(self) -> None:
        """Raise unless the table is there, and its rows have ids."""
        with one_transaction(self.database) as execute:
            row_id = row_id_of(self, columns_of(self, execute))
            try:
                execute(f"SELECT {row_id} FROM {quoted(self.table)} LIMIT 1")
            except sqlite3.OperationalError as error:
                raise DatabaseError(
                    f"table {self.title} is read by {row_id}, which it lacks ({error}): copy it to one without the "
                    "words WITHOUT ROWID"
                ) from error

    def splits(self) -> Sequence[str]:
        """Ranges of ids, as the table is now."""
        with one_transaction(self.database) as execute:
            row_id = row_id_of(self, columns_of(self, execute))
            ((first, last),) = execute(f"SELECT min({row_id}) - 1, max({row_id}) FROM {quoted(self.table)}")
        if last is None:
            return []
        width = max(RANGE_ROWS_MIN, math.ceil((last - first) / RANGES_MAX))
        return [f"{after}..{min(after + width, last)}" for after in range(first, last, width)]

    def first_position(self, split: str) -> int:
        """The id before the first one."""
        return int(split.split("..")[0])

    def is_read(self, split: str, position: Any) -> bool:
        return position >= int(split.split("..")[1])

    def open_split(self, split: str, position: Any) -> SplitReader[dict[str, Any]]:
        return _IdReader(self, position, int(split.split("..")[1]))

    # -- writing -------------------------------------------------------------------------------------------------

    def store(self) -> _SqliteStore:
        return _SqliteStore(self)


class _IdReader:
    """Rows behind `position`, up to and including `last`."""

    def __init__(self, table: SqliteTable, position: int, last: int) -> None:
        self.position = position
        self._table = table
        self._last = last
        self._page: list[Row] = []
        self._names: list[str] = []
        self._taken = 0

    @property
    def is_done(self) -> bool:
        return self.position >= self._last

    def read(self, records_max: int) -> list[dict[str, Any]]:
        if self._taken == len(self._page):
            try:
                self._page, self._taken = self._next_page(), 0
            except sqlite3.Error as error:
                raise unreadable(self._table.title, error) from error
        rows = self._page[self._taken : self._taken + records_max]
        self._taken += len(rows)
        is_last = self._taken == len(self._page) < PAGE_ROWS
        self.position = self._last if is_last else rows[-1][-1]
        names = self._names
        return [dict(zip(names, row, strict=False)) for row in rows]

    def _next_page(self) -> list[Row]:
        with one_transaction(self._table.database) as execute:
            columns = columns_of(self._table, execute)
            row_id = row_id_of(self._table, columns)
            self._names = [column.name for column in columns]
            names = ", ".join(map(quoted, self._names))
            return execute(
                f"SELECT {names}, {row_id} FROM {quoted(self._table.table)} WHERE {row_id} > ? AND {row_id} <= ? "
                f"ORDER BY {row_id} LIMIT ?",
                (self.position, self._last, PAGE_ROWS),
            )


class _SqliteStore:
    """One table. A transaction opens the database and closes it: nothing is locked in between."""

    def __init__(self, table: SqliteTable) -> None:
        self._table = table
        self._columns: list[Column] = []

    @property
    def title(self) -> str:
        return self._table.title

    def check(self) -> None:
        table = self._table
        with one_transaction(table.database, writes=True) as execute:
            columns_of(table, execute)
            key = sorted(table.key)
            if key and key not in _unique_keys(table, execute):
                names = ", ".join(map(quoted, table.key))
                raise DatabaseError(
                    f"table {table.title} is to be written with key={table.key}, and has no unique index on it, "
                    f"without which no row can be replaced: CREATE UNIQUE INDEX {quoted(table.table + '_key')} ON "
                    f"{quoted(table.table)} ({names}), or name the columns of one"
                )
            for name in (COMMITS, ATTEMPTS):
                execute(f"CREATE TABLE IF NOT EXISTS {name} {DEFINITIONS[name]}")

    def enter(self, place: SinkPlace) -> Check:
        with one_transaction(self._table.database, writes=True) as execute:
            CommitLedger(execute, place).enter()
            columns = columns_of(self._table, execute)
        key = self._table.key
        self._columns = [replace(column, is_required=column.is_required or column.name in key) for column in columns]
        return RowCheck(place.operator, self._table.title, self._columns, _check_values).check

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        with one_transaction(self._table.database, writes=True) as execute:
            # In their order: only the database knows which keys are equal, and the last row of each has to stay.
            for columns, some in groupby(CommitLedger(execute, place).unmarked(written), tuple):
                execute.many(self._statement(columns), _plain(some))

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        return marked_by_hand(COMMITS, place, transactions)

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        with one_transaction(self._table.database, writes=True) as execute:
            CommitLedger(execute, place).forget(rollback)

    def close(self) -> None:
        """Nothing is open between transactions."""

    def _statement(self, columns: tuple[str, ...]) -> str:
        table, key = self._table, self._table.key
        values = ", ".join("?" * len(columns))
        insert = f"INSERT INTO {quoted(table.table)} ({', '.join(map(quoted, columns))}) VALUES ({values})"
        if not key:
            return insert
        # Columns that the record lacks get their defaults, as if the row had been removed before.
        settable = [quoted(column.name) for column in self._columns if column.is_writable and column.name not in key]
        changes = ", ".join(f"{name} = excluded.{name}" for name in settable)
        change = f"UPDATE SET {changes}" if changes else "NOTHING"
        return f"{insert} ON CONFLICT ({', '.join(map(quoted, key))}) DO {change}"


class _Execute:
    """Executes statements of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()

    def many(self, statement: str, rows: list[Row]) -> None:
        self._connection.executemany(statement, rows)


@contextmanager
def one_transaction(database: str, *, writes: bool = False) -> Generator[_Execute]:
    """One transaction of a database that exists. If it writes, no other does at the same time."""
    if not os.path.isfile(database):
        raise DatabaseError(f"there is no database {database}: create it and its table, or give another path")
    mode = "rw" if writes else "ro"
    connection = None
    try:
        uri = f"file:{quote(os.path.abspath(database))}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        # By default the folder is not synced: after a power cut the journal could be back, and undo the commit.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        yield _Execute(connection)
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorname", "")
        if not any(code.startswith(may_pass) for may_pass in _MAY_PASS):
            raise
        raise DatabaseLostError(f"database {database} cannot be used at the moment ({code}: {error})") from error
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
            raise
        raise DatabaseError(f"{database} is no database, or damaged ({error}): give another path") from error
    finally:
        if connection is not None:
            connection.close()


def columns_of(table: SqliteTable, execute: Callable[..., list[Any]]) -> list[Column]:
    """The columns of a table; `DatabaseError` if there is none, or a view."""
    if execute("SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = ? COLLATE NOCASE", (table.table,)):
        raise DatabaseError(
            f"{table.title} is a view: name a table. To read what a view selects, copy it: CREATE TABLE ... AS SELECT "
            f"* FROM {quoted(table.table)}"
        )
    found = execute('SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', (table.table,))
    if not found:
        tables = [name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        raise DatabaseError(f"there is no table {table.title}: create it, or name one of {', '.join(tables) or 'none'}")
    return [
        Column(name, type, bool(is_never_null) and default is None and not key_place, hidden == 0)
        for name, type, is_never_null, default, key_place, hidden in found
    ]


def row_id_of(table: SqliteTable, columns: Iterable[Column]) -> str:
    """What the id of a row is called; `DatabaseError` if columns have all of its names."""
    taken = {column.name.lower() for column in columns}
    for name in _ROW_IDS:
        if name not in taken:
            return name
    raise DatabaseError(
        f"table {table.title} is read by the ids of its rows, and has columns of all their names, "
        f"{', '.join(_ROW_IDS)}: copy it to a table in which one of these columns has another name"
    )


def _unique_keys(table: SqliteTable, execute: Callable[..., list[Any]]) -> list[list[str]]:
    """The columns of each unique index, sorted; the id of rows has a name, but no index."""
    indexes = execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table.table,))
    found = [
        sorted(name for (name,) in execute("SELECT coalesce(name, '') FROM pragma_index_info(?)", (index,)))
        for (index,) in indexes
    ]
    primary = execute("SELECT name FROM pragma_table_info(?) WHERE pk", (table.table,))
    return [*found, sorted(name for (name,) in primary)]


def quoted(name: str) -> str:
    """A name as SQL takes it.

    >>> print(quoted('say "a" b'))
    "say ""a"" b"
    """
    return '"' + name.replace('"', '""') + '"'


def _check_values(column_type: str, values: list[Any]) -> None:
    """Raise for values that no column of SQLite holds."""
    kinds = set(map(type, values))
    if not all(issubclass(kind, _PLAIN) for kind in kinds):
        raise TypeError("SQLite holds numbers, text, bytes and None")
    check_texts(values, kinds)
    integers: set[type] = {kind for kind in kinds if issubclass(kind, (int, np.integer))}
    if integers:
        found: list[Any] = [value for value in values if type(value) in integers]
        if not _INTEGER_MIN <= min(found) <= max(found) <= _INTEGER_MAX:
            raise OverflowError("SQLite holds integers of 64 bits")
    if len(integers) < len(kinds) and any(map(ne, values, values)):
        raise ValueError("SQLite holds no NaN, and would write NULL in its place")


def _plain(records: Iterable[dict[str, Any]]) -> list[Row]:
    """Records as rows, numbers of numpy as numbers of Python."""
    rows = [tuple(record.values()) for record in records]
    if not any(issubclass(kind, np.generic) for kind in set(map(type, chain.from_iterable(rows)))):
        return rows
    return [tuple(getattr(value, "item", lambda value=value: value)() for value in row) for row in rows]
