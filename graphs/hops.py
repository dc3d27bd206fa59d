"""How often a record has gone round each loop that has a limit: one number, so that a batch needs only one, too.

Each loop with `max_rounds` has a digit of the number. A trip adds one to the digit of its own loop, and sets those of
the loops within it to zero: they are entered again. Loops that share their head, or are entangled otherwise, are not
within each other, so each of them counts all of its trips. A loop without a limit, or an iteration, has no digit.

Of a flow with one limited loop the number is how often a record has gone round it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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


def counts_up_to(limits: Iterable[int]) -> int:
    """The largest number that loops with these limits need."""
    largest = 1
    for limit in limits:
        largest *= limit + 1
    return largest - 1
