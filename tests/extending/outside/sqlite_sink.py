"""A transactional sink: rows are staged in one table when a cut is taken, and moved to another when it is complete."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from backedge import Rollback, Sink, SinkPlace

TABLES = """
CREATE TABLE IF NOT EXISTS staged (name TEXT PRIMARY KEY, records TEXT);
CREATE TABLE IF NOT EXISTS noted (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS owner (run TEXT);
CREATE TABLE IF NOT EXISTS published (record TEXT);
"""


@dataclass(frozen=True)
class SqliteSink(Sink[Any]):
    """Writes records as JSON into the table `published` of a SQLite database, each exactly once."""

    database: str

    @property
    def relative_path(self) -> str | None:
        return None if os.path.isabs(self.database) else self.database

    def absolute(self) -> SqliteSink:
        return replace(self, database=os.path.abspath(self.database))

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        with transaction(self.database) as database:
            database.executescript(TABLES)

    def claim(self, place: SinkPlace) -> bool:
        with transaction(self.database) as database:
            owners = [run for (run,) in database.execute("SELECT run FROM owner")]
            if owners not in ([], [place.run]):
                raise ValueError(f"run {owners[0]} writes to {self.database}")
            if not owners:
                database.execute("INSERT INTO owner VALUES (?)", (place.run,))
            return not owners

    def release(self, place: SinkPlace) -> None:
        with transaction(self.database) as database:
            database.execute("DELETE FROM owner WHERE run = ?", (place.run,))

    def open_writer(self, place: SinkPlace) -> SqliteWriter:
        return SqliteWriter(self.database)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        with transaction(self.database) as database:
            for table, goes in (("staged", rollback.removes), ("noted", rollback.forgets)):
                names = [name for (name,) in database.execute(f"SELECT name FROM {table}")]
                database.executemany(f"DELETE FROM {table} WHERE name = ?", [(name,) for name in names if goes(name)])

    def rehearse(self, folder: str) -> SqliteSink:
        return replace(self, database=os.path.join(folder, "rehearsal.db"))

    def published(self) -> list[Any]:
        with transaction(self.database) as database:
            return [json.loads(record) for (record,) in database.execute("SELECT record FROM published")]


class SqliteWriter:
    """One task. The open transaction is in memory: no lock is held between two calls."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._open: list[Any] = []

    def write(self, records: list[Any]) -> None:
        self._open += records

    def prepare(self, name: str) -> bool:
        if not self._open:
            return False
        with transaction(self._database) as database:
            database.execute("INSERT INTO staged VALUES (?, ?)", (name, json.dumps(self._open)))
        self._open = []
        return True

    def commit(self, name: str) -> None:
        with transaction(self._database) as database:
            found = database.execute("SELECT records FROM staged WHERE name = ?", (name,)).fetchone()
            if found is None:
                if database.execute("SELECT 1 FROM noted WHERE name = ?", (name,)).fetchone() is None:
                    raise LookupError(f"transaction {name} is neither staged nor published in {self._database}")
                return
            rows = [(json.dumps(record),) for record in json.loads(found[0])]
            database.executemany("INSERT INTO published VALUES (?)", rows)
            database.execute("DELETE FROM staged WHERE name = ?", (name,))
            database.execute("INSERT INTO noted VALUES (?)", (name,))


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """One transaction of the database: all of it or nothing, and no other at the same time."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.commit()
    finally:
        connection.close()
