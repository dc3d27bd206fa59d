"""The pipelines of a flow: its connected components. They exchange nothing, so each fails and recovers by itself."""

from __future__ import annotations

from msgspec.structs import replace

from backedge.graphs.building import graph_hash
from backedge.graphs.digraph import reachable, reverse
from backedge.graphs.plan import Plan


def pipelines_of(plan: Plan, *, is_divided: bool = False) -> tuple[Plan, ...]:
    """The plan of each pipeline, in the order of the flow; the plan itself if it is connected.

    `is_divided`: the job had several pipelines before, so one that is left has a name, too.

    A pipeline has the name of its first source in alphabetical order, which does not depend on the order of
    declaration.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> for name in ("orders", "prices"):
    ...     flow.read(Items([1, 2]), name=name).write(Collect(), name=f"{name} kept")
    >>> [(each.pipeline, list(each.operators)) for each in pipelines_of(flow.plan())]
    [('orders', ['orders', 'orders kept']), ('prices', ['prices', 'prices kept'])]
    """
    following: dict[str, list[str]] = {name: [] for name in plan.operators}
    for edge in plan.edges:
        following[edge.sender].append(edge.receiver)
    before = reverse(following)
    neighbours = {name: [*following[name], *before[name]] for name in plan.operators}
    found: list[Plan] = []
    placed: set[str] = set()
    for name in plan.operators:
        if name not in placed:
            members = reachable([name], neighbours)
            placed |= members
            found.append(_part(plan, members))
    return tuple(found) if len(found) > 1 or is_divided else (plan,)


def _part(plan: Plan, members: set[str]) -> Plan:
    operators = {name: operator for name, operator in plan.operators.items() if name in members}
    edges = tuple(edge for edge in plan.edges if edge.sender in members)
    name = min(operator.name for operator in operators.values() if operator.kind.is_source)
    return replace(plan, operators=operators, edges=edges, hash=graph_hash(operators.values(), edges), pipeline=name)
