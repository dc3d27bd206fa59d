"""A table of PostgreSQL, to read or to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backedge.engine.batches.columns import Records
from backedge.engine.io.databases.commit_ledger import marked_by_hand
from backedge.engine.io.databases.database_errors import DatabaseError, DatabaseLostError
from backedge.engine.io.databases.key_ranges import START, KeyRange, KeyReader, Position, list_ranges
from backedge.engine.io.databases.postgres_rows import TableWriter, check_writable, session_of
from backedge.engine.io.databases.postgres_server import Server, Table, check_dsn, driver
from backedge.engine.io.databases.prepared_writer import PreparedWriter, check_prepared, roll_back_prepared
from backedge.engine.io.databases.table_rows import key_columns
from backedge.engine.io.marked_output import Check, MarkedSink, one_line
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import Rollback, SinkPlace, SinkWriter, Source, SplitReader
from backedge.graphs.public import public

ROLL_BACK_PATIENCE_S = 5.0
"""How long the supervisor waits for a server that is away. What is not removed now is removed after the next cut."""


@public
@dataclass(frozen=True)
class PostgresTable(Source[dict[str, Any]], MarkedSink):
    """A table of PostgreSQL, a record a row, to read or to write. It must exist; `table` is TABLE or SCHEMA.TABLE.

    Written, each row is there once. With `key`, the columns of a unique index, a row replaces the one that has the same
    key. With `prepared=True` rows are written and checked when a cut is taken, by `PREPARE TRANSACTION`, and committed
    when it is complete.

    Read, `key` is a unique column that cannot be null, by which the table is split; left out, the primary key.

    >>> PostgresTable("postgresql://me:secret@db.example/shop", "bookings")
    PostgresTable(table='bookings', key=(), prepared=False)
    """

    dsn: str = field(repr=False)
    table: str
    key: str | tuple[str, ...] = ()
    prepared: bool = False

    def __post_init__(self) -> None:
        check_dsn(self.dsn)
        table: Any = self.table
        if not isinstance(table, str) or not all(table.split(".")) or table.count(".") > 1:
            raise BadOptionError(f"table {table!r} names no table: write TABLE or SCHEMA.TABLE")
        object.__setattr__(self, "key", key_columns(self.key, table))
        if self.prepared and self.key:
            raise BadOptionError(
                f"table {table!r} has both prepared=True and key=: a prepared transaction locks the rows that it "
                "replaces, and the next one of the same task would wait for them for ever; leave one of the two out"
            )

    @property
    def label(self) -> str | None:
        return self.table.rpartition(".")[2]

    @property
    def title(self) -> str:
        return self._open().title

    def absolute(self) -> PostgresTable:
        return self

    def _open(self, patience_s: float | None = None) -> Table:
        server = Server(self.dsn) if patience_s is None else Server(self.dsn, patience_s)
        return Table(server, self.table)

    def _at_start(self, work: Callable[[Any, Table], Any]) -> Any:
        """Do something before the run, which a server that is away refuses."""
        table = self._open(0.0)
        with table.server:
            try:
                return table.server.run(lambda connection: work(connection, table))
            except DatabaseLostError as error:
                cause = error.__cause__ or error
                raise DatabaseError(
                    f"{table.server.name} cannot be reached ({one_line(cause)}): start the server, or correct the dsn"
                ) from error
            except driver().Error as error:
                raise DatabaseError(f"table {table.title} cannot be used: {one_line(error)}") from error

    # -- reading -------------------------------------------------------------------------------------------------

    def validate_input(self) -> None:
        self._at_start(lambda connection, table: table.columns(connection))

    def splits(self) -> Sequence[str]:
        """Ranges of the key, as the table is now."""
        ranges = self._at_start(lambda connection, table: list_ranges(connection, table, self.key))
        return [found.name for found in ranges]

    def first_position(self, split: str) -> Position:
        return START

    def is_read(self, split: str, position: Any) -> bool:
        return KeyRange.parse(split).is_read(position)

    def open_split(self, split: str, position: Any) -> SplitReader[dict[str, Any]]:
        return KeyReader(self._open(), KeyRange.parse(split), position)

    # -- writing -------------------------------------------------------------------------------------------------

    def store(self) -> _PostgresStore:
        return _PostgresStore(self, self._open())

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        if not self.prepared:
            super().validate_output(place, fresh)
            return
        self._at_start(check_prepared)
        self.check_table()

    def check_table(self) -> None:
        """Raise unless rows can be written to the table."""
        self._at_start(lambda connection, table: check_writable(connection, table, self.key))

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        return PreparedWriter(self._open(), place) if self.prepared else super().open_writer(place)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        if not self.prepared:
            super().roll_back(place, rollback)
            return
        table = self._open(ROLL_BACK_PATIENCE_S)
        with table.server:
            roll_back_prepared(table, place, rollback)


class _PostgresStore:
    def __init__(self, described: PostgresTable, table: Table) -> None:
        self._described = described
        self._table = table
        self._writer: TableWriter | None = None

    @property
    def title(self) -> str:
        return self._table.title

    def check(self) -> None:
        self._described.check_table()

    def enter(self, place: SinkPlace) -> Check:
        table, key = self._table, self._described.key
        table.server = table.server.another(session_of(place))
        self._writer = table.server.run(lambda connection: TableWriter.entered(connection, table, key, place))
        return self._writer.row_check(place.operator).check

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        writer = self._entered()

        def work(connection: Any) -> None:
            writer.write(connection, writer.ledger(connection, place).unmarked(written))

        self._table.server.run(work)

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        return marked_by_hand(self._entered().ledger_name, place, transactions)

    def close(self) -> None:
        self._table.server.close()

    def _entered(self) -> TableWriter:
        if self._writer is None:
            raise RuntimeError(f"table {self.title} is not open yet: call enter() first")
        return self._writer

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        table = self._described._open(ROLL_BACK_PATIENCE_S)  # pyright: ignore[reportPrivateUsage]
        with table.server:
            table.server.run(
                lambda connection: TableWriter(connection, table, ()).ledger(connection, place).forget(rollback)
            )
