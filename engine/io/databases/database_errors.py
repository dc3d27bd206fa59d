"""What goes wrong with a database.

A `DatabaseError` stays until somebody repairs the table, the account or the flow, so it fails the run. A
`DatabaseLostError` may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from backedge.engine.io.marked_output import one_line
from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError


@public
class DatabaseError(TaskError):
    """A database that refuses what a source or a sink needs of it.

    Fix: create what the message misses, or grant the right to it.
    """


@public
class DatabaseLostError(ConnectionError):
    """A database that has gone away and has not come back in time.

    Fix: nothing, if the server returns: the run tries again. Otherwise correct the address.
    """


def unreadable(table: str, error: Exception) -> DatabaseError:
    """The error to raise if a driver makes no rows of what a table has."""
    return DatabaseError(
        f"table {table} cannot be read any further: {one_line(error)}; change that, and resume the run"
    )
