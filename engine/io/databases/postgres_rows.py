"""Writes rows to a table of PostgreSQL: by COPY, and to replace those of the same key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from backedge.engine.io.databases.commit_ledger import ATTEMPTS, COMMITS, DEFINITIONS, CommitLedger
from backedge.engine.io.databases.database_errors import DatabaseError
from backedge.engine.io.databases.postgres_server import Table, driver, names_of
from backedge.engine.io.databases.table_rows import Column, Row, RowCheck, by_columns, check_texts
from backedge.engine.io.files.parts import check_names
from backedge.engine.io.marked_output import one_line
from backedge.graphs.io import SinkPlace
from backedge.graphs.task_errors import show

_JSON = ("json", "jsonb")
_JSON_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_COPY_LINE = re.compile(r"^COPY .*, line (\d+)", re.MULTILINE)


class TableWriter:
    """The table that a sink writes to, as it was when the writer was opened."""

    def __init__(self, connection: Any, table: Table, key: Sequence[str]) -> None:
        self.table = table
        self._key = list(key)
        self._schema: str = driver().sql.Identifier(table.schema(connection)).as_string(connection)
        self._columns = table.columns(connection)
        self._types = {column.name: column.type for column in self._columns}

    @staticmethod
    def entered(connection: Any, table: Table, key: Sequence[str], place: SinkPlace) -> TableWriter:
        """Open a table for a sink; writers of earlier attempts commit nothing from here on."""
        end_earlier_sessions(connection, place)
        writer = TableWriter(connection, table, key)
        writer.ledger(connection, place).enter()
        return writer

    def row_check(self, sink: str) -> RowCheck:
        transformer = driver().adapt.Transformer()
        text = driver().adapt.PyFormat.TEXT

        def takes(column_type: str, values: list[Any]) -> None:
            if column_type in _JSON:
                written = json.dumps(values, allow_nan=False, ensure_ascii=False)
                check_names(values)
                if column_type == "jsonb":
                    written.encode()
                    if _JSON_NUL.search(written):
                        raise ValueError("jsonb holds no text with '\\x00'")
                return
            by_kind = dict(zip(map(type, values), values, strict=True))
            # Arrays one by one: their elements may differ.
            for value in values if list in by_kind else by_kind.values():
                if value is not None:
                    transformer.get_dumper(value, text)
            check_texts(values, by_kind, "\0")

        columns = [
            Column(column.name, column.type, column.is_required or column.name in self._key, column.is_writable)
            for column in self._columns
        ]
        return RowCheck(sink, self.table.title, columns, takes)

    @property
    def ledger_name(self) -> str:
        """The table of markers, for a statement to execute by hand."""
        return f"{self._schema}.{COMMITS}"

    def ledger(self, connection: Any, place: SinkPlace, lock: str = " FOR SHARE") -> CommitLedger:
        """The ledger beside this table, in the transaction that is open."""
        return CommitLedger(executor(connection), place, f"{self._schema}.", lock)

    def write(self, connection: Any, records: list[dict[str, Any]]) -> None:
        """Add these records, or put each in the place of the row of its key."""
        if not records:
            return  # others have committed all of them
        if self._key:
            self._replace(connection, records)
            return
        for columns, rows in by_columns(records).items():
            self._copy(connection, self.table.quoted, columns, rows)

    def _copy(self, connection: Any, into: Any, columns: tuple[str, ...], rows: list[Row]) -> None:
        statement = driver().sql.SQL("COPY {} ({}) FROM STDIN").format(into, names_of(columns))
        try:
            with connection.cursor().copy(statement) as copy:
                for row in self._adapted(columns, rows):
                    copy.write_row(row)
        except driver().Error as error:
            line = _COPY_LINE.search(error.diag.context or "")
            if line is not None:
                values = zip(columns, rows[int(line[1]) - 1], strict=True)
                row = {name: value for name, value in values if name in self._types}
                error.add_note(f"record: {show(row)}")
            raise

    def _adapted(self, columns: tuple[str, ...], rows: list[Row]) -> list[Row]:
        """The rows as psycopg takes them: what goes into a JSON column is a JSON value, whatever its type."""
        places = [place for place, name in enumerate(columns) if self._types.get(name) in _JSON]
        if not places:
            return rows
        wrap = driver().types.json.Json
        found: list[Row] = []
        for row in rows:
            values = list(row)
            for place in places:
                if values[place] is not None:
                    values[place] = wrap(values[place])
            found.append(tuple(values))
        return found

    def _replace(self, connection: Any, records: list[dict[str, Any]]) -> None:
        sql = driver().sql
        shapes = {columns: shape for shape, columns in enumerate(dict.fromkeys(map(tuple, records)))}
        columns = tuple(dict.fromkeys(chain.from_iterable(shapes)))
        given = sql.Identifier("backedge_rows")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}").format(given))
        connection.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS "
                "SELECT {}, 0 AS backedge_shape, 0 AS backedge_number FROM {} WITH NO DATA"
            ).format(given, names_of(columns), self.table.quoted)
        )
        rows = [(*map(record.get, columns), shapes[tuple(record)], number) for number, record in enumerate(records)]
        into = sql.Identifier("pg_temp", "backedge_rows")
        self._copy(connection, into, (*columns, "backedge_shape", "backedge_number"), rows)
        # Only the database knows which keys are equal. Rows without a value in the key replace none and are all kept.
        last = sql.SQL(
            "SELECT DISTINCT ON ({0}, {1}) * FROM pg_temp.{2} ORDER BY {0}, {1}, backedge_number DESC"
        ).format(
            names_of(self._key),
            sql.SQL("CASE WHEN ROW({}) IS NOT NULL THEN -1 ELSE backedge_number END").format(names_of(self._key)),
            given,
        )
        # Columns that the record lacks get their defaults, as if the row had been removed before.
        settable = [column.name for column in self._columns if column.is_writable and column.name not in self._key]
        changes = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in settable]
        for names, shape in shapes.items():
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} ({}) SELECT {} FROM ({}) AS last WHERE backedge_shape = {} ON CONFLICT ({}) DO {}"
                ).format(
                    self.table.quoted,
                    names_of(names),
                    names_of(names),
                    last,
                    sql.Literal(shape),
                    names_of(self._key),
                    sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changes) if changes else sql.SQL("NOTHING"),
                )
            )


def executor(connection: Any) -> Callable[[str, Sequence[Any]], list[Any]]:
    """Executes statements whose values are marked by `?`."""

    def execute(statement: str, values: Sequence[Any]) -> list[Any]:
        cursor = connection.execute(statement.replace("%", "%%").replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description else []

    return execute


def session_of(place: SinkPlace) -> str:
    """What the server calls the sessions of a writer: the sink of a run, and the attempt."""
    sink = hashlib.blake2b(f"{place.job}/{place.run}/{place.operator}".encode(), digest_size=16)
    return f"backedge {sink.hexdigest()} attempt {place.attempt}"


def end_earlier_sessions(connection: Any, place: SinkPlace) -> None:
    """End the sessions of earlier attempts: a process that was taken for dead may have a transaction open for ever."""
    sink, _, attempt = session_of(place).rpartition(" ")
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = current_user "
        "AND starts_with(application_name, %s) AND split_part(application_name, ' attempt ', 2)::bigint < %s",
        [f"{sink} ", int(attempt)],
    )


def check_writable(connection: Any, table: Table, key: Sequence[str]) -> None:
    """`DatabaseError` unless rows can be written. Makes the tables of the ledger if they are not there."""
    schema = table.schema(connection)
    rights = ("INSERT", "UPDATE") if key else ("INSERT",)
    for right in rights:
        query = "SELECT has_table_privilege(%s::regclass, %s), current_user"
        is_granted, user = connection.execute(query, [table.text(connection), right]).fetchone()
        if not is_granted:
            raise DatabaseError(
                f"user {user!r} may not write to table {table.title}: "
                f"GRANT {', '.join(rights)} ON {table.text(connection)} TO {user}"
            )
    unique = table.unique_keys(connection)
    if key and sorted(key) not in map(sorted, unique):
        raise DatabaseError(
            f"table {table.title} is to be written with key={tuple(key)}, and has no unique index on it, without which "
            f"no row can be replaced: CREATE UNIQUE INDEX ON {table.text(connection)} "
            f"({names_of(key).as_string(connection)}), or name the columns of one"
        )
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('backedge'))")  # creating them twice at a time fails
    for name in (COMMITS, ATTEMPTS):
        made = driver().sql.Identifier(schema, name).as_string(connection)
        if connection.execute("SELECT to_regclass(%s)", [made]).fetchone()[0] is None:
            statement = f"CREATE TABLE {made} {DEFINITIONS[name]}"
            try:
                connection.execute(statement)
            except driver().errors.InsufficientPrivilege as error:
                raise DatabaseError(
                    f"table {table.title} needs one beside it that holds the markers of commits ({one_line(error)}): "
                    f"have somebody who may do so execute {statement}, and grant this user all on it"
                ) from error
