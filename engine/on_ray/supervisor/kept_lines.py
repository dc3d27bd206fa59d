"""Lines for the user of a run: numbered, and bounded, because a run may go on for months."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any


class KeptLines:
    """The last lines, at most `lines_max` of them. Any thread adds and reads; a copy travels to the driver.

    >>> lines = KeptLines(2)
    >>> lines.add(["a", "b", "c"])
    >>> lines.first, lines.lines
    (1, ['b', 'c'])
    >>> later = lines.since(2)
    >>> later.first, later.lines
    (2, ['c'])
    """

    def __init__(self, lines_max: int, first: int = 0, lines: Sequence[str] = ()) -> None:
        self.lines_max = lines_max
        # The kept lines, and the number of the first one. The lock keeps the two together.
        self._lines = list(lines)
        self._first = first
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            return KeptLines, (self.lines_max, self._first, self._lines[:])

    @property
    def first(self) -> int:
        """The number of the first line that is kept. The first line of all has number 0."""
        return self._first

    @property
    def lines(self) -> list[str]:
        """A copy of the lines that are kept."""
        return self._lines[:]

    def add(self, lines: Sequence[str]) -> None:
        """Add lines, and forget the first ones if there are too many."""
        with self._lock:
            self._lines += lines
            self._forget(len(self._lines) - self.lines_max)

    def since(self, number: int) -> KeptLines:
        """The kept lines from this number on."""
        with self._lock:
            known = max(number - self._first, 0)
            return KeptLines(self.lines_max, self._first + known, self._lines[known:])

    def forget_before(self, number: int) -> None:
        with self._lock:
            self._forget(min(number - self._first, len(self._lines)))

    def _forget(self, count: int) -> None:
        if count > 0:
            del self._lines[:count]
            self._first += count
