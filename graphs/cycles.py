"""Finds the cycles of a plan: components, back edges, heads, and the nesting of iterations.

Back edges are the edges that the user named with a loop or an iteration. Nesting follows from the graph, not from the
program text: the strongly connected component around an iteration's head is inside that iteration; a part that remains
strongly connected around another head without its back edges is inside both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from backedge.graphs.digraph import cyclic_components
from backedge.graphs.graph_errors import IterationError
from backedge.graphs.plan import Edge, Plan


class Loops(Struct, frozen=True):
    """A strongly connected component with a cycle."""

    name: str
    operators: tuple[str, ...]
    back_edges: tuple[Edge, ...]
    entries: tuple[Edge, ...]

    @property
    def in_rounds(self) -> bool:
        """Whether it is an iteration: its back edges have the name of the head they enter."""
        return any(edge.loop == edge.receiver for edge in self.back_edges)


class Cycles(Struct, frozen=True):
    """All loops of a plan, upstream first, and the iterations around each operator, outermost first."""

    loops: tuple[Loops, ...]
    paths: Mapping[str, tuple[str, ...]]

    def depth(self, edge: Edge) -> int:
        """The number of iterations that contain both ends. Edges that enter or leave at a head are outside it.

        >>> from backedge import Collect, Flow, Items
        >>> flow = Flow()
        >>> flow.iterate(flow.read(Items([1])), lambda s: s.map(abs), rounds=3).write(Collect())
        >>> plan = flow.plan()
        >>> [(edge.name, find_cycles(plan).depth(edge)) for edge in plan.edges]  # doctest: +NORMALIZE_WHITESPACE
        [('read-1.out->iterate.start', 0), ('iterate.body->map-1.in', 1), ('map-1.out->iterate.returned', 1),
         ('iterate.result->write-1.in', 0)]
        """
        sender, receiver = self.paths[edge.sender], self.paths[edge.receiver]
        if edge.output == "result" and sender[-1:] == (edge.sender,):
            sender = sender[:-1]
        if edge.input == "start" and receiver[-1:] == (edge.receiver,):
            receiver = receiver[:-1]
        depth = 0
        for outer, inner in zip(sender, receiver, strict=False):
            if outer != inner:
                break
            depth += 1
        return depth


def find_cycles(plan: Plan) -> Cycles:
    """The loops of a plan and how its iterations nest."""
    found = cyclic_components(successors(plan.operators, plan.edges))
    loops = tuple(_loops(*each) for each in zip(found, entering_each(found, plan.edges), strict=True))
    return Cycles(loops, _nest(plan))


def successors(operators: Iterable[str], edges: Iterable[Edge]) -> dict[str, list[str]]:
    """The graph of these operators and edges; edges with an end elsewhere are left out."""
    graph: dict[str, dict[str, None]] = {operator: {} for operator in operators}
    for edge in edges:
        if edge.sender in graph and edge.receiver in graph:
            graph[edge.sender][edge.receiver] = None
    return {operator: list(following) for operator, following in graph.items()}


def entering_each(components: Sequence[Sequence[str]], edges: Iterable[Edge]) -> list[list[Edge]]:
    """For each component, the edges that enter its operators, from within and from outside."""
    found: list[list[Edge]] = [[] for _ in components]
    of_operator = {name: found[number] for number, members in enumerate(components) for name in members}
    for edge in edges:
        if (entering := of_operator.get(edge.receiver)) is not None:
            entering.append(edge)
    return found


def _loops(operators: list[str], entering: list[Edge]) -> Loops:
    members = set(operators)
    back_edges = tuple(edge for edge in entering if edge.is_back and edge.sender in members)
    return Loops(
        name="+".join(sorted({edge.loop for edge in back_edges if edge.loop is not None})) or operators[0],
        operators=tuple(operators),
        back_edges=back_edges,
        entries=tuple(edge for edge in entering if edge.sender not in members),
    )


def _nest(plan: Plan) -> dict[str, tuple[str, ...]]:
    paths: dict[str, tuple[str, ...]] = dict.fromkeys(plan.operators, ())
    work: list[tuple[Iterable[str], Sequence[Edge]]] = [(plan.operators, plan.edges)]
    while work:
        operators, edges = work.pop()
        components = cyclic_components(successors(operators, edges))
        for members, entering in zip(components, entering_each(components, edges), strict=True):
            heads = [name for name in members if plan.operators[name].kind.in_rounds]
            if not heads:
                continue
            head = _outermost(heads, set(members), entering)
            for name in members:
                paths[name] = (*paths[name], head)
            work.append((members, [edge for edge in entering if edge.loop != head]))
    return paths


def _outermost(heads: list[str], members: set[str], entering: list[Edge]) -> str:
    """The head of the outermost iteration: the only one that starts from outside."""
    started = {edge.receiver for edge in entering if edge.input == "start" and edge.sender not in members}
    from_outside = [head for head in heads if head in started]
    if len(from_outside) != 1:
        names = " and ".join(map(repr, from_outside or heads))
        raise IterationError(
            f"iterations {names} are nested in each other, but exactly one of them must start from outside: "
            "start the inner one from a stream that depends on the outer body's argument"
        )
    return from_outside[0]
