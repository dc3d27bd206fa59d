"""A PostgreSQL server: connections that come back after a failure, tables and what they are made of.

No message contains a password: a server is named by host, port and database alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from backedge.engine.io.databases.database_errors import DatabaseError, DatabaseLostError
from backedge.engine.io.databases.table_rows import Column
from backedge.engine.io.marked_output import one_line
from backedge.engine.io.packages import package
from backedge.graphs.graph_errors import BadOptionError

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a task waits for a server that has gone away: a restart of it takes less."""

PAUSE_S = 0.1
CONNECT_TIMEOUT_S = 10

_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '',
        attgenerated = '' AND attidentity <> 'a'
    FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


def driver() -> Any:
    return package("psycopg", "postgres")


def check_dsn(dsn: object) -> None:
    """Raise unless this describes a connection. Its text stays out of the message: it may hold a password."""
    if not isinstance(dsn, str):
        raise BadOptionError(f"a dsn is text such as 'postgresql://host/database', and not {type(dsn).__name__}")
    try:
        driver().conninfo.conninfo_to_dict(dsn)
    except driver().ProgrammingError:
        raise BadOptionError(
            "a dsn does not describe a PostgreSQL connection: write postgresql://USER@HOST:PORT/DATABASE, or "
            "host=HOST port=PORT dbname=DATABASE user=USER"
        ) from None


def server_name(dsn: str) -> str:
    """Database and host of a dsn.

    >>> server_name("postgresql://me:secret@db.example:5433/shop")
    "database 'shop' at db.example:5433"
    """
    known: Mapping[str, Any] = driver().conninfo.conninfo_to_dict(dsn)
    database = known.get("dbname") or known.get("user") or "of this user"
    host = known.get("host") or known.get("hostaddr") or "this host"
    return f"database {database!r} at {host}:{known.get('port') or 5432}"


class Server:
    """Runs transactions, on one connection that is opened when needed.

    `patience_s`: how long to wait for a server that is away. At the start of a run there is none.
    """

    _connection: Any = None
    """Known from the start: a process may die while this is made."""

    def __init__(self, dsn: str, patience_s: float = PATIENCE_S, session: str = "backedge") -> None:
        self.name = server_name(dsn)
        self.session = session
        self._dsn = dsn
        self._patience_s = patience_s

    def run(self, work: Callable[[Any], T], *, is_transaction: bool = True) -> T:
        """Run `work` in one transaction, or statement by statement.

        It is run again when the connection breaks, also where the transaction may have been committed: `work` has to
        find that out.
        """
        psycopg = driver()
        until = time.monotonic() + self._patience_s
        while True:
            try:
                connection = self.connection()
                around: AbstractContextManager[Any] = connection.transaction() if is_transaction else nullcontext()
                with around:
                    return work(connection)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not self._may_pass(error):
                    raise
                self.close()
                if time.monotonic() >= until:
                    raise DatabaseLostError(
                        f"{self.name} has not answered for {self._patience_s:g} s ({one_line(error)}): start the "
                        "server, or correct the dsn"
                    ) from error
            time.sleep(PAUSE_S)

    def another(self, session: str) -> Server:
        """Another connection to the same server. `session` is what the server calls it, in 63 bytes."""
        return Server(self._dsn, self._patience_s, session)

    def connection(self) -> Any:
        if self._connection is None or self._connection.closed:
            options = driver().conninfo.conninfo_to_dict(self._dsn)
            options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
            options["application_name"] = self.session
            # A statement is executed once for each cut or page: nothing is gained by preparing it on the server.
            options["prepare_threshold"] = None
            self._connection = driver().connect(autocommit=True, **options)
        return self._connection

    def opened(self) -> Any:
        """The connection with which a transaction was begun; another one would know nothing of it."""
        if self._connection is None or self._connection.closed:
            raise DatabaseLostError(f"the connection to {self.name} is lost")
        return self._connection

    def close(self) -> None:
        """Close the connection; what is open on it is rolled back by the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _may_pass(self, error: Exception) -> bool:
        """Whether the same may succeed in a moment: not if it waits for a lock that this task itself holds."""
        errors = driver().errors
        return not isinstance(error, errors.LockNotAvailable | errors.ConfigurationLimitExceeded)


class Table:
    """A table of a server: `name` is NAME or SCHEMA.NAME, and upper case counts."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        schema, _, table = name.rpartition(".")
        identifier = driver().sql.Identifier
        self.quoted: Any = identifier(schema, table) if schema else identifier(table)

    @property
    def title(self) -> str:
        return f"{self.name!r} of {self.server.name}"

    def text(self, connection: Any) -> str:
        return self.quoted.as_string(connection)

    def columns(self, connection: Any) -> list[Column]:
        """Its columns; `DatabaseError` if there is no such table."""
        self.schema(connection)
        return [Column(*row) for row in connection.execute(_COLUMNS, [self.text(connection)])]

    def schema(self, connection: Any) -> str:
        query = """
            SELECT nspname, relkind FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = to_regclass(%s)"""
        found = connection.execute(query, [self.text(connection)]).fetchone()
        if found is None:
            raise DatabaseError(
                f"there is no table {self.title}: create it, or name another as TABLE or SCHEMA.TABLE, in the case in "
                "which it was created"
            )
        if found[1] not in ("r", "p"):
            raise DatabaseError(f"{self.title} is a view or the like: name a table")
        return found[0]

    def is_never_null(self, connection: Any, column: str) -> bool:
        query = "SELECT attnotnull FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s"
        return connection.execute(query, [self.text(connection), column]).fetchone()[0]

    def unique_keys(self, connection: Any) -> list[tuple[str, ...]]:
        """The columns of its unique indexes that cover all rows, that of the primary key first."""
        query = """
            SELECT array_agg(attname ORDER BY place)
            FROM pg_index, unnest(indkey::int2[]) WITH ORDINALITY AS part(number, place)
            JOIN pg_attribute ON attnum = number
            WHERE indrelid = %s::regclass AND attrelid = indrelid AND place <= indnkeyatts
                AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
            GROUP BY indexrelid, indisprimary ORDER BY indisprimary DESC, indexrelid"""
        return [tuple(names) for (names,) in connection.execute(query, [self.text(connection)])]


def names_of(columns: Sequence[str]) -> Any:
    """Names of columns, quoted, with commas."""
    sql = driver().sql
    return sql.SQL(", ").join(map(sql.Identifier, columns))
