"""Writes to PostgreSQL in prepared transactions: the rows are in the database, and checked, when the cut is taken.

    write     rows go into a transaction that is open, by COPY
    prepare   the marker goes into it as well, then PREPARE TRANSACTION: it survives the connection and the server
    commit    COMMIT PREPARED. Its marker is visible from then on, and a repeated commit finds it

So several writers agree: once all of them have prepared, no row can be refused any more. One commit covers all tasks:
the task that is asked first commits what all have prepared up to that epoch of that attempt. This is allowed, since the
complete cut that lists the one lists them all: a task hands over all that is pending with each snapshot. What a task
has prepared at its end (epoch 0) may be listed by a later cut than what others have, so it is committed by its own name
alone.

The id of a prepared transaction has job, run, sink, task, attempt and epoch: other runs' are never touched.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from backedge.engine.batches.columns import Records
from backedge.engine.io.databases.commit_ledger import CommitLedger
from backedge.engine.io.databases.database_errors import DatabaseError, DatabaseLostError
from backedge.engine.io.databases.postgres_rows import TableWriter, session_of
from backedge.engine.io.databases.postgres_server import PATIENCE_S, Server, Table, driver
from backedge.engine.io.databases.table_rows import RowCheck
from backedge.engine.io.files.file_errors import UncommittedOutputError, UnknownTransactionError, UnwritableRecordError
from backedge.engine.io.marked_output import one_line
from backedge.graphs.ids import Turn, turn_in
from backedge.graphs.io import Rollback, SinkPlace
from backedge.recovery.protocol.protocol_errors import FencedError

GID_BYTES_MAX = 199
"""PostgreSQL takes 199 bytes."""

ROWS_MAX = 2_000
"""How many rows wait in a task before they are sent."""

LOCK_TIMEOUT = "10s"
"""How long a row waits for one of the same unique key that is prepared: longer than a commit takes."""

BUSY_PAUSE_S = 0.02


class GlobalIds:
    """The ids of the prepared transactions of one sink of one run.

    >>> ids = GlobalIds("transfers", "5f3a", "booked")
    >>> ids.of("booked.0.attempt-2.epoch-7")
    'backedge/transfers/5f3a/booked.0.attempt-2.epoch-7'
    >>> ids.transaction(ids.of("booked.0.attempt-2.epoch-7")), ids.transaction("another")
    ('booked.0.attempt-2.epoch-7', None)
    """

    def __init__(self, job: str, run: str, sink: str) -> None:
        self._sink = sink
        self.prefix = f"backedge/{job}/{run}/{sink}."
        # What follows the prefix are three numbers and their words.
        if len(self.prefix.encode()) > GID_BYTES_MAX - 80:
            digest = hashlib.blake2b(self.prefix.encode(), digest_size=16).hexdigest()
            self.prefix = f"backedge/{digest}."

    def of(self, transaction: str) -> str:
        return self.prefix + transaction.removeprefix(f"{self._sink}.")

    def transaction(self, gid: str) -> str | None:
        """The name of the transaction with this id; None if it is not one of this sink."""
        if not gid.startswith(self.prefix):
            return None
        name = f"{self._sink}.{gid.removeprefix(self.prefix)}"
        turn = turn_in(name)
        return name if turn is not None and name == _name(self._sink, turn) else None

    def prepared(self, connection: Any) -> list[str]:
        """The names of all transactions of this sink that are prepared in this database."""
        found = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
            [self.prefix],
        )
        names = [self.transaction(gid) for (gid,) in found]
        return [name for name in names if name is not None]


class PreparedWriter:
    """One task. The transaction that is open has a connection of its own; commits use another."""

    def __init__(self, table: Table, place: SinkPlace) -> None:
        self._table = table
        self._server = table.server.another(session_of(place))
        self._place = place
        self._ids = GlobalIds(place.job, place.run, place.operator)
        self._open: Server = table.server.another(session_of(place))
        self._is_open = False
        self._waiting: list[dict[str, Any]] = []
        self._is_broken = False
        self._prepared_last: str | None = None
        self._writer = self._server.run(lambda connection: TableWriter.entered(connection, table, (), place))
        self._check: RowCheck = self._writer.row_check(place.operator)

    def write(self, records: Records) -> None:
        self._waiting += self._check.check(records)
        if len(self._waiting) >= ROWS_MAX:
            self._send()

    def prepare(self, name: str) -> bool:
        if self._waiting:
            self._send()
        if not self._is_open:
            return name == self._prepared_last

        def work(connection: Any) -> None:
            self._ledger(connection).mark(name)
            connection.execute(driver().sql.SQL("PREPARE TRANSACTION {}").format(self._ids.of(name)))

        try:
            self._in_open(work)
        except FencedError:
            self._open.close()
            raise
        except DatabaseLostError:
            # The reply is lost, or the transaction.
            if name not in self._server.run(self._ids.prepared):
                raise
            self._is_broken = False
        self._is_open = False
        self._prepared_last = name
        return True

    def commit(self, name: str) -> None:
        """Commit this transaction, and with it all that the same complete cut is known to list."""
        self._server.run(lambda connection: self._commit(connection, name), is_transaction=False)

    def close(self) -> None:
        """Give up the open transaction: until then it would lock its rows."""
        self._open.close()
        self._server.close()

    def _commit(self, connection: Any, name: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self._ledger(connection).holds(name):
            prepared = self._ids.prepared(connection)
            busy = [each for each in committed_with(name, prepared) if not self._commit_one(connection, each)]
            if name not in prepared and not self._ledger(connection).holds(name):
                raise UnknownTransactionError(
                    f"sink {self._place.operator!r} is asked to commit transaction {name!r}, which is neither prepared "
                    f"as {self._ids.of(name)!r} in {self._server.name} nor marked in {self._writer.ledger_name}: it "
                    "was rolled back by hand, or the run wrote to another database or table before; resume it with "
                    "that one, or go back to an earlier cut by resume=EPOCH"
                )
            if busy:
                if time.monotonic() >= until:
                    raise DatabaseLostError(f"transaction {self._ids.of(busy[0])!r} is held by another session")
                time.sleep(BUSY_PAUSE_S)

    def _commit_one(self, connection: Any, name: str) -> bool:
        """Commit a prepared transaction. False: another session is about to."""
        errors = driver().errors
        statement = driver().sql.SQL("COMMIT PREPARED {}").format(self._ids.of(name))
        try:
            connection.execute(statement)
        except errors.UndefinedObject:
            return True  # another task has done it
        except errors.ObjectNotInPrerequisiteState:
            return False
        except (driver().OperationalError, driver().InterfaceError):
            raise
        except driver().Error as error:
            raise UncommittedOutputError(
                f"sink {self._place.operator!r} cannot commit what it has prepared for table {self._table.title}: "
                f"{one_line(error)}\n  it stays prepared; as a user who may, execute in that database: "
                f"{statement.as_string(connection)}, then resume the run"
            ) from error
        return True

    def _send(self) -> None:
        """Write the rows that wait, in one COPY for all that have the same columns."""
        records, self._waiting = self._waiting, []

        def work(connection: Any) -> None:
            if not self._is_open:
                connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
                connection.execute("BEGIN")
            self._writer.write(connection, records)

        self._in_open(work)
        self._is_open = True

    def _in_open(self, work: Any) -> None:
        """Do something in the transaction that is open. What fails in it is lost, and with it this attempt."""
        psycopg = driver()
        if self._is_broken:
            raise DatabaseLostError(f"the transaction that sink {self._place.operator!r} had open is lost")
        try:
            if self._is_open:
                work(self._open.opened())
            else:
                self._open.run(work, is_transaction=False)
        except DatabaseLostError:
            self._is_broken = True
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self._is_broken = True
            self._open.close()
            if isinstance(error, psycopg.errors.LockNotAvailable):
                if self._has_orphans():
                    raise DatabaseLostError(
                        f"{self._server.name} holds prepared transactions of an earlier attempt, and sink "
                        f"{self._place.operator!r} waits for their rows: they are rolled back when the next one begins"
                    ) from error
                raise DatabaseError(
                    f"sink {self._place.operator!r} waits for a row of the same unique key that another transaction "
                    f"has written to table {self._table.title} and not committed; prepared are {self._all_prepared()}: "
                    "write every key once, or leave out prepared=True and write with key=; what a run has left that "
                    "will not be resumed goes by ROLLBACK PREPARED"
                ) from error
            if "max_prepared_transactions" in str(error) or "prepared transactions" in str(error):
                raise DatabaseError(
                    f"{self._server.name} holds as many prepared transactions as it may: raise "
                    "max_prepared_transactions to at least four for each task of the sinks, and restart the server"
                ) from error
            raise DatabaseLostError(
                f"{self._server.name} has lost the transaction that sink {self._place.operator!r} had open "
                f"({one_line(error)}): it is written again from the last cut"
            ) from error
        except psycopg.Error as error:
            self._is_broken = True
            self._open.close()
            notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
            raise UnwritableRecordError(
                f"sink {self._place.operator!r} cannot write to table {self._table.title}: {one_line(error)}{notes}\n"
                "  map records to rows that the table takes, or change the table"
            ) from error

    def _all_prepared(self) -> str:
        """The ids of what is prepared in the database, by whatever program."""
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 5"
        found = self._server.run(lambda connection: connection.execute(query).fetchall())
        return ", ".join(repr(gid) for (gid,) in found) or "none"

    def _has_orphans(self) -> bool:
        turns = [turn_in(name) for name in self._server.run(self._ids.prepared)]
        return any(turn is not None and turn.attempt < self._place.attempt for turn in turns)

    def _ledger(self, connection: Any) -> CommitLedger:
        # No lock on the attempt: it would last as long as the transaction is prepared, and keep out the next attempt.
        return self._writer.ledger(connection, self._place, lock="")


def committed_with(name: str, prepared: list[str]) -> list[str]:
    """Which of the prepared transactions of a sink a complete cut lists that lists `name`, in order.

    >>> earlier, later, at_end = "s.1.attempt-1.epoch-3", "s.1.attempt-1.epoch-5", "s.1.attempt-1.epoch-0"
    >>> asked, other = "s.0.attempt-1.epoch-4", "s.0.attempt-2.epoch-4"
    >>> committed_with(asked, [later, asked, other, earlier, at_end])
    ['s.1.attempt-1.epoch-3', 's.0.attempt-1.epoch-4']
    """
    asked = turn_in(name)
    if asked is None or asked.epoch == 0:
        return [each for each in prepared if each == name]
    turns = {each: turn for each in prepared if (turn := turn_in(each)) is not None}
    listed = [each for each, turn in turns.items() if turn.attempt == asked.attempt and 0 < turn.epoch <= asked.epoch]
    return sorted(listed, key=turns.__getitem__)


def check_prepared(connection: Any, table: Table) -> None:
    """`DatabaseError` where the server has no prepared transactions, which is how it is installed."""
    (most,) = connection.execute("SHOW max_prepared_transactions").fetchone()
    if most == "0":
        raise DatabaseError(
            f"max_prepared_transactions is 0 on the server of {table.title}, which refuses PREPARE TRANSACTION: set it "
            "to at least four for each task of the sinks and restart the server, or leave out prepared=True"
        )


def roll_back_prepared(table: Table, place: SinkPlace, rollback: Rollback) -> None:
    """Roll back what this run has prepared and will not commit, and remove the markers that nothing asks for."""
    ids = GlobalIds(place.job, place.run, place.operator)
    errors = driver().errors

    def work(connection: Any) -> None:
        for name in ids.prepared(connection):
            if rollback.removes(name):
                try:
                    connection.execute(driver().sql.SQL("ROLLBACK PREPARED {}").format(ids.of(name)))
                except (errors.UndefinedObject, errors.ObjectNotInPrerequisiteState) as gone:
                    del gone  # done by another session, or about to be
        TableWriter(connection, table, ()).ledger(connection, place).forget(rollback)

    try:
        table.server.run(work, is_transaction=False)
    except errors.Error as error:
        raise DatabaseLostError(f"table {table.title} cannot be tidied up: {one_line(error)}") from error


def _name(sink: str, turn: Turn) -> str:
    return f"{sink}.{turn.index}.attempt-{turn.attempt}.epoch-{turn.epoch}"
