"""Tables of real databases under simulated schedules: crashes, zombies, aborted epochs, late removals, older cuts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backedge import Flow, PostgresTable, Range, Sink, SqliteTable, simulate
from backedge.engine.io.databases.sqlite_table import one_transaction
from backedge.engine.io.marked_output import MarkedStore
from tests.databases.postgres_process import PostgresProcess

RECORDS = 24


@dataclass(frozen=True)
class RehearsedPostgres(PostgresTable):
    """A schema for each schedule, all of them below `table`."""

    def rehearse(self, folder: str) -> Sink[Any]:
        schema = f"{self.table}_{hashlib.blake2b(folder.encode(), digest_size=8).hexdigest()}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(f"ROLLBACK PREPARED '{gid}'")
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"CREATE TABLE {schema}.rows (n integer)")
        return replace(self, table=f"{schema}.rows")

    def published(self) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return [{"n": n} for (n,) in connection.execute(f"SELECT n FROM {self.table}")]

    def store(self) -> Any:
        return Repeating(super().store())


@dataclass(frozen=True)
class RehearsedSqlite(SqliteTable):
    def rehearse(self, folder: str) -> Sink[Any]:
        return RehearsedSqliteBelow(f"{folder}/rows.db", "rows")


class Repeating:
    """Delivers twice, as a process does that dies before it has noted the first delivery."""

    def __init__(self, store: MarkedStore) -> None:
        self._store = store
        self.check, self.enter, self.forget, self.close = store.check, store.enter, store.forget, store.close

    def commit(self, *delivery: Any) -> None:
        for _ in range(2):
            self._store.commit(*delivery)


@dataclass(frozen=True)
class RehearsedSqliteBelow(SqliteTable):
    def store(self) -> Any:
        return Repeating(super().store())

    def validate_output(self, place: Any, fresh: bool) -> None:
        Path(self.database).touch()
        with one_transaction(self.database, writes=True) as execute:
            execute("CREATE TABLE IF NOT EXISTS rows (n integer)")
        super().validate_output(place, fresh)

    def published(self) -> list[Any]:
        with one_transaction(self.database) as execute:
            return [{"n": n} for (n,) in execute("SELECT n FROM rows")]


def halving(sink: Any) -> Flow:
    """Even numbers go round and are halved; odd ones are written."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(Range(RECORDS + 1, start=1), name="numbers")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.map(lambda n: {"n": n}, name="row").write(sink, name="odd")
    return flow


def halved(n: int) -> int:
    return n if n % 2 else halved(n // 2)


@pytest.fixture
def rehearsed(postgres: PostgresProcess, schema: str) -> Iterator[RehearsedPostgres]:
    yield RehearsedPostgres(postgres.dsn, schema)
    for (each,) in postgres.execute(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{schema}\\_%'"):
        for gid in postgres.prepared():
            postgres.execute(f"ROLLBACK PREPARED '{gid}'")
        postgres.execute(f"DROP SCHEMA {each} CASCADE")


def judge(sink: Any, schedules: int) -> None:
    result = simulate(halving(sink), seeds=range(schedules), crashes=3)
    rows = sorted(row["n"] for row in result.outputs["odd"])
    assert rows == sorted(halved(n) for n in range(1, RECORDS + 1))
    assert result.crashes > schedules and result.restores_with_log > 0 and result.rescaled > 0


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [4, pytest.param(15, marks=pytest.mark.long)])
@pytest.mark.parametrize("prepared", [False, True])
def test_each_row_is_in_postgres_once_under_every_schedule(
    rehearsed: RehearsedPostgres, prepared: bool, schedules: int
):
    judge(replace(rehearsed, prepared=prepared), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [8, pytest.param(60, marks=pytest.mark.long)])
def test_each_row_is_in_sqlite_once_under_every_schedule(schedules: int):
    judge(RehearsedSqlite("rehearsed.db", "rows"), schedules)
