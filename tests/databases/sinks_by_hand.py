"""A sink without a run: the test is the run that opens its writers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge import PostgresTable, SinkPlace, SqliteTable
from backedge.engine.io.files.kept_in_store import KeptInStore
from tests.databases.postgres_process import PostgresProcess
from tests.files.opened import folder_store

SINK = "booked"
COLUMNS = "id integer PRIMARY KEY, name text DEFAULT 'nameless'"


def transaction(epoch: int, *, task: int = 0, attempt: int = 1) -> str:
    return f"{SINK}.{task}.attempt-{attempt}.epoch-{epoch}"


def place_in(folder: Path, *, attempt: int = 1, task: int = 0, run: str = "5f3a", job: str = "transfers") -> SinkPlace:
    store = folder_store(folder / "kept").below(SINK)
    kept = KeptInStore(SINK, store, lambda sink, transaction, records: None)
    return SinkPlace(SINK, job, run, attempt, task, kept)


class Rows:
    """A table of either database, with the writers of a sink."""

    def __init__(self, folder: Path, server: PostgresProcess | None = None, schema: str = "") -> None:
        self.folder = folder
        # None for SQLite.
        self.server: Any = server
        self.schema = schema
        self.opened: list[Any] = []
        self.path = str(folder / "rows.db")
        self.name = f"{schema}.rows" if server else "rows"
        if server is None:
            Path(self.path).touch()
        self.execute(f"CREATE TABLE {self.name} ({COLUMNS})")
        self.table = self.described()
        self.table.validate_output(place_in(folder), fresh=True)

    def described(self, **options: Any) -> PostgresTable | SqliteTable:
        if self.server is None:
            return SqliteTable(self.path, self.name, **options)
        return PostgresTable(options.pop("dsn", self.server.dsn), self.name, **options)

    def writer(self, *, attempt: int = 1, task: int = 0, run: str = "5f3a", **options: Any) -> Any:
        table = self.described(**options) if options else self.table
        self.opened.append(table.open_writer(place_in(self.folder, attempt=attempt, task=task, run=run)))
        return self.opened[-1]

    def close(self) -> None:
        for writer in self.opened:
            writer.close()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        if self.server is not None:
            return self.server.execute(statement)
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.execute(f"SELECT id FROM {self.name}"))

    def markers(self) -> list[str]:
        prefix = f"{self.schema}." if self.schema else ""
        return sorted(name for (name,) in self.execute(f"SELECT transaction_name FROM {prefix}backedge_commits"))


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.slow), "sqlite"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    names = () if request.param == "sqlite" else ("postgres", "schema")
    with closing(Rows(tmp_path, *map(request.getfixturevalue, names))) as made:
        yield made


@pytest.fixture
def postgres_rows(postgres: PostgresProcess, schema: str, tmp_path: Path) -> Iterator[Rows]:
    with closing(Rows(tmp_path, postgres, schema)) as made:
        yield made


def records(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each, "name": f"n{each}"} for each in ids]


class Rolls:
    """A rollback that names what goes, and settles nothing."""

    settles = False

    def __init__(
        self, *, removes: Iterable[str] = (), forgets: Iterable[str] = (), is_over: bool = False, before: int = 0
    ) -> None:
        self._removes = set(removes)
        self._forgets = set(forgets)
        self._before = before
        self.is_over = is_over

    def removes(self, transaction: str) -> bool:
        return transaction in self._removes

    def forgets(self, transaction: str) -> bool:
        return transaction in self._forgets

    def removes_open(self, attempt: int) -> bool:
        return attempt < self._before

    def is_settled(self, transaction: str) -> bool:
        return False
