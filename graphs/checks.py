"""Refuses graphs that could not run, could not end, or would not do what they appear to do.

A loop has a way out if a stream leaves it or `max_rounds` limits the trips of its records. A filter, a flat_map or a
process in the loop is not a way out: whether it drops every record eventually cannot be decided, and dropped records
are lost. Dead letters of failed calls do not count either, because failures are not planned. A stream that leaves the
loop is not enough if the loop consists of operators that return one record for each: those records never leave.
"""

from __future__ import annotations

from collections.abc import Mapping

from backedge.graphs.cycles import Cycles, Loops, entering_each, find_cycles, successors
from backedge.graphs.digraph import components, cyclic_components, reachable
from backedge.graphs.discovery import sources_of
from backedge.graphs.graph_errors import (
    IterationError,
    NoCycleError,
    NothingEntersError,
    NoWayOutError,
    UnnamedCycleError,
)
from backedge.graphs.io import Source
from backedge.graphs.kinds import Iterate
from backedge.graphs.plan import Edge, Plan


def check(plan: Plan) -> Cycles:
    """Raise for the first fault found in a plan; return its cycles if there is none."""
    _check_every_cycle_is_named(plan)
    _check_every_back_edge_closes_a_cycle(plan)
    _check_free_loops_and_iterations_are_apart(plan)
    cycles = find_cycles(plan)
    for loops in cycles.loops:
        if not loops.entries and not any(plan.operators[name].kind.is_source for name in loops.operators):
            raise NothingEntersError(
                f"no record can enter {_what(loops)}, so it would always be empty: "
                f"merge a stream from a source into one of {_list(loops.operators)}"
            )
    _check_inner_iterations_start_inside(plan)
    _check_iterations_are_bounded(plan, cycles)
    _check_ways_out(plan)
    return cycles


def _check_every_cycle_is_named(plan: Plan) -> None:
    forward = [edge for edge in plan.edges if not edge.is_back]
    for members in cyclic_components(successors(plan.operators, forward)):
        raise UnnamedCycleError(
            f"operators {_list(members)} form a cycle without a back edge, whose channels could deadlock: "
            "close the cycle with flow.loop(name) and feed"
        )


def _check_every_back_edge_closes_a_cycle(plan: Plan) -> None:
    parts = components(successors(plan.operators, plan.edges))
    part_of = {name: number for number, members in enumerate(parts) for name in members}
    for edge in plan.edges:
        if not edge.is_back or part_of[edge.sender] == part_of[edge.receiver]:
            continue
        if edge.loop == edge.receiver:
            raise NoCycleError(
                f"the body of iteration {edge.loop!r} returns a stream of {edge.sender!r} that does not depend on "
                "the body's argument: apply operators to the argument, and merge other streams into those"
            )
        raise NoCycleError(
            f"edge {edge.name!r} of loop {edge.loop!r} closes no cycle, because no path leads from "
            f"{edge.receiver!r} to {edge.sender!r}: feed a stream that comes from the loop, or read the fed stream "
            "directly instead of the loop"
        )


def _check_free_loops_and_iterations_are_apart(plan: Plan) -> None:
    """An iteration cannot run inside a free-running loop, nor the reverse: neither knows when the other is done."""
    free = [edge for edge in plan.edges if edge.loop != edge.receiver]
    for members in cyclic_components(successors(plan.operators, free)):
        inside = [name for name in members if plan.operators[name].kind.in_rounds]
        if inside:
            raise IterationError(
                f"iteration {inside[0]!r} runs inside the free-running loop {_loops(members, free)[0]!r}, where its "
                "start is never complete: make the outer loop an iteration too, or replace the inner one by a loop "
                "with max_rounds="
            )
    found = cyclic_components(successors(plan.operators, plan.edges))
    for members, entering in zip(found, entering_each(found, free), strict=True):
        inside = [name for name in members if plan.operators[name].kind.in_rounds]
        if inside and (loops := _loops(members, entering)):
            raise IterationError(
                f"the free-running loop {loops[0]!r} is inside the body of iteration {inside[0]!r}, whose rounds "
                "cannot tell when the loop has run dry: make it an iteration inside the body, with flow.iterate"
            )


