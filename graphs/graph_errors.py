"""Everything that can be wrong with a graph. Each message says the fact, its context and the fix.

All of these are raised while a graph is built, planned or expanded: a graph that cannot run never starts.
"""

from __future__ import annotations


class GraphError(Exception):
    """A graph that cannot run. Catch this one to catch them all."""


class BadNameError(GraphError, ValueError):
    """A name that cannot be a folder's name, and so cannot be filed under."""


class BadOptionError(GraphError, ValueError):
    """An option out of its range, or one that contradicts another."""


class DuplicateNameError(GraphError):
    """Two operators, loops or iterations of one name: their state would be filed in one place."""


class MissingNameError(GraphError):
    """An operator with state and no name to file it under."""


class ForeignStreamError(GraphError):
    """A stream of another flow."""


class UnkeyedStreamError(GraphError):
    """An operator that keeps state by key, on a stream that has no key."""


class UnkeyableError(GraphError, TypeError):
    """A key of a type that has no stable hash."""


class UnknownOutputError(GraphError):
    """An output that the operator does not have."""


class InputsError(GraphError):
    """Named inputs that are missing, or that the operator does not know."""


class UnreadOutputWarning(UserWarning):
    """An output that an operator declares and nobody reads: what is sent there is dropped."""


class NoSourceError(GraphError):
    """A flow that reads nothing, or an operator that no source reaches."""


class NoSinkError(GraphError):
    """A flow that writes nothing."""


class LoopError(GraphError):
    """Something is wrong with a loop."""


class OpenLoopError(LoopError):
    """A loop that is never fed."""


class FedTwiceError(LoopError):
    """A loop that is fed twice."""


class UnreadLoopError(LoopError):
    """A loop that nobody reads."""


class NoCycleError(LoopError):
    """A back edge that closes no cycle."""


class UnnamedCycleError(LoopError):
    """A cycle without a back edge: its channels could wait for each other for good."""


class NothingEntersError(LoopError):
    """A loop that no record can enter."""


class NoWayOutError(LoopError):
    """A loop that no record can leave, and that is not declared endless."""


class IterationError(GraphError):
    """An iteration that could not end, or whose rounds would mean nothing."""
