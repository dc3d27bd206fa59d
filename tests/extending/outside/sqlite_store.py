"""A store in one SQLite database: sqlite:///PATH/NAME.db keeps the cuts of all jobs in a table of files."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from backedge import FileFacts, OutcomeUnknownError, Store

TABLE = "CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, data BLOB, written_s REAL)"


class SqliteStore(Store):
    """What follows the name of the database in the location is a folder, and begins the names of its files."""

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        path, ending, folder = self._location.removeprefix("sqlite://").partition(".db")
        self._database = path + ending
        self._prefix = f"{folder.strip('/')}/" if folder else ""

    @property
    def location(self) -> str:
        return self._location

    def below(self, folder: str) -> SqliteStore:
        return type(self)(f"{self._location}/{folder}")

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        query, whole = "SELECT substr(data, ?, ?) FROM files WHERE name = ?", 1 << 30
        with self._transaction() as files:
            found = files.execute(query, (start + 1, whole if length is None else length, self._full(name))).fetchone()
        if found is None:
            raise FileNotFoundError(f"there is no file {self._full(name)} in {self._database}")
        return found[0] or b""

    def facts(self, name: str) -> FileFacts | None:
        with self._transaction() as files:
            query = "SELECT length(data), written_s FROM files WHERE name = ?"
            found = files.execute(query, (self._full(name),)).fetchone()
        return None if found is None else FileFacts(*found)

    def write(self, files: Mapping[str, bytes]) -> None:
        rows = [(self._full(name), data, time.time()) for name, data in files.items()]
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._transaction() as files:
                row = (self._full(name), data, time.time())
                return files.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?)", row).rowcount == 1
        except OSError as error:
            # Perhaps the commit has failed, and perhaps only its reply.
            raise OutcomeUnknownError(f"whether {name} was created is unknown: {error}") from error

    def list(self, folder: str = "") -> list[str]:
        prefix = self._prefix + (f"{folder}/" if folder else "")
        with self._transaction() as files:
            rows = files.execute("SELECT name FROM files WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
            return [name.removeprefix(self._prefix) for (name,) in rows]

    def remove(self, names: Collection[str]) -> None:
        with self._transaction() as files:
            files.executemany("DELETE FROM files WHERE name = ?", [(self._full(name),) for name in names])

    def _full(self, name: str) -> str:
        return self._prefix + name

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        connection = None
        try:
            connection = sqlite3.connect(self._database, timeout=60, isolation_level=None)
            connection.execute(TABLE)
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
        except sqlite3.Error as error:
            raise OSError(f"{self._database}: {error}") from error
        finally:
            if connection is not None:
                connection.close()
