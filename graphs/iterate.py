"""Iteration in rounds: the body processes all records of a round before any record of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from backedge.graphs.draft import Connection, Draft, Tail
from backedge.graphs.graph_errors import IterationError
from backedge.graphs.kinds import Iterate
from backedge.graphs.naming import check_name
from backedge.graphs.options import check_function
from backedge.graphs.stream import Stream, add_step, check_stream

T = TypeVar("T")


def add_iteration(
    draft: Draft, start: Stream[T], body: Callable[[Stream[T]], Stream[T]], name: str, kind: Iterate
) -> Stream[T]:
    """Add the head of an iteration, and its body by calling `body`."""
    what = f"iteration {check_name(name, 'iteration')!r}"
    kind.check(what)
    check_function(body, f"the body of {what}")
    add_step(draft, kind, {"start": start}, {"name": name})
    # add_step only knows inputs with a stream; the body's result arrives over the back edge.
    draft.operators[name] = replace(draft.operators[name], inputs=("start", "returned"))
    draft.enclosing.append(name)
    try:
        returned = body(Stream(draft, (Tail(name, "body"),)))
    finally:
        draft.enclosing.pop()
    check_stream(draft, returned, f"the result of the body of {what}")
    if any(tail.loop is not None for tail in returned.tails):
        raise IterationError(f"the body of {what} returns the open end of a loop: return the stream that feeds it")
    draft.connections += [Connection(tail, name, "returned", iteration=name) for tail in returned.tails]
    return Stream(draft, (Tail(name, "result"),))
