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

    @property
    def key_columns(self) -> str:
        """The columns of its key, as text; empty if there are none, because a function returns the key.

        >>> Edge("e", "a", "out", "b", "in", Routing.HASH, KeyColumns(("user", "day"))).key_columns
        "['user', 'day']"
        """
        if isinstance(self.by, KeyColumns):
            return str(list(self.by.names))
        return self.by if isinstance(self.by, str) else ""


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
        ways, digits = _Ways(self.edges), digits_of(self.edges)
        bodies = {loop: ways.body(loop) for loop in ways.back}
        # Each loop that counts its rounds, at one of its heads: a loop within another has its heads in that one's body.
        counted: dict[str, list[str]] = {}
        for loop in digits:
            counted.setdefault(next(iter(bodies[loop].heads)), []).append(loop)
        place = {loop: number for number, loop in enumerate(digits)}
        found: dict[str, Trip] = {}
        for loop, body in bodies.items():
            inner = [name for operator in body.operators for name in counted.get(operator, ())]
            within = sorted((name for name in inner if _is_within(name, loop, bodies)), key=place.__getitem__)
            found[loop] = Trip(digits.get(loop), tuple(digits[name] for name in within))
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
    return _Ways(edges).round(loop)


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
    ways = _Ways(edges)
    straight = [(ways.round(loop, is_straight=True), loop) for loop in ways.back]
    trips = sorted(straight, key=lambda trip: len(trip[0]))
    trips += sorted(((ways.round(loop), loop) for loop in ways.back), key=lambda trip: len(trip[0]))
    # Operator -> the trips that pass it, by their places in that order.
    passing: dict[str, list[int]] = {}
    for number, (operators, _) in enumerate(trips):
        for operator in operators:
            passing.setdefault(operator, []).append(number)
    found: dict[str, str] = {}
    for edge in edges:
        around = (number for number in passing.get(edge.sender, ()) if edge.receiver in trips[number][0])
        number = next(around, None)
        loop = edge.loop or (None if number is None else trips[number][1])
        if loop is not None:
            found[edge.name] = loop
    return found


class _Body(NamedTuple):
    heads: frozenset[str]
    operators: frozenset[str]


class _Ways:
    """The edges of a graph, by their ends.

    - entering, leaving: operator -> the edges that enter or leave it. back: loop -> its back edges.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.entering: dict[str, list[Edge]] = {}
        self.leaving: dict[str, list[Edge]] = {}
        self.back: dict[str, list[Edge]] = {}
        for edge in edges:
            self.entering.setdefault(edge.receiver, []).append(edge)
            self.leaving.setdefault(edge.sender, []).append(edge)
            if edge.loop is not None:
                self.back.setdefault(edge.loop, []).append(edge)

    def body(self, loop: str, *, is_straight: bool = False) -> _Body:
        """The operators of a trip: its heads, and all that lead to its back edges without passing a head.

        `is_straight`: on a trip that takes no back edge of another loop.
        """
        back = self.back.get(loop, ())
        heads = frozenset(edge.receiver for edge in back)
        found = set(heads)
        waiting = [edge.sender for edge in back]
        while waiting:
            operator = waiting.pop()
            if operator not in found:
                found.add(operator)
                edges = self.entering.get(operator, ())
                waiting += [edge.sender for edge in edges if not is_straight or edge.loop in (None, loop)]
        return _Body(heads, frozenset(found))

    def round(self, loop: str, *, is_straight: bool = False) -> frozenset[str]:
        """What a record may pass on such a trip."""
        body = self.body(loop, is_straight=is_straight)
        found = set(body.heads)
        ahead = list(body.heads)
        while ahead:
            for edge in self.leaving.get(ahead.pop(), ()):
                is_taken = edge.loop is None if is_straight else edge.loop != loop
                # What is outside the body leads to none of its back edges without passing a head.
                if is_taken and edge.receiver in body.operators and edge.receiver not in found:
                    found.add(edge.receiver)
                    ahead.append(edge.receiver)
        # A source of records that join the loop leads to its back edges, and no trip passes it.
        return frozenset(found)


def _is_within(inner: str, outer: str, bodies: Mapping[str, _Body]) -> bool:
    inside, around = bodies[inner], bodies[outer]
    return inner != outer and inside.operators <= around.operators and not around.heads & inside.operators
