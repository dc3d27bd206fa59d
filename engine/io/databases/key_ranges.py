"""Reads a table of PostgreSQL by ranges of a key.

A split is a range of keys: behind `after`, up to and including `last`. Its name has both, as the server writes them,
and a position is the number of rows that were read and the last key of them. So a position means the same in another
task, and after a restart of the server. Rows behind the largest key there was at the start are left to the next run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from backedge.engine.io.databases.database_errors import DatabaseError, unreadable
from backedge.engine.io.databases.postgres_server import Table, driver, names_of

RANGES_MAX = 128
RANGE_ROWS_MIN = 1_000
PAGE_ROWS = 2_000
"""How many rows a query reads: more than a task takes at a time."""


Position = tuple[int] | tuple[int, str]
"""How many rows of a range were read, and the key of the last; nothing was read yet: (0,)."""

START: Position = (0,)


class KeyRange(NamedTuple):
    """The rows of one split."""

    column: str
    after: str | None
    last: str

    @property
    def name(self) -> str:
        """The name of the split.

        >>> KeyRange.parse(KeyRange("id", None, "20").name)
        KeyRange(column='id', after=None, last='20')
        """
        return json.dumps(self)

    def is_read(self, position: Position) -> bool:
        return position[1:] == (self.last,)

    @staticmethod
    def parse(name: str) -> KeyRange:
        return KeyRange(*json.loads(name))


def list_ranges(connection: Any, table: Table, key: Sequence[str]) -> list[KeyRange]:
    """The ranges of the table as it is now, of about as many rows each."""
    column = _key_column(connection, table, key)
    query = driver().sql.SQL("""
        WITH numbered AS (SELECT {key} AS key, row_number() OVER (ORDER BY {key}) AS number, count(*) OVER () AS rows
                          FROM {table})
        SELECT key::text FROM numbered
        WHERE number = rows OR number % greatest({rows_min}, ceil(rows / {ranges_max}::numeric)::bigint) = 0
        ORDER BY number""")
    found = connection.execute(
        query.format(
            key=driver().sql.Identifier(column),
            table=table.quoted,
            rows_min=driver().sql.Literal(RANGE_ROWS_MIN),
            ranges_max=driver().sql.Literal(RANGES_MAX),
        )
    )
    ends: list[str] = [last for (last,) in found]
    return [KeyRange(column, after, last) for after, last in zip([None, *ends[:-1]], ends, strict=False)]


def _key_column(connection: Any, table: Table, key: Sequence[str]) -> str:
    """The column to read by: unique and never null, or positions would skip rows."""
    columns = {found.name: found for found in table.columns(connection)}
    missing = [name for name in key if name not in columns]
    if missing:
        raise DatabaseError(f"table {table.title} has no column {missing[0]!r}: it has {', '.join(columns)}")
    unique = table.unique_keys(connection)
    wanted = tuple(key) or (unique[0] if unique else ())
    if len(wanted) != 1 or wanted not in unique or not table.is_never_null(connection, wanted[0]):
        asked = f"key={tuple(key)}" if key else "its primary key"
        raise DatabaseError(
            f"table {table.title} is read by ranges of one column that is unique and NOT NULL, which {asked} is not: "
            "name one by key=, with a unique index on it"
        )
    return wanted[0]


class KeyReader:
    def __init__(self, table: Table, range: KeyRange, position: Position) -> None:
        self.position = position
        self._table = table
        self._range = range
        self._page: list[tuple[Any, ...]] = []
        self._names: list[str] = []
        self._taken = 0

    @property
    def is_done(self) -> bool:
        """Whether the last row was read. Its connection is closed then."""
        return self._range.is_read(self.position)

    def read(self, records_max: int) -> list[dict[str, Any]]:
        if self._taken == len(self._page):
            try:
                self._page, self._taken = self._table.server.run(self._next_page), 0
            except driver().Error as error:
                raise unreadable(self._table.title, error) from error
        rows = self._page[self._taken : self._taken + records_max]
        self._taken += len(rows)
        is_last = self._taken == len(self._page) < PAGE_ROWS
        # The last row may have gone since the range was listed.
        key = self._range.last if is_last else rows[-1][-1]
        self.position = (self.position[0] + len(rows), key)
        if self.is_done:
            self._table.server.close()
        names = self._names
        return [dict(zip(names, row, strict=False)) for row in rows]

    def _next_page(self, connection: Any) -> list[tuple[Any, ...]]:
        sql = driver().sql
        column, after, last = self._range
        behind = self.position[1] if len(self.position) > 1 else after
        types = {found.name: found.type for found in self._table.columns(connection)}
        self._names = list(types)
        parts = {
            "names": names_of(self._names),
            "key": sql.Identifier(column),
            "table": self._table.quoted,
            "type": sql.SQL(types[column]),
        }
        # Literals: a name of a column may have a % in it, which parameters would take for their mark.
        lower = "" if behind is None else "{key} > {behind}::{type} AND "
        # The key with its table: by itself it would be the text that is selected, which has another order.
        query = (
            "SELECT {names}, {key}::text FROM {table} AS ranged WHERE " + lower + "{key} <= {last}::{type} "
            "ORDER BY ranged.{key} LIMIT {rows}"
        )
        values = {"behind": behind, "last": last, "rows": PAGE_ROWS}
        literals = {name: sql.Literal(value) for name, value in values.items()}
        return connection.execute(sql.SQL(query).format(**parts, **literals)).fetchall()
