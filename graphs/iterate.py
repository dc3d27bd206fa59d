"""Iteration in rounds: the body runs on all records of a round before any of the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

from graphs.draft import Connection, Draft, Tail
from graphs.graph_errors import BadOptionError, IterationError
from graphs.naming import check_name
from graphs.options import check_count, check_function
from graphs.plan import Kind
from graphs.stream import Stream, add_step, check_stream

T = TypeVar("T")


class Rule(TypedDict):
    """When an iteration ends: after `rounds`, when `until` is true of the measures, or after an empty round."""

    rounds: int | None
    until: Callable[[Any], object] | None
    measure: Callable[[Any], Any] | None
    reduce: Callable[[Any, Any], Any]


def add_iteration(
    draft: Draft, start: Stream[T], body: Callable[[Stream[T]], Stream[T]], name: str, rule: Rule
) -> Stream[T]:
    """Add the head of an iteration and, by calling `body`, what runs in its rounds."""
    what = f"iteration {check_name(name, 'iteration')!r}"
    if rule["rounds"] is not None:
        check_count(rule["rounds"], "rounds", what)
    if rule["measure"] is not None and rule["until"] is None:
        raise BadOptionError(f"{what} measures records and asks nobody: give it until=, or leave out measure=")
    for option in ("until", "measure"):
        if rule[option] is not None:
            check_function(rule[option], f"{option}= of {what}")
    check_function(rule["reduce"], f"reduce= of {what}")
    check_function(body, f"the body of {what}")
    enclosing = draft.enclosing[-1] if draft.enclosing else None
    outputs = ("body", "result")
    add_step(draft, Kind.ITERATE, None, {"start": start}, {"name": name}, outputs, enclosing=enclosing, **rule)
    # add_step knows the inputs that have a stream; what the body returns comes over the back edge.
    draft.operators[name] = replace(draft.operators[name], inputs=("start", "returned"))
    draft.enclosing.append(name)
    try:
        returned = body(Stream(draft, (Tail(name, "body"),)))
    finally:
        draft.enclosing.pop()
    check_stream(draft, returned, f"what the body of {what} returns")
    if any(tail.loop is not None for tail in returned.tails):
        raise IterationError(f"the body of {what} returns the open end of a loop: return the stream that feeds it")
    draft.connections += [Connection(tail, name, "returned", iteration=name) for tail in returned.tails]
    return Stream(draft, (Tail(name, "result"),))