def _check_inner_iterations_start_inside(plan: Plan) -> None:
    graph = successors(plan.operators, plan.edges)
    inside: dict[str, set[str]] = {}
    for edge in plan.edges:
        kind = plan.operators[edge.receiver].kind
        if edge.input != "start" or not isinstance(kind, Iterate) or kind.enclosing is None:
            continue
        if kind.enclosing not in inside:
            inside[kind.enclosing] = reachable([kind.enclosing], graph)
        if edge.sender not in inside[kind.enclosing]:
            raise IterationError(
                f"iteration {edge.receiver!r} is inside the body of {kind.enclosing!r} but starts from "
                f"{edge.sender!r}, which is outside, so it would run once instead of once per round: start it from a "
                "stream that depends on the body's argument, or move it before the outer iteration"
            )


def _check_iterations_are_bounded(plan: Plan, cycles: Cycles) -> None:
    graph = successors(plan.operators, plan.edges)
    sources = {name: plan.operators[name].function for name in sources_of(plan)}
    unbounded = {
        name: f"source {name!r} is unbounded"
        for name, source in sources.items()
        if isinstance(source, Source) and not source.bounded
    }
    # That of a source that finds splits ends with the source.
    endless = [e for e in plan.edges if e.endless and not plan.operators[e.receiver].kind.is_source]
    unbounded |= {e.receiver: f"loop {e.loop!r} is endless" for e in endless}
    iterations = {name: loops for loops in cycles.loops if loops.in_rounds for name in loops.operators}
    seen: set[str] = set()
    for start, reason in unbounded.items() if iterations else ():
        behind = reachable([start], graph, seen)
        seen |= behind
        if hit := {iterations[name].name: iterations[name] for name in behind & iterations.keys()}:
            loops = next(loops for loops in cycles.loops if loops.name in hit)
            raise IterationError(
                f"{_what(loops)} never receives all of its input, because {reason}: "
                "iterate over a bounded source, or use flow.loop"
            )


def _check_ways_out(plan: Plan) -> None:
    unlimited = [edge for edge in plan.edges if not _is_limited(plan, edge)]
    # An iteration ends with an empty round, even if no stream leaves it.
    free = [edge for edge in unlimited if edge.loop != edge.receiver]
    found = cyclic_components(successors(plan.operators, free))
    part_of = {name: number for number, members in enumerate(found) for name in members}
    left = {part_of.get(e.sender) for e in plan.edges if e.output != "dead" and not _is_within(e, part_of)}
    for number, members in enumerate(found):
        if number not in left:
            raise NoWayOutError(
                f"loop {_loops(members, free)[0]!r} has no way out: give it max_rounds=, let a stream leave it, "
                "or declare it endless=True if it is never meant to run dry"
            )
    one_for_one = [edge for edge in unlimited if _is_one_for_one(plan, edge)]
    for members in cyclic_components(successors(plan.operators, one_for_one)):
        loop = _loops(members, one_for_one)[0]
        fix = "give it rounds= or until=" if loop in plan.operators else "give it max_rounds=, declare it endless=True"
        raise NoWayOutError(
            f"loop {loop!r} has no way out: in {_list(members)} each record becomes one, so records go round for "
            f"ever: {fix}, or split or filter the stream that feeds the loop"
        )


def _is_within(edge: Edge, part_of: Mapping[str, int]) -> bool:
    return edge.sender in part_of and part_of[edge.sender] == part_of.get(edge.receiver)


def _loops(operators: list[str], edges: list[Edge]) -> list[str | None]:
    """The loops whose back edges lead from one of these operators to another."""
    members = set(operators)
    return [e.loop for e in edges if e.is_back and e.sender in members and e.receiver in members]


def _is_limited(plan: Plan, edge: Edge) -> bool:
    """Whether records cannot use this edge for ever, or may because the user declared it."""
    head = plan.operators[edge.receiver].kind
    if edge.loop == edge.receiver and isinstance(head, Iterate):
        return head.rounds is not None or head.until is not None
    return edge.endless or edge.max_rounds is not None


def _is_one_for_one(plan: Plan, edge: Edge) -> bool:
    kind = plan.operators[edge.sender].kind
    return (kind.one_for_one and edge.output == "out") or (kind.in_rounds and edge.output == "body")


def _what(loops: Loops) -> str:
    return f"{'iteration' if loops.in_rounds else 'loop'} {loops.name!r}"


def _list(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(repr, names))
