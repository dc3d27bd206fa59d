"""Rows and the marker of a transaction in one transaction of the database: a commit counts once, however it goes."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from backedge import PostgresTable, SinkPlace, UncommittedOutputError, UnwritableRecordError
from backedge.engine.io.databases.commit_ledger import marked_by_hand
from backedge.engine.io.databases.postgres_rows import session_of
from backedge.engine.io.databases.sqlite_table import one_transaction
from backedge.engine.io.databases.table_rows import Column, RowCheck
from backedge.engine.io.marked_output import Check, MarkedSink
from backedge.graphs.io import Rollback
from backedge.testing import check_sink
from tests.databases.fault_proxy import FaultProxy, Strike
from tests.databases.postgres_process import PostgresProcess
from tests.databases.sinks_by_hand import Rolls, Rows, place_in, postgres_rows, records, rows, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import publish, stage

__all__ = ["postgres_rows", "rows"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"key": "n"}, {"prepared": True}], ids=["marked", "by key", "prepared"])
@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 200), marks=pytest.mark.long)], ids=["few", "many"])
def test_each_row_is_in_postgres_once_whatever_happens(
    postgres: PostgresProcess, schema: str, options: dict[str, Any], seeds: range, evidence: Evidence
):
    def new() -> PostgresTable:
        name = f"{schema}.rows_{next(numbers)}"
        postgres.execute(f"CREATE TABLE {name} (n integer UNIQUE)")
        return PostgresTable(postgres.dsn, name, **options)

    def published(sink: PostgresTable) -> list[Any]:
        return [{"n": n} for (n,) in postgres.execute(f"SELECT n FROM {sink.table}")]

    numbers = count()
    happened = check_sink(new, published, seeds=seeds)
    for fault in ("without an answer", "process dies", "process sleeps"):
        evidence.happened(f"a {fault}", sum(times for what, times in happened.items() if fault in what))
    evidence.survived("schedules in which each row was written once", len(seeds))


def test_markers_go_when_nothing_asks_for_them_and_the_attempt_with_the_last(rows: Rows):
    writer = rows.writer()
    for epoch in (1, 2):
        publish(writer, records(epoch), transaction(epoch))
    place = place_in(rows.folder)
    rows.table.roll_back(place, Rolls(forgets=[transaction(1)]))
    assert rows.markers() == [transaction(2)]
    prefix = f"{rows.schema}." if rows.schema else ""
    # Carried out late, when another attempt has begun.
    rows.table.roll_back(place, Rolls(forgets=[transaction(2)], is_over=True, before=1))
    assert rows.execute(f"SELECT attempt FROM {prefix}backedge_attempts") == [(1,)]
    rows.table.roll_back(place, Rolls(is_over=True, before=2))
    assert rows.execute(f"SELECT attempt FROM {prefix}backedge_attempts") == []
    assert rows.ids() == [1, 2]


def test_the_markers_of_another_run_stay(rows: Rows):
    for run in ("5f3a", "77aa"):
        writer = rows.writer(run=run)
        publish(writer, records(len(rows.ids())), transaction(1))
        writer.close()
    assert rows.ids() == [0, 1], "a transaction of the same name in another run is another one"
    rows.table.roll_back(place_in(rows.folder), Rolls(forgets=[transaction(1)]))
    assert rows.markers() == [transaction(1)]


def test_a_row_replaces_the_one_of_its_key(rows: Rows):
    rows.execute(f"INSERT INTO {rows.name} VALUES (1, 'old'), (2, 'old'), (3, 'kept')")
    writer = rows.writer(key="id")
    writer.write([{"id": 1, "name": "first"}, {"id": 2, "name": "new"}, {"id": 1, "name": "last"}])
    publish(writer, [{"id": 4, "name": "added"}, {"id": 2}], transaction(1))
    found = dict(rows.execute(f"SELECT id, name FROM {rows.name}"))
    assert found == {1: "last", 2: "nameless", 3: "kept", 4: "added"}


def test_the_last_row_stays_of_keys_that_only_the_database_takes_for_equal(rows: Rows):
    writer = rows.writer(key="id")
    writer.write([{"id": 20, "name": "first"}, {"id": "20"}, {"name": "last", "id": 20}, {"id": 3, "name": "x"}])
    publish(writer, [{"id": 4, "name": "x"}, {"id": "3"}, {"id": "04", "name": "last"}], transaction(1))
    found = dict(rows.execute(f"SELECT id, name FROM {rows.name}"))
    assert found == {20: "last", 3: "nameless", 4: "last"}


def test_rows_without_a_value_in_the_key_replace_none(rows: Rows):
    rows.execute(f"CREATE UNIQUE INDEX by_name ON {rows.name} (name)")
    writer = rows.writer(key="name")
    publish(
        writer,
        [{"id": 1, "name": None}, {"id": 2, "name": None}, {"id": 3, "name": "x"}, {"id": 4, "name": "x"}],
        transaction(1),
    )
    assert rows.ids() == [1, 2, 4]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"id": 1, "nmae": "x"}, "no column 'nmae'"),
        ({"name": "x"}, "column 'id' is lacking"),
        ((1, "x"), "has no columns"),
        ({"id": object()}, "cannot hold a value of type object"),
        ({"id": 1, "name": "bad \ud83d"}, "column 'name' cannot hold .* surrogates"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_before_the_cut(rows: Rows, record: object, told: str):
    writer = rows.writer(key="id")
    with pytest.raises(UnwritableRecordError, match=told):
        writer.write([{"id": 5}, record])
    assert not writer.prepare(transaction(1)), "a batch is taken whole or not at all"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "a\0b"),
        ("tags", ["fine", "bad \ud83d"]),
        ("tags", [1, "x"]),
        ("facts", {"a": ["bad \ud83d"]}),
        ("facts", "\\\0"),
        ("facts", [math.nan]),
        ("facts", {"a": {1: "x", "1": "y"}}),
    ],
)
def test_a_value_that_postgresql_cannot_hold_is_refused_before_the_cut(postgres_rows: Rows, column: str, value: object):
    rows = postgres_rows
    rows.execute(f"ALTER TABLE {rows.name} ADD COLUMN facts jsonb, ADD COLUMN tags text[]")
    writer = rows.writer()
    writer.write([{"id": 1, "name": "x", "tags": ["x"], "facts": "\\u0000"}])
    with pytest.raises(UnwritableRecordError, match=rf"record: .*'id': 3.*\n.*'{column}'|'{column}' cannot hold"):
        writer.write([{"id": 2, "name": "x", "tags": ["x"], "facts": {}}, {"id": 3, column: value}])
    writer.prepare(transaction(1))
    writer.commit(transaction(1))
    assert rows.ids() == [1]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, np.uint64(2**63), math.nan, np.datetime64("2024-01-01", "ns")])
def test_a_value_that_sqlite_cannot_hold_is_refused_before_the_cut(tmp_path: Path, value: object):
    rows = Rows(tmp_path)
    writer = rows.writer()
    with pytest.raises(UnwritableRecordError, match="column 'name'"):
        writer.write([{"id": 1, "name": 2**63 - 1}, {"id": 2, "name": value}])
    assert not writer.prepare(transaction(1))


class RefusingStore:
    """A table whose driver raises an error of its own at the commit."""

    title = "'rows'"

    def check(self) -> None:
        return None

    def enter(self, place: SinkPlace) -> Check:
        columns = [Column("id", "integer", True, True)]
        return RowCheck(place.operator, self.title, columns, lambda type, values: None).check

    def commit(self, place: SinkPlace, written: Mapping[str, Any]) -> None:
        raise RecursionError("too deep")

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        return f"mark {', '.join(transactions)} of {place.operator} by hand"

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        return None

    def close(self) -> None:
        return None


class RefusingTable(MarkedSink):
    title = RefusingStore.title

    def store(self) -> RefusingStore:
        return RefusingStore()


def test_a_commit_of_sqlite_is_durable_when_it_returns(tmp_path: Path):
    rows = Rows(tmp_path)
    with one_transaction(rows.table.database, writes=True) as execute:
        (synced,) = execute("PRAGMA synchronous")
    assert synced == (3,), "EXTRA: the folder as well"


def test_whatever_a_driver_raises_at_a_commit_keeps_the_records_and_says_how_to_finish(tmp_path: Path):
    writer: Any = RefusingTable().open_writer(place_in(tmp_path))
    stage(writer, [{"id": 1}], transaction(1))
    for _ in range(2):
        with pytest.raises(UncommittedOutputError, match=f"mark {transaction(1)} of booked by hand and resume"):
            writer.commit(transaction(1))
    assert list(tmp_path.glob("kept/*/prepared/*")), "the records are kept"
    writer.close()


def test_a_commit_that_fails_for_good_keeps_its_records_until_the_table_takes_them(rows: Rows, evidence: Evidence):
    writer = rows.writer()
    rows.execute(f"INSERT INTO {rows.name} VALUES (2, 'in the way')")
    stage(writer, records(1, 2), transaction(1))
    for _ in range(2):
        with pytest.raises(UncommittedOutputError, match=r"2 records.*resume") as failed:
            writer.commit(transaction(1))
        evidence.happened("commits that failed", 1)
    assert "rows" in str(failed.value) and transaction(1) in str(failed.value)
    assert rows.ids() == [2] and rows.markers() == []
    rows.execute(f"DELETE FROM {rows.name}")
    resumed = rows.writer(attempt=2)
    resumed.commit(transaction(1))
    evidence.same(rows.ids(), [1, 2])


def test_the_statement_of_the_error_gives_up_the_records_of_a_transaction(rows: Rows):
    writer = rows.writer()
    rows.execute(f"INSERT INTO {rows.name} VALUES (2, 'in the way')")
    stage(writer, records(1, 2), transaction(1))
    with pytest.raises(UncommittedOutputError) as failed:
        writer.commit(transaction(1))
    statement = str(failed.value).split("execute ")[1].split(" and resume")[0]
    rows.execute(statement)
    writer.commit(transaction(1))
    assert rows.ids() == [2]


def test_the_statement_of_the_error_quotes_the_name_of_the_sink(tmp_path: Path):
    place = dataclasses.replace(place_in(tmp_path), operator="the day's")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE commits (run, sink, transaction_name)")
        connection.execute(marked_by_hand("commits", place, ["the day's.0"]).removeprefix("execute "))
        assert connection.execute("SELECT * FROM commits").fetchall() == [("5f3a", "the day's", "the day's.0")]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_process_that_stands_still_in_a_commit_holds_up_no_later_attempt(postgres_rows: Rows, prepared: bool):
    rows = postgres_rows
    rows.writer(prepared=prepared).close()
    zombie = psycopg.connect(rows.server.dsn, application_name=session_of(place_in(rows.folder)))
    zombie.execute(f"SELECT attempt FROM {rows.schema}.backedge_attempts FOR SHARE")
    stranger = psycopg.connect(rows.server.dsn, application_name=session_of(place_in(rows.folder, run="77aa")))
    rows.writer(attempt=2, prepared=prepared)
    with pytest.raises(psycopg.OperationalError):
        zombie.execute("SELECT 1")
    assert stranger.execute("SELECT 1").fetchone() == (1,)
    zombie.close()
    stranger.close()


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_commit_whose_reply_is_lost_counts_once(postgres_rows: Rows, side: Any, evidence: Evidence):
    rows = postgres_rows
    strike = Strike("COMMIT", side)
    with FaultProxy(rows.server.socket) as proxy:
        writer = rows.writer(dsn=proxy.dsn)
        stage(writer, records(1, 2), transaction(1))
        committed: list[list[int]] = []
        strike.action = lambda client: committed.append(rows.ids())
        proxy.plan(strike)
        writer.commit(transaction(1))
        writer.close()
    assert strike.has_happened.is_set()
    assert committed == [[] if side == "before" else [1, 2]], "the server had committed exactly when its reply was lost"
    evidence.happened("commits that were lost" if side == "before" else "replies to a commit that were lost", 1)
    evidence.same(rows.ids(), [1, 2])


def test_json_numbers_of_numpy_and_nothing_reach_their_columns(postgres_rows: Rows):
    rows = postgres_rows
    rows.execute(f"ALTER TABLE {rows.name} ADD COLUMN facts jsonb, ADD COLUMN tags text[]")
    writer = rows.writer()
    writer.write([{"id": np.int64(1), "facts": {"a": [1, None]}, "tags": ["x", "y"]}, {"id": 2, "facts": "text"}])
    publish(writer, [{"id": 3, "facts": None, "name": None}], transaction(1))
    assert rows.execute(f"SELECT * FROM {rows.name} ORDER BY id") == [
        (1, "nameless", {"a": [1, None]}, ["x", "y"]),
        (2, "nameless", "text", None),
        (3, None, None, None),
    ]


def test_names_are_quoted(postgres_rows: Rows, tmp_path: Path):
    rows = postgres_rows
    rows.name = f'{rows.schema}."odd ""name; DROP"'
    rows.execute(f'CREATE TABLE {rows.name} (id integer PRIMARY KEY, "the %s Name" text)')
    rows.name = f'{rows.schema}.odd "name; DROP'
    table = rows.described(key="id")
    table.validate_output(place_in(tmp_path), fresh=True)
    writer: Any = table.open_writer(place_in(tmp_path))
    for value in ("a", "b"):
        publish(writer, [{"id": 1, "the %s Name": value}], transaction(ord(value)))
    writer.close()
    assert rows.execute(f'SELECT * FROM {rows.schema}."odd ""name; DROP"') == [(1, "b")]
    assert table.label == 'odd "name; DROP'
