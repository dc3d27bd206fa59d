"""The proof that a plan's loops cannot deadlock, in a form that can be checked without the code that found it.

A back edge never blocks its sender, so tasks that all wait for each other would form a cycle without a back edge. The
certificate orders all operators so that every edge but the back edges goes forward, which proves that no such cycle
exists. It also lists the cycles, up to a number, each with its edge that never blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct

from backedge.graphs.cycles import Loops, find_cycles, successors
from backedge.graphs.digraph import reachable, upstream_first
from backedge.graphs.graph_errors import UnnamedCycleError
from backedge.graphs.plan import Edge, Plan

CYCLES_MAX = 1000


class Cycle(Struct, frozen=True):
    """A simple cycle, as the names of its edges. `never_blocks` is the first back edge among them."""

    edges: tuple[str, ...]
    never_blocks: str


class ComponentProof(Struct, frozen=True):
    """The cycles of a component. `cycles_complete` is False if it has more than are listed."""

    name: str
    back_edges: tuple[str, ...]
    cycles: tuple[Cycle, ...]
    cycles_complete: bool


class Certificate(Struct, frozen=True):
    """`order`: every edge of the plan except back edges goes from an earlier operator to a later one."""

    order: tuple[str, ...]
    components: tuple[ComponentProof, ...]


def certify(plan: Plan, cycles_max: int = CYCLES_MAX) -> Certificate:
    """The certificate of a plan, with at most `cycles_max` cycles per component. Raises if there is none.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> again = flow.loop("again")
    >>> odd, even = flow.read(Items([6])).merge(again).split(lambda n: n % 2, name="parity")
    >>> again.feed(even.map(lambda n: n // 2, name="half"))
    >>> odd.write(Collect())
    >>> certify(flow.plan()).components[0].cycles
    (Cycle(edges=('parity.false->half.in', 'half.out->parity.in'), never_blocks='half.out->parity.in'),)
    """
    forward = [edge for edge in plan.edges if not edge.is_back]
    order = tuple(upstream_first(successors(plan.operators, forward)))
    wrong = _going_back(plan, order)
    if wrong:
        raise UnnamedCycleError(
            f"edge {wrong[0].name!r} closes a cycle without a back edge, whose channels could deadlock: "
            "close it with flow.loop(name) and feed"
        )
    return Certificate(order, tuple(_list_cycles(loops, cycles_max) for loops in find_cycles(plan).loops))


def verify(plan: Plan, certificate: Certificate) -> list[str]:
    """The faults of a certificate; empty for a true one. Compares places in the order; does not search for cycles.

    >>> from backedge import Edge
    >>> from backedge.graphs.kinds import Map
    >>> from backedge.graphs.plan import Operator
    >>> operators = {name: Operator(name, Map(abs)) for name in "ab"}
    >>> plan = Plan("flow", operators, (Edge("a->b", "a", "out", "b", "in"),), "")
    >>> verify(plan, Certificate(("a", "b"), ())), verify(plan, Certificate(("b", "a"), ()))
    ([], ["edge 'a->b' goes back in the order but is not a back edge"])
    """
    if sorted(certificate.order) != sorted(plan.operators):
        return ["the order does not list each operator exactly once"]
    faults = [
        f"edge {e.name!r} goes back in the order but is not a back edge" for e in _going_back(plan, certificate.order)
    ]
    back = {edge.name for edge in plan.edges if edge.is_back}
    for proof in certificate.components:
        for cycle in proof.cycles:
            if cycle.never_blocks not in back or cycle.never_blocks not in cycle.edges:
                faults.append(f"cycle {' '.join(cycle.edges)} has no back edge {cycle.never_blocks!r}")
    return faults


def _going_back(plan: Plan, order: tuple[str, ...]) -> list[Edge]:
    place = {name: index for index, name in enumerate(order)}
    return [edge for edge in plan.edges if not edge.is_back and place[edge.sender] >= place[edge.receiver]]


def _list_cycles(loops: Loops, cycles_max: int) -> ComponentProof:
    # One more than the maximum shows whether there are more.
    found = list(islice(simple_cycles(loops), cycles_max + 1))
    cycles = [Cycle(tuple(e.name for e in edges), next(e.name for e in edges if e.is_back)) for edges in found]
    back_edges = tuple(edge.name for edge in loops.back_edges)
    return ComponentProof(loops.name, back_edges, tuple(cycles[:cycles_max]), len(found) <= cycles_max)


def simple_cycles(loops: Loops) -> Iterator[list[Edge]]:
    """The cycles that visit no operator twice, as lists of edges. Generated one at a time: there may be very many."""
    leaving: dict[str, list[Edge]] = {name: [] for name in loops.operators}
    for edge in loops.edges:
        leaving[edge.sender].append(edge)
    # Each cycle is found once, from its first operator, so earlier operators are closed.
    closed: set[str] = set()
    for start in loops.operators:
        yield from _cycles_from(start, leaving, closed)
        closed.add(start)


def _cycles_from(start: str, leaving: Mapping[str, list[Edge]], closed: set[str]) -> Iterator[list[Edge]]:
    graph = {name: [edge.receiver for edge in edges] for name, edges in leaving.items()}
    path: list[Edge] = []
    choices = [iter(leaving[start])]
    while choices:
        edge = next(choices[-1], None)
        if edge is None:
            choices.pop()
            if path:
                path.pop()
            continue
        if edge.receiver == start:
            yield [*path, edge]
            continue
        visited = {start, *(passed.receiver for passed in path)}
        if edge.receiver in visited or edge.receiver in closed:
            continue
        # Enter only vertices from which the start can still be reached: then every step leads to a cycle.
        ahead = reachable([edge.receiver], graph, without=(visited | closed) - {start})
        if start in ahead:
            path.append(edge)
            choices.append(iter(leaving[edge.receiver]))
