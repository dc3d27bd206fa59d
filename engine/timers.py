"""Timers of one process operator. They are state, filed by key group, or with the task if they have no key.

They fire in the order of their time, and at the same time in the order of their key groups: a restored run gets them
back group by group and must fire them in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from engine.task_errors import NO_KEY
from graphs.routing import canonical_key, key_group

_NO_GROUP = -1


class Timers:
    """Times to wake up, each with a key.

    >>> timers = Timers()
    >>> timers.add(20, "a", hops=0)
    >>> timers.add(10, "b", hops=1)
    >>> timers.next_ms, timers.pop_due(15), timers.pop_due(15)
    (10, (10, 'b', 1), None)
    """

    def __init__(self) -> None:
        # (at_ms, key group, number in the order of setting, key, hops)
        self._heap: list[tuple[int, int, int, Any, int]] = []
        self._set: set[tuple[int, Any, int]] = set()
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer."""
        return self._heap[0][0] if self._heap else None

    def add(self, at_ms: int, key: Any, hops: int) -> None:
        """Set a timer. There is one per time, key and hop count: what is emitted when it fires has that hop count."""
        if (at_ms, key, hops) in self._set:
            return
        self._set.add((at_ms, key, hops))
        group = _NO_GROUP if key is NO_KEY else key_group(key)
        self._added += 1
        heapq.heappush(self._heap, (at_ms, group, self._added, key, hops))

    def pop_due(self, now_ms: int) -> tuple[int, Any, int] | None:
        """Remove and return the next due timer: its time, key and hops."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        at_ms, _, _, key, hops = heapq.heappop(self._heap)
        self._set.remove((at_ms, key, hops))
        return at_ms, key, hops

    def keyed(self) -> list[tuple[Any, int, int]]:
        """Entries (key, at_ms, hops) in the order in which they will fire."""
        return [(key, at_ms, hops) for at_ms, _, _, key, hops in sorted(self._heap) if key is not NO_KEY]

    def unkeyed(self) -> list[tuple[int, int]]:
        """The task's own timers, (at_ms, hops), in the order in which they will fire."""
        return [(at_ms, hops) for at_ms, _, _, key, hops in sorted(self._heap) if key is NO_KEY]

    def restore(self, keyed: Iterable[tuple[Any, int, int]], unkeyed: Iterable[tuple[int, int]]) -> None:
        """Restore timers."""
        for key, at_ms, hops in keyed:
            self.add(at_ms, canonical_key(key), hops)
        for at_ms, hops in unkeyed:
            self.add(at_ms, NO_KEY, hops)
