"""Timers of one process operator. They are state, filed by key group, or with the task if they have no key.

They fire in the order of their time, at the same time in the order of a word that is computed from their keys, and for
the same key in the order of their hops: a restored run must fire them in the same order, in whichever order it gets
them back.

Setting or firing a timer changes its key, which is noted: a delta holds all timers of the keys that it writes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from backedge.graphs.routing import canonical_key, key_word
from backedge.graphs.task_errors import NO_KEY

_NO_WORD = -1


class Timers:
    """Times to wake up, each with a key. `note` is called with each key whose timers change.

    >>> timers = Timers(note=lambda key: None)
    >>> timers.add(20, "a", hops=0)
    >>> timers.add(10, "b", hops=1)
    >>> timers.next_ms, list(timers.due(15)), list(timers.due(15))
    (10, [(10, 'b', 1)], [])
    """

    def __init__(self, note: Callable[[Any], None]) -> None:
        # (at_ms, word of the key, hops, number in the order of setting, key). All but the first may have been cleared.
        self._heap: list[tuple[float, int, int, int, Any]] = []
        # Key -> the timers that are set for it: (at_ms, hops) -> the number, in the order of setting.
        self._of_key: dict[Any, dict[tuple[float, int], int]] = {}
        self._added = 0
        # How many were cleared since the heap was without such.
        self._cleared = 0
        self._note = note

    def __bool__(self) -> bool:
        return bool(self._of_key)

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer; part of a millisecond counts as a whole one."""
        return math.ceil(self._heap[0][0]) if self._heap else None

    def add(self, at_ms: float, key: Any, hops: int) -> None:
        """Set a timer. There is one per time, key and hop count: what is emitted when it fires has that hop count."""
        of_key = self._of_key.setdefault(key, {})
        if (at_ms, hops) in of_key:
            return
        word = _NO_WORD
        if key is not NO_KEY:
            word = key_word(key)
            self._note(key)
        self._added += 1
        of_key[at_ms, hops] = self._added
        heapq.heappush(self._heap, (at_ms, word, hops, self._added, key))

    def clear(self, at_ms: float | None, key: Any) -> None:
        """Clear the timers of a key at one time, or all of them."""
        for time_ms, hops in [*self._of_key.get(key, ())]:
            if at_ms is None or time_ms == at_ms:
                self._forget(time_ms, key, hops)
                self._cleared += 1
        if self._cleared > len(self._heap) // 2:
            self._heap = self._in_order()
            self._cleared = 0
        self._drop_cleared()

    def due(self, now_ms: int) -> Iterator[tuple[float, Any, int]]:
        """Remove and yield the timers that are due: their time, key and hops.

        Those that are set meanwhile wait for the next call, and those that are cleared meanwhile do not fire.
        """
        entries: list[tuple[float, int, int, int, Any]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            entries.append(heapq.heappop(self._heap))
        self._drop_cleared()
        for entry in entries:
            if self._is_set(entry):
                at_ms, _, hops, _, key = entry
                self._forget(at_ms, key, hops)
                yield at_ms, key, hops

    def _drop_cleared(self) -> None:
        """Have the earliest one be one that is set."""
        while self._heap and not self._is_set(self._heap[0]):
            heapq.heappop(self._heap)

    def _in_order(self) -> list[tuple[float, int, int, int, Any]]:
        return sorted(filter(self._is_set, self._heap))

    def _is_set(self, entry: tuple[float, int, int, int, Any]) -> bool:
        at_ms, _, hops, number, key = entry
        return self._of_key.get(key, {}).get((at_ms, hops)) == number

    def _forget(self, at_ms: float, key: Any, hops: int) -> None:
        of_key = self._of_key[key]
        del of_key[at_ms, hops]
        if not of_key:
            del self._of_key[key]
        if key is not NO_KEY:
            self._note(key)

    def keyed(self) -> list[tuple[Any, float, int]]:
        """Entries (key, at_ms, hops) in the order in which they will fire."""
        return [(key, at_ms, hops) for at_ms, _, hops, _, key in self._in_order() if key is not NO_KEY]

    def of(self, keys: Iterable[Any]) -> list[tuple[Any, float, int]]:
        """The same of these keys alone, key by key."""
        of_key = self._of_key
        return [(key, at_ms, hops) for key in keys if key in of_key for at_ms, hops in sorted(of_key[key])]

    def unkeyed(self) -> list[tuple[float, int]]:
        """The task's own timers, (at_ms, hops), in the order in which they will fire."""
        return sorted(self._of_key.get(NO_KEY, ()))

    def restore(self, keyed: Iterable[tuple[Any, float, int]], unkeyed: Iterable[tuple[float, int]]) -> None:
        for key, at_ms, hops in keyed:
            self.add(at_ms, canonical_key(key), hops)
        for at_ms, hops in unkeyed:
            self.add(at_ms, NO_KEY, hops)
