"""What goes wrong with a database.

A `DatabaseError` stays until somebody repairs the table, the account or the flow, so it fails the run. A
`DatabaseLostError` may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from engine.task_errors import TaskError
from graphs.io import SinkPlace


class DatabaseError(TaskError):
    """A database that refuses what a source or a sink needs of it.

    Fix: create what the message misses, or grant the right to it.
    """


class UncommittedOutputError(DatabaseError):
    """Output of a complete cut that a database does not take. It is kept; the message says how to finish by hand.

    Fix: correct the table and resume, or execute the statement of the message to go on without the rows.
    """


def uncommitted(
    place: SinkPlace, transaction: str, table: str, reason: str, records: int, ledger: str
) -> UncommittedOutputError:
    """The error for a transaction that the table refused as a whole; `ledger` is the table of the markers."""
    values = ", ".join(f"'{value}'" for value in (place.run, place.operator, transaction))
    return UncommittedOutputError(
        f"sink {place.operator!r} cannot commit transaction {transaction!r} to table {table}: {reason}\n  none of its "
        f"{records:,} records are in the table, and the run keeps them: change the table so that it takes them, then "
        "resume the run, which commits them; to go on without them, execute INSERT INTO "
        f"{ledger} VALUES ({values}) and resume"
    )


class DatabaseLostError(ConnectionError):
    """A database that has gone away and has not come back in time.

    Fix: nothing, if the server returns: the run tries again. Otherwise correct the address.
    """
