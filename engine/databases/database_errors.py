"""What goes wrong with a database.

A `DatabaseError` stays until somebody repairs the table, the account or the flow, so it fails the run. A
`DatabaseLostError` may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from engine.task_errors import TaskError


class DatabaseError(TaskError):
    """A database that refuses what a source or a sink needs of it."""


class UncommittedOutputError(DatabaseError):
    """Output of a complete cut that a database does not take. It is kept; the message says how to finish by hand."""


class DatabaseLostError(ConnectionError):
    """A database that has gone away and has not come back in time."""
