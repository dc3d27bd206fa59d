"""Errors in a graph. Each message gives the fact, its context and the fix.

All are raised while a graph is built, planned or expanded: a graph that cannot run never starts.
"""

from __future__ import annotations

from backedge.graphs.public import public


@public
class GraphError(Exception):
    """Base class: the graph cannot run."""


@public
class BadNameError(GraphError, ValueError):
    """The name is not usable as a folder name, and state is filed under names.

    Fix: use letters, digits, `-`, `_`, `.` and spaces, as the message says.
    """


@public
class BadOptionError(GraphError, ValueError):
    """An option is out of range or contradicts another.

    Fix: change the option that the message names.
    """


@public
class DuplicateNameError(GraphError):
    """Two operators, loops or iterations have the same name, so their state would be mixed up.

    Fix: give one of them another `name=`.
    """


@public
class MissingNameError(GraphError):
    """An operator with state has no name to file it under.

    Fix: give the operator a `name=`, or use a named function instead of a lambda.
    """


@public
class ForeignStreamError(GraphError):
    """The stream belongs to another flow.

    Fix: read it in the flow that uses it; two flows cannot share a stream.
    """


@public
class UnkeyedStreamError(GraphError):
    """An operator with keyed state is applied to a stream without a key.

    Fix: call `key_by` before the operator.
    """


@public
class UnkeyableError(GraphError, TypeError):
    """The type of a key has no stable hash.

    Fix: use text, numbers, bytes, None or a tuple of these as the key, for example `str(key)`.
    """


@public
class UnknownOutputError(GraphError):
    """The operator has no such output.

    Fix: use one of the outputs that the message lists, or declare it in `outputs` of the class.
    """


@public
class InputsError(GraphError):
    """Named inputs are missing or unknown.

    Fix: give each input that the class lists in `inputs` one stream, by name.
    """


@public
class UnreadOutputWarning(UserWarning):
    """An operator declares an output that nothing reads; its records are dropped.

    Fix: read it with `side(name)`, or remove it from `outputs`.
    """


@public
class NoSourceError(GraphError):
    """The flow has no source, or no source reaches an operator.

    Fix: begin each part of the flow with `flow.read(...)`.
    """


@public
class NoSinkError(GraphError):
    """The flow has no sink.

    Fix: end the flow with `stream.write(...)`.
    """


@public
class LoopError(GraphError):
    """Base class of errors about loops."""


@public
class OpenLoopError(LoopError):
    """The loop is never fed.

    Fix: call `feed` of the loop with the stream that returns.
    """


@public
class FedTwiceError(LoopError):
    """The loop is fed twice.

    Fix: merge the streams first: `again.feed(a.merge(b))`.
    """


@public
class UnreadLoopError(LoopError):
    """The loop is never read.

    Fix: merge the loop into the stream that it returns to: `orders.merge(again)`.
    """


@public
class NoCycleError(LoopError):
    """A back edge closes no cycle.

    Fix: feed the loop from a stream that depends on it; for any other stream, `merge` is enough.
    """


@public
class UnnamedCycleError(LoopError):
    """A cycle has no back edge, so its channels could deadlock.

    Fix: close the cycle with `flow.loop(name)` and `feed`.
    """


@public
class NothingEntersError(LoopError):
    """No record can enter the loop.

    Fix: merge a stream from outside into the loop.
    """


@public
class NoWayOutError(LoopError):
    """No record can leave the loop, and it is not declared endless.

    Fix: let a stream leave the loop, for example by `split`; or give it `max_rounds=`; or declare it `endless=True`.
    """


@public
class IterationError(GraphError):
    """An iteration could not end, or its rounds would be meaningless.

    Fix: give `rounds=` or `until=`, or change the body as the message says.
    """
