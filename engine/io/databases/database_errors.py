"""What goes wrong with a database.

A `DatabaseError` stays until somebody repairs the table, the account or the flow, so it fails the run. A
`DatabaseLostError` may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError


@public
class DatabaseError(TaskError):
    """A database that refuses what a source or a sink needs of it.

    Fix: create what the message misses, or grant the right to it.
    """


@public
class UncommittedOutputError(DatabaseError):
    """Output of a complete cut that a database does not take. It is kept; the message says how to finish by hand.

    Fix: correct the table and resume, or execute the statement of the message to go on without the rows.
    """


@public
class DatabaseLostError(ConnectionError):
    """A database that has gone away and has not come back in time.

    Fix: nothing, if the server returns: the run tries again. Otherwise correct the address.
    """


def one_line(error: BaseException) -> str:
    """The first line that a server or driver has said.

    >>> one_line(ValueError("no such row\\nCONTEXT: here"))
    'no such row'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
