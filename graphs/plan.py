"""The frozen plan of a flow: operators and edges, with stable names and a stable hash.

A plan says what is computed, not where; `deployment.py` says what runs where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from backedge.graphs.constant import Constant
from backedge.graphs.hops import Digit, Trip
from backedge.graphs.operator_kind import OperatorKind
from backedge.graphs.public import public
from backedge.graphs.versions import Versions

Key = Callable[[Any], Any] | str
"""A function of the record, or the name of a column."""


class KeyColumns(Struct, frozen=True):
    """A key of several columns: a function of a record, whose columns operators on columns look up by name.

    >>> KeyColumns(("user", "day"))({"user": 7, "day": "monday", "n": 1})
    (7, 'monday')
    """

    names: tuple[str, ...]

    def __call__(self, record: Any) -> tuple[Any, ...]:
        return tuple([record[name] for name in self.names])


class Routing(Enum):
    """How the records of an edge find the receiving task."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"
    ROUTE = "route"


class Resources(Struct, frozen=True):
    """The machine resources that one task of an operator needs; None if the user did not specify them.

    >>> Resources(num_cpus=0).are_given, Resources().are_given
    (True, False)
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    custom: Mapping[str, float] | None = None

    @property
    def are_given(self) -> bool:
        return self != Resources()


class Operator(Struct, frozen=True):
    """A logical step. `kind` says what it does, with its options; it comes from `kinds.py` or another package.

    `keys` has the key of each keyed input: a function of the record, or a column name.
    """

    name: str
    kind: OperatorKind
    parallelism: int | None = None
    keys: Mapping[str, Key] = {}
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    resources: Resources = Resources()

    @property
    def function(self) -> Any:
        """The user's function, class, source or sink, if there is one."""
        return self.kind.subject


@public
class Edge(Struct, frozen=True):
    """A logical connection from one output of an operator to one input of another.

    `by` is the key of a HASH edge or the function of a ROUTE edge. A back edge names its `loop`; `max_rounds` limits
    the hops of its records, and `on_limit` says what happens beyond. An `endless` one never runs dry.

    `declared` is the routing in the user's graph if a deployment had to replace it; the hash uses the declared one.
    """

    name: str
    sender: str
    output: str
    receiver: str
    input: str
    routing: Routing = Routing.FORWARD
    by: Callable[[Any], Any] | str | None = None
    loop: str | None = None
    max_rounds: int | None = None
    on_limit: str = "dead_letter"
    endless: bool = False
    declared: Routing | None = None

    @property
    def is_back(self) -> bool:
        return self.loop is not None


@public
class Plan(Struct, frozen=True, dict=True):
    """A graph that has passed every check: no open loop, every cycle with a named back edge, unique names.

    `pipeline` is the name of a connected component that is run by itself (`pipelines.py`); None for a whole flow.
    """

    name: str
    operators: Mapping[str, Operator]
    edges: tuple[Edge, ...]
    hash: str
    stop_when: Callable[..., bool] | None = None
    pipeline: str | None = None
    constants: Mapping[str, Constant[Any]] = {}
    versions: Mapping[str, Versions] = {}

    @cached_property
    def trips(self) -> Mapping[str, Trip]:
        """Loop -> the effect of one trip on the hops of a record. Loops without an effect are left out."""
        limits, digits = _limits(self.edges), digits_of(self.edges)
        bodies = {loop: _body(loop, self.edges) for loop in limits}
        found = {
            loop: Trip(digits.get(loop), tuple(digits[inner] for inner in digits if _is_within(inner, loop, bodies)))
            for loop in limits
        }
        return {loop: trip for loop, trip in found.items() if trip.digit is not None or trip.within}


def digits_of(edges: Sequence[Edge]) -> dict[str, Digit]:
    """Loop -> its digit in the hops of a record, for each loop that counts its rounds."""
    digits: dict[str, Digit] = {}
    weight = 1
    for loop, limit in _limits(edges).items():
        if limit is not None:
            digits[loop] = Digit(weight, limit + 1)
            weight *= limit + 1
    return digits


def _limits(edges: Sequence[Edge]) -> dict[str, int | None]:
    return {edge.loop: edge.max_rounds for edge in edges if edge.loop is not None}


def operators_round(loop: str, edges: Sequence[Edge]) -> frozenset[str]:
    """The operators that a record may pass on a trip round a loop, those of the loops within it included."""
    body = _body(loop, edges)
    found = set(body.heads)
    ahead = list(body.heads)
    while ahead:
        operator = ahead.pop()
        following = {edge.receiver for edge in edges if edge.sender == operator and edge.loop != loop} - found
        found |= following
        ahead += following
    # A source of records that join the loop leads to its back edges, and no trip passes it.
    return body.operators & found


def loops_of_edges(edges: Sequence[Edge]) -> dict[str, str]:
    """Edge -> the loop that it is in: a back edge in its own, any other in the innermost loop that leads over it.

    A trip that takes no other back edge counts first. Of loops that share operators and are not nested, the one with
    fewer operators has the shared edges; of two with as many, the one whose back edge comes first.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> again = flow.loop("again")
    >>> done, more = flow.read(Items([1])).merge(again).map(abs, name="head").split(bool, name="body")
    >>> again.feed(more.rebalance())
    >>> done.write(Collect())
    >>> loops_of_edges(flow.plan().edges)
    {'body.false->head.in': 'again', 'head.out->body.in': 'again'}
    """
    loops = list(dict.fromkeys(edge.loop for edge in edges if edge.loop is not None))
    straight = [(operators_round(loop, [e for e in edges if e.loop in (None, loop)]), loop) for loop in loops]
    trips = sorted(straight, key=lambda trip: len(trip[0]))
    trips += sorted(((operators_round(loop, edges), loop) for loop in loops), key=lambda trip: len(trip[0]))
    found: dict[str, str] = {}
    for edge in edges:
        around = (loop for operators, loop in trips if {edge.sender, edge.receiver} <= operators)
        loop = edge.loop or next(around, None)
        if loop is not None:
            found[edge.name] = loop
    return found


class _Body(NamedTuple):
    heads: frozenset[str]
    operators: frozenset[str]


def _body(loop: str, edges: Sequence[Edge]) -> _Body:
    """The operators of a trip round the loop: its heads, and all that lead to its back edges without passing a head."""
    heads = frozenset(edge.receiver for edge in edges if edge.loop == loop)
    found = set(heads)
    waiting = [edge.sender for edge in edges if edge.loop == loop]
    while waiting:
        operator = waiting.pop()
        if operator not in found:
            found.add(operator)
            waiting += [edge.sender for edge in edges if edge.receiver == operator]
    return _Body(heads, frozenset(found))


def _is_within(inner: str, outer: str, bodies: Mapping[str, _Body]) -> bool:
    inside, around = bodies[inner], bodies[outer]
    return inner != outer and inside.operators <= around.operators and not around.heads & inside.operators
