"""What is refused: graphs that could not run, could not end, or would not mean what they say.

A loop has a way out when a stream leaves it, or when `max_rounds` bounds the trips of its records. A filter, a
flat_map or a process in the loop is none by itself: whether it drops every record in the end nobody can see, and what
it drops is lost. Dead letters of failed calls are none either: nobody plans on them. And a stream that leaves is not
enough where what goes round passes only operators that give back one record for each: it goes round for good.
"""

from __future__ import annotations

from graphs.cycles import Cycles, Loops, find_cycles, successors
from graphs.digraph import cyclic_components, reachable
from graphs.graph_errors import IterationError, NoCycleError, NothingEntersError, NoWayOutError, UnnamedCycleError
from graphs.io import Source
from graphs.kinds import Iterate
from graphs.plan import Edge, Plan


def check(plan: Plan) -> Cycles:
    """Raise the first fault found in a plan; its cycles where there is none."""
    _check_every_cycle_is_named(plan)
    _check_every_back_edge_closes_a_cycle(plan)
    _check_free_loops_and_iterations_are_apart(plan)
    cycles = find_cycles(plan)
    for loops in cycles.loops:
        if not loops.entries:
            raise NothingEntersError(
                f"{_what(loops)} is entered by no record, so nothing would ever go round: "
                f"merge a stream that comes from a source into one of {_list(loops.operators)}"
            )
    _check_inner_iterations_start_inside(plan)
    _check_iterations_are_bounded(plan, cycles)
    _check_ways_out(plan)
    return cycles


def _check_every_cycle_is_named(plan: Plan) -> None:
    forward = [edge for edge in plan.edges if not edge.is_back]
    for members in cyclic_components(successors(plan.operators, forward)):
        raise UnnamedCycleError(
            f"operators {_list(members)} form a cycle without a back edge, whose channels could wait for each other "
            "for good: close it through flow.loop(name) and feed"
        )


def _check_every_back_edge_closes_a_cycle(plan: Plan) -> None:
    graph = successors(plan.operators, plan.edges)
    for edge in plan.edges:
        if not edge.is_back or edge.sender in reachable([edge.receiver], graph):
            continue
        if edge.loop == edge.receiver:
            raise NoCycleError(
                f"the body of iteration {edge.loop!r} returns a stream of {edge.sender!r}, which does not come from "
                "the body's argument: apply operators to the argument, and merge other streams in before one of them"
            )
        raise NoCycleError(
            f"loop {edge.loop!r} closes no cycle by edge {edge.name!r}: nothing comes back from {edge.receiver!r} to "
            f"{edge.sender!r}: read the stream that is fed instead of the loop, or feed what comes from the loop"
        )


def _check_free_loops_and_iterations_are_apart(plan: Plan) -> None:
    """Rounds inside a loop that runs freely have no end to wait for, and the other way round."""
    free = [edge for edge in plan.edges if edge.loop != edge.receiver]
    for members in cyclic_components(successors(plan.operators, free)):
        loop = next(e.loop for e in free if e.is_back and e.sender in members and e.receiver in members)
        inside = [name for name in members if plan.operators[name].kind.in_rounds]
        if inside:
            raise IterationError(
                f"iteration {inside[0]!r} runs inside the free-running loop {loop!r}, where its start is never "
                "complete: make the outer loop an iteration too, or do the inner rounds with a loop and max_rounds="
            )
    for members in cyclic_components(successors(plan.operators, plan.edges)):
        inside = [name for name in members if plan.operators[name].kind.in_rounds]
        loops = [e.loop for e in free if e.is_back and e.sender in members and e.receiver in members]
        if inside and loops:
            raise IterationError(
                f"the free-running loop {loops[0]!r} is inside the body of iteration {inside[0]!r}, whose rounds "
                "would not know when it has run dry: make it an iteration inside the body, with flow.iterate"
            )


def _check_inner_iterations_start_inside(plan: Plan) -> None:
    graph = successors(plan.operators, plan.edges)
    for name, operator in plan.operators.items():
        kind = operator.kind
        if not isinstance(kind, Iterate) or kind.enclosing is None:
            continue
        inside = reachable([kind.enclosing], graph)
        for edge in plan.edges:
            if edge.receiver == name and edge.input == "start" and edge.sender not in inside:
                raise IterationError(
                    f"iteration {name!r} is written inside the body of {kind.enclosing!r} and starts with a stream of "
                    f"{edge.sender!r}, from outside, so that it would run once and not once a round: start it with a "
                    "stream that comes from the body's argument, or write it before the outer iteration"
                )


def _check_iterations_are_bounded(plan: Plan, cycles: Cycles) -> None:
    graph = successors(plan.operators, plan.edges)
    sources = {name: o.function for name, o in plan.operators.items() if o.kind.is_source}
    unbounded = {
        name: f"source {name!r} is unbounded"
        for name, source in sources.items()
        if isinstance(source, Source) and not source.bounded
    }
    unbounded |= {e.receiver: f"loop {e.loop!r} is endless" for e in plan.edges if e.endless}
    for start, reason in unbounded.items():
        behind = reachable([start], graph)
        for loops in cycles.loops:
            if loops.in_rounds and not behind.isdisjoint(loops.operators):
                raise IterationError(
                    f"{_what(loops)} never has all of its input, for {reason}: "
                    "iterate over a bounded source, or use flow.loop"
                )


def _check_ways_out(plan: Plan) -> None:
    unlimited = [edge for edge in plan.edges if not _is_limited(plan, edge)]
    # An iteration ends by an empty round, whether a stream leaves it or not.
    free = [edge for edge in unlimited if edge.loop != edge.receiver]
    for members in cyclic_components(successors(plan.operators, free)):
        loop = next(e.loop for e in free if e.is_back and e.sender in members and e.receiver in members)
        exits = [e for e in plan.edges if e.sender in members and e.receiver not in members and e.output != "dead"]
        if not exits:
            raise NoWayOutError(
                f"loop {loop!r} has no way out: give it max_rounds=, or let a stream leave it, "
                "or declare it endless=True if it shall never run dry"
            )
    one_for_one = [edge for edge in unlimited if _is_one_for_one(plan, edge)]
    for members in cyclic_components(successors(plan.operators, one_for_one)):
        loop = next(e.loop for e in one_for_one if e.is_back and e.sender in members and e.receiver in members)
        fix = "give it rounds= or until=" if loop in plan.operators else "give it max_rounds=, declare it endless=True"
        raise NoWayOutError(
            f"loop {loop!r} has no way out: its records pass {_list(members)}, one comes back for each, and so on: "
            f"{fix}, or split or filter the stream that is fed"
        )


def _is_limited(plan: Plan, edge: Edge) -> bool:
    """Whether nothing can go round over this edge for good, or may do so because the user said it."""
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
