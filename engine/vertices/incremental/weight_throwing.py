"""Finds out that a piece of work which spreads by messages is over: shares of it, which come back.

The task that begins the work gives each of its messages a share. A task that receives messages divides their shares
among the messages that they cause, and returns the rest. When all shares are back, no message is on its way: each one
carries a share. Nothing names a task, so messages may be restored under another number of tasks.

A share is a power of two, `0.5 ** exponent`, so that no number of divisions uses it up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

Returned = list[tuple[int, int]]
"""Exponents, and how many shares of each."""


def divided(shares: Iterable[int], parts: int) -> tuple[int, Returned]:
    """Divide shares, given by their exponents, among `parts` messages and a note, which never comes away empty.

    Returns the exponent of each message's share, and what the note returns.

    >>> divided([0, 3], parts=2)
    (2, [(2, 2), (3, 1)])
    >>> divided([1], parts=0)
    (1, [(1, 1)])
    """
    rest = Counter(shares)
    largest = min(rest)
    if not parts:
        return largest, sorted(rest.items())
    rest[largest] -= 1
    exponent = largest + parts.bit_length()
    rest[exponent] += (1 << parts.bit_length()) - parts
    return exponent, sorted((exponent, count) for exponent, count in rest.items() if count)


class Outstanding:
    """The shares that have not come back.

    >>> shares = Outstanding()
    >>> shares.give(2, 3)
    >>> shares.take_back([(3, 2), (2, 1)]), shares.are_back
    (None, False)
    >>> shares.take_back([(2, 1)]), shares.are_back
    (None, True)
    """

    def __init__(self, numerator: int = 0, exponent: int = 0) -> None:
        self.numerator = numerator
        self.exponent = exponent

    def give(self, exponent: int, count: int) -> None:
        self._refine(exponent)
        self.numerator += count << (self.exponent - exponent)

    def take_back(self, returned: Returned) -> None:
        for exponent, count in returned:
            self._refine(exponent)
            self.numerator -= count << (self.exponent - exponent)
        if not self.numerator:
            self.exponent = 0

    def _refine(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.numerator <<= exponent - self.exponent
            self.exponent = exponent

    @property
    def are_back(self) -> bool:
        return not self.numerator
