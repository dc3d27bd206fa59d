"""Builds a plan from a draft: resolves open ends, names edges, checks the graph and hashes it."""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from backedge.graphs.checks import check
from backedge.graphs.draft import Connection, Draft, Tail
from backedge.graphs.graph_errors import (
    DuplicateNameError,
    NoSinkError,
    NoSourceError,
    OpenLoopError,
    UnreadLoopError,
    UnreadOutputWarning,
)
from backedge.graphs.kinds import Write
from backedge.graphs.naming import function_name, numbered
from backedge.graphs.plan import Edge, Operator, Plan, Routing
from backedge.graphs.sources_and_sinks import Collect


def build_draft(draft: Draft) -> Plan:
    """Build the plan of a draft. The draft is not changed: it can grow further and be built again."""
    _check_ends(draft)
    operators = dict(draft.operators)
    connections = draft.connections + _unread_dead_letters(draft, operators)
    edges = _named([edge for connection in connections for edge in _resolve(draft, connection)])
    for edge in sorted(edges, key=lambda edge: edge.output):
        sender = operators[edge.sender]
        if edge.output not in sender.outputs:
            operators[edge.sender] = replace(sender, outputs=(*sender.outputs, edge.output))
    hashed = graph_hash(operators.values(), edges)
    constants, versions = dict(draft.constants), dict(draft.versions)
    plan = Plan(draft.name, operators, edges, hashed, draft.stop_when, constants=constants, versions=versions)
    check(plan)
    _warn_of_unread_outputs(draft, plan)
    return plan


def graph_hash(operators: Iterable[Operator], edges: Iterable[Edge]) -> str:
    """A hash of the structure: names, kinds, outputs, versions of state, edges, routings, key columns, loops.

    User code, limits, parallelism and the order of declaration do not count, because they do not affect state.

    >>> from backedge.graphs.kinds import Map
    >>> graph_hash([Operator("a", Map(abs)), Operator("b", Map(len))], []) == graph_hash(
    ...     [Operator("b", Map(abs)), Operator("a", Map(abs))], [])
    True
    """
    return hash_of_structure(
        ((o.name, o.kind.word, o.inputs, o.outputs, o.kind.state_version) for o in operators),
        ((e.name, e.routing.value, e.key_columns, e.loop or "") for e in edges),
    )


def hash_of_structure(
    operators: Iterable[tuple[str, str, Sequence[str], Sequence[str], int]], edges: Iterable[tuple[str, str, str, str]]
) -> str:
    """Hash operators with kind, inputs, outputs and version of state, and edges with routing, key column and loop."""
    form = {
        "operators": sorted(
            [name, kind, list(inputs), list(outputs), version] for name, kind, inputs, outputs, version in operators
        ),
        "edges": sorted(map(list, edges)),
    }
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()[:16]


def _check_ends(draft: Draft) -> None:
    read = {c.tail.loop for c in draft.connections if c.tail.output == "out"}
    for loop in draft.loops.values():
        if loop.fed is None:
            raise OpenLoopError(
                f"loop {loop.name!r} is never fed: call feed(stream) on it, with the stream that closes the loop"
            )
        if loop.name not in read:
            raise UnreadLoopError(
                f"loop {loop.name!r} is fed but never read: merge it into the stream that its records return to"
            )
    kinds = [operator.kind for operator in draft.operators.values()]
    if not any(kind.is_source for kind in kinds):
        raise NoSourceError(f"flow {draft.name!r} reads nothing: start it with flow.read(source)")
    if not any(kind.is_sink for kind in kinds):
        raise NoSinkError(
            f"flow {draft.name!r} writes nothing, so it would have no result: end it with stream.write(sink)"
        )


def _warn_of_unread_outputs(draft: Draft, plan: Plan) -> None:
    """Warn once about each output that an operator declares and nothing reads."""
    read = {(edge.sender, edge.output) for edge in plan.edges}
    known = read | draft.warned
    for name, operator in plan.operators.items():
        for output in operator.kind.optional_outputs:
            if (name, output) not in known:
                draft.warned.add((name, output))
                warnings.warn(
                    f"operator {name!r} of flow {draft.name!r} has an output {output!r} that is never read, so its "
                    f"records are dropped: read it with .side({output!r}) and write it, or remove it from the outputs "
                    f"of {function_name(operator.function) or operator.kind.word}",
                    UnreadOutputWarning,
                    stacklevel=_users_level(),
                )


def _users_level() -> int:
    """The stack level of the user's code, so that a warning points there."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "backedge":
        level, frame = level + 1, frame.f_back
    return level


def _unread_dead_letters(draft: Draft, operators: dict[str, Operator]) -> list[Connection]:
    """Add a sink for each unread stream of dead letters, so that they are kept and counted."""
    read = {(c.tail.loop or c.tail.operator) for c in draft.connections if c.tail.output == "dead"}
    unread = [
        Tail("", "dead", loop=loop.name)
        for loop in draft.loops.values()
        if loop.max_rounds is not None and loop.on_limit == "dead_letter" and loop.name not in read
    ]
    unread += [Tail(o.name, "dead") for o in draft.operators.values() if "dead" in o.outputs and o.name not in read]
    connections: list[Connection] = []
    for tail in unread:
        name = f"{tail.loop or tail.operator}.dead_letters"
        if name in operators or name in draft.loops:
            raise DuplicateNameError(
                f"the name of operator {name!r} is reserved for the dead letters of {tail.loop or tail.operator!r}: "
                "rename the operator, or write those dead letters yourself"
            )
        operators[name] = Operator(name, Write(Collect()), outputs=())
        connections.append(Connection(tail, name, "in"))
    return connections


def _resolve(draft: Draft, connection: Connection) -> list[Edge]:
    """The edges of a connection: one, or for the open end of a loop one from each tail that feeds it."""
    tail = connection.tail
    if tail.loop is None:
        return [_edge(connection, tail, tail.output, loop=connection.iteration)]
    loop = draft.loops[tail.loop]
    fed = loop.fed or ()
    if tail.output == "dead":
        senders = dict.fromkeys(source.operator for source in fed)
        return [
            _edge(connection, Tail(sender, routing=tail.routing, by=tail.by), f"dead:{loop.name}") for sender in senders
        ]
    limits: dict[str, Any] = {"max_rounds": loop.max_rounds, "on_limit": loop.on_limit, "endless": loop.endless}
    # The consumer's routing takes precedence over that of the stream that feeds the loop.
    routed = fed if tail.routing is Routing.FORWARD else [source.routed(tail.routing, tail.by) for source in fed]
    return [_edge(connection, source, source.output, loop=loop.name, **limits) for source in routed]


def _edge(connection: Connection, tail: Tail, output: str, **loop: Any) -> Edge:
    return Edge("", tail.operator, output, connection.receiver, connection.input, tail.routing, tail.by, **loop)


def _named(edges: list[Edge]) -> tuple[Edge, ...]:
    named: dict[str, Edge] = {}
    for edge in edges:
        name = numbered(f"{edge.sender}.{edge.output}->{edge.receiver}.{edge.input}", named)
        named[name] = replace(edge, name=name)
    return tuple(named.values())
