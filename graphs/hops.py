"""How often a record has gone round each loop that has a limit: one number, so that a batch needs only one, too.

Each loop with `max_rounds` has a digit of the number. A trip adds one to the digit of its own loop, and sets those of
the loops within it to zero: they are entered again. Loops that share their head, or are entangled otherwise, are not
within each other, so each of them counts all of its trips. A loop without a limit, or an iteration, has no digit.

Of a flow with one limited loop the number is how often a record has gone round it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from graphs.plan import Edge

HOPS_MAX = 2**62


class Digit(NamedTuple):
    """Where the number has the trips round one loop: they go from 0 to `max_rounds`, which is `base` - 1.

    >>> Digit(weight=10, base=10).of(375)
    7
    """

    weight: int
    base: int

    def of(self, hops: int) -> int:
        """The trips that this number tells of the loop."""
        return hops // self.weight % self.base


class Trip(NamedTuple):
    """What one trip round a loop does to the number: `digit` is None where the loop has no limit.

    >>> Trip(Digit(1, 10), ()).after(3), Trip(None, (Digit(1, 10),)).after(13)
    (4, 10)
    """

    digit: Digit | None
    within: tuple[Digit, ...]

    def after(self, hops: int) -> int:
        """The number once the record has gone round."""
        for digit in self.within:
            hops -= digit.of(hops) * digit.weight
        return hops if self.digit is None else hops + self.digit.weight


def trips(edges: Sequence[Edge]) -> dict[str, Trip]:
    """Of each loop what a trip round it does, where that is anything."""
    limits = {edge.loop: edge.max_rounds for edge in edges if edge.loop is not None}
    digits: dict[str, Digit] = {}
    weight = 1
    for loop, limit in limits.items():
        if limit is not None:
            digits[loop] = Digit(weight, limit + 1)
            weight *= limit + 1
    bodies = {loop: _body(loop, edges) for loop in limits}
    found = {
        loop: Trip(digits.get(loop), tuple(digits[inner] for inner in digits if _is_within(inner, loop, bodies)))
        for loop in limits
    }
    return {loop: trip for loop, trip in found.items() if trip.digit is not None or trip.within}


def counts_up_to(limits: Iterable[int]) -> int:
    """The largest number that loops with these limits need."""
    largest = 1
    for limit in limits:
        largest *= limit + 1
    return largest - 1


class _Body(NamedTuple):
    heads: frozenset[str]
    operators: frozenset[str]


def _body(loop: str, edges: Sequence[Edge]) -> _Body:
    """The operators that a trip can lead through: the heads, and what leads to the back edges without crossing them."""
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
