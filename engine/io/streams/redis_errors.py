"""What goes wrong with a key of Redis.

A `RedisKeyError` stays until somebody repairs the key, the account or the flow, so it fails the run. A `RedisLostError`
may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError


@public
class RedisKeyError(TaskError):
    """A Redis server that refuses what a source or a sink needs of it.

    Fix: create or rename the key that the message names, or grant the right to it.
    """


@public
class EntriesGoneError(RedisKeyError):
    """Entries of a stream that a source was to read next, and that were trimmed or deleted.

    Fix: begin a new run, which reads what is left; trim a stream only up to what the cuts have read.
    """


@public
class RedisLostError(ConnectionError):
    """A Redis server that has not answered in time.

    Fix: nothing, if it returns: the run tries again. Otherwise correct the address.
    """
