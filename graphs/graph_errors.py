"""Errors in a graph. Each message gives the fact, its context and the fix.

All are raised while a graph is built, planned or expanded: a graph that cannot run never starts.
"""

from __future__ import annotations


class GraphError(Exception):
    """Base class: the graph cannot run."""


class BadNameError(GraphError, ValueError):
    """The name is not usable as a folder name, and state is filed under names."""


class BadOptionError(GraphError, ValueError):
    """An option is out of range or contradicts another."""


class DuplicateNameError(GraphError):
    """Two operators, loops or iterations have the same name, so their state would be mixed up."""


class MissingNameError(GraphError):
    """An operator with state has no name to file it under."""


class ForeignStreamError(GraphError):
    """The stream belongs to another flow."""


class UnkeyedStreamError(GraphError):
    """An operator with keyed state is applied to a stream without a key."""


class UnkeyableError(GraphError, TypeError):
    """The type of a key has no stable hash."""


class UnknownOutputError(GraphError):
    """The operator has no such output."""


class InputsError(GraphError):
    """Named inputs are missing or unknown."""


class UnreadOutputWarning(UserWarning):
    """An operator declares an output that nothing reads; its records are dropped."""


class NoSourceError(GraphError):
    """The flow has no source, or no source reaches an operator."""


class NoSinkError(GraphError):
    """The flow has no sink."""


class LoopError(GraphError):
    """Base class of errors about loops."""


class OpenLoopError(LoopError):
    """The loop is never fed."""


class FedTwiceError(LoopError):
    """The loop is fed twice."""


class UnreadLoopError(LoopError):
    """The loop is never read."""


class NoCycleError(LoopError):
    """A back edge closes no cycle."""


class UnnamedCycleError(LoopError):
    """A cycle has no back edge, so its channels could deadlock."""


class NothingEntersError(LoopError):
    """No record can enter the loop."""


class NoWayOutError(LoopError):
    """No record can leave the loop, and it is not declared endless."""


class IterationError(GraphError):
    """An iteration could not end, or its rounds would be meaningless."""
