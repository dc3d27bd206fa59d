"""What a table of a database cannot do is refused before the run, in a line that names the fix and no password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backedge import BadOptionError, DatabaseError, DatabaseLostError, Flow, PostgresTable, SqliteTable
from backedge.engine.io.databases import postgres_server
from backedge.engine.io.files.checks import check_sink, check_source
from tests.databases.postgres_process import PostgresProcess
from tests.databases.sinks_by_hand import Rows, place_in, postgres_rows, rows

__all__ = ["postgres_rows", "rows"]

SECRET = "open-sesame"


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[Any], str]:
    def refused(table: Any) -> str:
        with pytest.raises(DatabaseError) as error:
            table.validate_output(place_in(tmp_path), fresh=True)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refused


@pytest.fixture(scope="module")
def server_as_installed(own_home_and_temporary_folder: None) -> Iterator[PostgresProcess]:
    server = PostgresProcess(max_prepared_transactions="0")
    yield server
    server.remove()


def test_a_server_that_is_not_there(refused: Callable[[Any], str]):
    dsn = f"postgresql://me:{SECRET}@localhost:1/shop"
    for prepared in (False, True):
        told = refused(PostgresTable(dsn, "bookings", prepared=prepared))
        assert "database 'shop' at localhost:1 cannot be reached" in told and "start the server" in told
        assert SECRET not in told


def test_a_password_is_in_no_text(tmp_path: Path):
    table = PostgresTable(f"postgresql://me:{SECRET}@localhost:1/shop", "bookings")
    assert SECRET not in repr(table)
    with pytest.raises(DatabaseError) as error:
        table.validate_input()
    assert SECRET not in str(error.value)
    with pytest.raises(BadOptionError) as malformed:
        PostgresTable(f"postgresql://me:{SECRET}@[localhost/shop", "bookings")
    assert SECRET not in str(malformed.value) and "write postgresql://USER@HOST:PORT/DATABASE" in str(malformed.value)


@pytest.mark.parametrize(
    ("definition", "told"), [(None, "there is no table"), ("CREATE VIEW {} AS SELECT 1 AS id", "is a view")]
)
def test_a_table_that_is_missing_or_a_view(
    rows: Rows, refused: Callable[[Any], str], definition: str | None, told: str
):
    rows.name = f"{rows.schema}.other" if rows.schema else "other"
    if definition is not None:
        rows.execute(definition.format(rows.name))
    table = rows.described()
    assert told in refused(table)
    with pytest.raises(DatabaseError, match=told):
        table.validate_input()


def test_a_key_without_an_index(rows: Rows, refused: Callable[[Any], str]):
    told = refused(rows.described(key="name"))
    assert "no unique index" in told and "CREATE UNIQUE INDEX" in told
    rows.execute(told.split("replaced: ")[1].split(", or name")[0])
    rows.described(key="name").validate_output(place_in(rows.folder), fresh=True)


@pytest.mark.slow
def test_a_server_without_prepared_transactions(server_as_installed: PostgresProcess, refused: Callable[[Any], str]):
    server_as_installed.execute("CREATE TABLE bookings (id integer)")
    told = refused(PostgresTable(server_as_installed.dsn, "bookings", prepared=True))
    assert "max_prepared_transactions is 0" in told and "restart the server, or leave out prepared=True" in told
    PostgresTable(server_as_installed.dsn, "bookings").check_table()


def test_too_few_prepared_transactions(server_as_installed: PostgresProcess, tmp_path: Path):
    server_as_installed.execute("CREATE TABLE few (id integer)")
    table = PostgresTable(server_as_installed.dsn, "few", prepared=True)
    table.check_table()
    writer: Any = table.open_writer(place_in(tmp_path))
    writer.write([{"id": 1}])
    with pytest.raises(DatabaseError, match="max_prepared_transactions"):
        writer.prepare("booked.0.attempt-1.epoch-1")
    writer.close()


def test_a_user_that_may_not_write(postgres_rows: Rows, refused: Callable[[Any], str]):
    rows = postgres_rows
    user = f"reader_of_{rows.schema}"
    rows.execute(f"CREATE ROLE {user} LOGIN")
    rows.execute(f"GRANT USAGE ON SCHEMA {rows.schema} TO {user}")
    dsn = rows.server.dsn.replace("user=tests", f"user={user}")
    told = refused(rows.described(dsn=dsn, key="id"))
    assert f"user {user!r} may not write" in told
    rows.execute(told.split("at ")[1].split(": ")[1])  # the GRANT that it names
    rows.described(dsn=dsn, key="id").check_table()
    rows.execute(f"DROP TABLE {rows.schema}.backedge_commits")
    told = refused(rows.described(dsn=dsn))
    assert f'execute CREATE TABLE "{rows.schema}"."backedge_commits"' in told
    rows.execute(f"DROP OWNED BY {user}")
    rows.execute(f"DROP ROLE {user}")


def test_a_database_that_is_missing_or_none(tmp_path: Path, refused: Callable[[Any], str]):
    assert "there is no database" in refused(SqliteTable(str(tmp_path / "no.db"), "rows"))
    assert not (tmp_path / "no.db").exists()
    (tmp_path / "text.db").write_text("no database " * 100)
    assert "is no database, or damaged" in refused(SqliteTable(str(tmp_path / "text.db"), "rows"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"table": "a.b.c"}, "write TABLE or SCHEMA.TABLE"),
        ({"table": ""}, "names no table"),
        ({"key": 7}, "give the name of a column"),
        ({"key": "id", "prepared": True}, "leave one of the two out"),
        ({"dsn": 5}, "a dsn is text"),
    ],
)
def test_an_option_that_makes_no_sense(options: dict[str, Any], told: str):
    with pytest.raises(BadOptionError, match=told):
        PostgresTable(**({"dsn": "postgresql://localhost/shop", "table": "bookings"} | options))


def test_a_server_that_goes_away_is_waited_for_and_then_lost():
    server = postgres_server.Server("host=localhost port=1 user=me dbname=shop", patience_s=0.2)
    with pytest.raises(DatabaseLostError, match=r"'shop' at localhost:1.*0.2 s"):
        server.run(lambda connection: None)


def test_what_refuses_a_run_is_the_same_line(tmp_path: Path):
    flow = Flow("refused")
    table = SqliteTable(str(tmp_path / "no.db"), "rows")
    flow.read(table, name="in").write(table, name="out")
    source, sink = flow.plan().operators.values()
    with pytest.raises(DatabaseError, match=r"^there is no database"):
        check_source(source)
    with pytest.raises(DatabaseError, match=r"^there is no database"):
        check_sink(sink, place_in(tmp_path), fresh=True)
