"""Tables as sources: every row once, in ranges that other tasks read on at the position of the cut."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge import DatabaseError, PostgresTable, SqliteTable
from backedge.engine.io.databases import key_ranges, sqlite_table
from backedge.engine.io.reader import SourceReader
from backedge.testing import check_source
from tests.databases.postgres_process import PostgresProcess
from tests.files.opened import rest

KEYS = {
    "bigint": "n * 7 - 300",
    "text": "chr(97 + n % 26) || n || ' ''quoted'''",
    "uuid": "md5(n::text)::uuid",
    "timestamptz": "timestamptz '2024-03-30 23:00:00+01' + n * interval '0.123456 s'",
    "numeric": "n / 7.0",
}


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (key_ranges, sqlite_table):
        monkeypatch.setattr(module, "RANGE_ROWS_MIN", 40)
        monkeypatch.setattr(module, "PAGE_ROWS", 7)


def postgres_table(server: PostgresProcess, schema: str, type: str = "bigint", rows: int = 250) -> PostgresTable:
    server.execute(f"CREATE TABLE {schema}.numbers (key {type} PRIMARY KEY, n integer)")
    server.execute(f"INSERT INTO {schema}.numbers SELECT {KEYS[type]}, n FROM generate_series(0, {rows - 1}) AS n")
    return PostgresTable(server.dsn, f"{schema}.numbers")


def sqlite_numbers(folder: Path, rows: int = 250) -> SqliteTable:
    with closing(sqlite3.connect(folder / "numbers.db")) as connection, connection:
        connection.execute("CREATE TABLE numbers (n integer, rowid_ text)")
        connection.executemany("INSERT INTO numbers (rowid, n) VALUES (?, ?)", [(n * 2 - 99, n) for n in range(rows)])
    return SqliteTable(str(folder / "numbers.db"), "numbers")


@pytest.mark.parametrize("type", [pytest.param(type, marks=pytest.mark.slow) for type in KEYS])
def test_a_table_of_postgres_is_read_once_by_any_key(postgres: PostgresProcess, schema: str, type: str):
    source = postgres_table(postgres, schema, type, rows=45)
    assert len(source.splits()) == 2
    rows = postgres.execute(f"SELECT key, n FROM {schema}.numbers")
    check_source(source, [{"key": key, "n": n} for key, n in rows], seeds=range(4))


def test_a_table_of_sqlite_is_read_once_by_its_row_ids(tmp_path: Path):
    source = sqlite_numbers(tmp_path, rows=50)
    source.validate_input()
    assert len(source.splits()) == 3
    check_source(source, [{"n": n, "rowid_": None} for n in range(50)])


def test_a_large_table_has_no_more_ranges_than_it_may(postgres: PostgresProcess, schema: str, tmp_path: Path):
    assert len(postgres_table(postgres, schema, rows=20_000).splits()) <= key_ranges.RANGES_MAX + 1
    assert len(sqlite_numbers(tmp_path, 20_000).splits()) <= key_ranges.RANGES_MAX + 1


def test_an_empty_table_has_nothing_to_read(postgres: PostgresProcess, schema: str, tmp_path: Path):
    assert postgres_table(postgres, schema, rows=0).splits() == []
    assert sqlite_numbers(tmp_path, 0).splits() == []


def first_rows(source: PostgresTable | SqliteTable) -> list[Any]:
    return SourceReader("rows", source, {source.splits()[0]: source.first_position(source.splits()[0])}).read(100)


def test_a_row_that_python_has_no_value_for_is_an_error_of_the_table(postgres: PostgresProcess, schema: str):
    postgres.execute(f"CREATE TABLE {schema}.days (id integer PRIMARY KEY, day date)")
    postgres.execute(f"INSERT INTO {schema}.days VALUES (1, 'infinity')")
    with pytest.raises(DatabaseError, match=rf"'{schema}.days' of .*: .*infinity.*; change"):
        first_rows(PostgresTable(postgres.dsn, f"{schema}.days"))


def test_a_text_of_sqlite_that_is_no_text_is_an_error_of_the_table(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "n.db")) as connection, connection:
        connection.execute("CREATE TABLE n AS SELECT cast(x'ff' AS text) AS name")
    with pytest.raises(DatabaseError, match=r"'n' of .*n\.db.*'name'.*; change"):
        first_rows(SqliteTable(str(tmp_path / "n.db"), "n"))


def test_rows_that_are_added_behind_are_left_to_the_next_run(postgres: PostgresProcess, schema: str):
    source = postgres_table(postgres, schema)
    splits = source.splits()
    postgres.execute(f"INSERT INTO {schema}.numbers VALUES (99999, 250)")
    postgres.execute(f"DELETE FROM {schema}.numbers WHERE n = 249")
    found = rest(SourceReader("rows", source, {split: source.first_position(split) for split in splits}))
    assert sorted(record["n"] for record in found) == list(range(249))


def test_a_key_must_be_one_column_that_is_unique(postgres: PostgresProcess, schema: str):
    postgres.execute(f"CREATE TABLE {schema}.pairs (a integer, b integer, c integer UNIQUE, PRIMARY KEY (a, b))")
    pairs = f"{schema}.pairs"
    for key in ((), "c", "a"):
        with pytest.raises(DatabaseError, match="key"):
            PostgresTable(postgres.dsn, pairs, key=key).splits()
    with pytest.raises(DatabaseError, match=r"'d'.*a, b, c"):
        PostgresTable(postgres.dsn, pairs, key="d").splits()
    postgres.execute(f"ALTER TABLE {pairs} ALTER c SET NOT NULL")
    assert PostgresTable(postgres.dsn, pairs, key="c").splits() == []


@pytest.mark.parametrize("names", [("rowid",), ("RowId", "_rowid_"), ("oid",)])
def test_columns_that_have_a_name_of_the_row_id_are_columns(tmp_path: Path, names: tuple[str, ...]):
    path = tmp_path / "n.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE n (n integer, {', '.join(names)})")
        connection.executemany("INSERT INTO n (n, " + names[0] + ") VALUES (?, ?)", [(n, n // 3) for n in range(100)])
    source = SqliteTable(str(path), "n")
    source.validate_input()
    splits = source.splits()
    found = rest(SourceReader("rows", source, {split: source.first_position(split) for split in splits}))
    assert [(record["n"], record[names[0]]) for record in found] == [(n, n // 3) for n in range(100)]


@pytest.mark.parametrize(
    ("definition", "named"),
    [("(rowid, oid, _ROWID_)", "rowid, _rowid_, oid"), ("(key text PRIMARY KEY) WITHOUT ROWID", "WITHOUT ROWID")],
)
def test_a_table_without_row_ids_or_whose_columns_have_all_their_names_is_refused(
    tmp_path: Path, definition: str, named: str
):
    with closing(sqlite3.connect(tmp_path / "n.db")) as connection, connection:
        connection.execute(f"CREATE TABLE n {definition}")
    with pytest.raises(DatabaseError, match=named):
        SqliteTable(str(tmp_path / "n.db"), "n").validate_input()
