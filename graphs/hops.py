"""Counts a record's trips round each limited loop in a single number, so that a batch needs only one number, too.

Each loop with `max_rounds` has a digit of the number. A trip adds one to the digit of its loop and resets the digits of
the loops nested in it, because these are entered again. Loops that share a head or are otherwise entangled are not
nested, so each counts all of its trips. Loops without a limit and iterations have no digit.

In a flow with one limited loop, the number is simply the count of trips.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

HOPS_MAX = 2**62


class Digit(NamedTuple):
    """The digit of one loop: its value ranges from 0 to `max_rounds`, which is `base` - 1.

    >>> Digit(weight=10, base=10).of(375)
    7
    """

    weight: int
    base: int

    def of(self, hops: int) -> int:
        """The number of trips round the loop."""
        return hops // self.weight % self.base


class Trip(NamedTuple):
    """The effect of one trip round a loop on the number. `digit` is None if the loop has no limit.

    >>> Trip(Digit(1, 10), ()).after(3), Trip(None, (Digit(1, 10),)).after(13)
    (4, 10)
    """

    digit: Digit | None
    within: tuple[Digit, ...]

    def after(self, hops: int) -> int:
        for digit in self.within:
            hops -= digit.of(hops) * digit.weight
        return hops if self.digit is None else hops + self.digit.weight


def counts_up_to(limits: Iterable[int]) -> int:
    """The largest number needed for loops with these limits."""
    largest = 1
    for limit in limits:
        largest *= limit + 1
    return largest - 1
