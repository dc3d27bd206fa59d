"""A source over a table: its splits are ranges of row ids, and a position is the last id that was read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from backedge import Source

ROWS_MAX = 20


@dataclass(frozen=True)
class SqliteTable(Source[dict[str, Any]]):
    """The rows of a table of a SQLite database, as dicts."""

    database: str
    table: str

    @property
    def label(self) -> str:
        return self.table

    @property
    def relative_path(self) -> str | None:
        return None if os.path.isabs(self.database) else self.database

    def absolute(self) -> SqliteTable:
        return replace(self, database=os.path.abspath(self.database))

    def validate_input(self) -> None:
        if not os.path.exists(self.database):
            raise FileNotFoundError(f"there is no database {self.database}")

    def splits(self) -> Sequence[str]:
        ((last,),) = _rows(self.database, f"SELECT coalesce(max(rowid), 0) FROM {self.table}")
        return [f"{first}-{min(first + ROWS_MAX, last)}" for first in range(0, last, ROWS_MAX)]

    def first_position(self, split: str) -> int:
        return int(split.split("-")[0])

    def open_split(self, split: str, position: int) -> RowRange:
        return RowRange(self, position, int(split.split("-")[1]))


class RowRange:
    """Rows behind `position`, up to and including `last`."""

    def __init__(self, source: SqliteTable, position: int, last: int) -> None:
        self.position = position
        self._source = source
        self._last = last

    @property
    def is_done(self) -> bool:
        return self.position >= self._last

    def read(self, records_max: int) -> list[dict[str, Any]]:
        query = (
            f"SELECT rowid AS _id, * FROM {self._source.table} WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
        )
        rows = _rows(self._source.database, query, self.position, self._last, records_max)
        self.position = rows[-1]["_id"] if rows else self._last
        return [{name: row[name] for name in row.keys() if name != "_id"} for row in rows]  # noqa: SIM118


def _rows(database: str, query: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()
