"""Timers of one process operator. They are state, filed by key group, or with the task if they have no key.

They fire in the order of their time, and at the same time in the order of a word that is computed from their keys: a
restored run must fire them in the same order, in whichever order it gets them back.

Setting or firing a timer changes its key, which is noted: a delta holds all timers of the keys that it writes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

from engine.task_errors import NO_KEY
from graphs.routing import canonical_key, key_word

_NO_WORD = -1


class Timers:
    """Times to wake up, each with a key. `note` is called with each key whose timers change.

    >>> timers = Timers(note=lambda key: None)
    >>> timers.add(20, "a", hops=0)
    >>> timers.add(10, "b", hops=1)
    >>> timers.next_ms, timers.pop_due(15), timers.pop_due(15)
    (10, (10, 'b', 1), None)
    """

    def __init__(self, note: Callable[[Any], None]) -> None:
        # (at_ms, word of the key, number in the order of setting, key, hops)
        self._heap: list[tuple[float, int, int, Any, int]] = []
        # Key -> the timers that are set for it, (at_ms, hops), in the order of setting.
        self._of_key: dict[Any, dict[tuple[float, int], None]] = {}
        self._added = 0
        self._note = note

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer; part of a millisecond counts as a whole one."""
        return math.ceil(self._heap[0][0]) if self._heap else None

    def add(self, at_ms: float, key: Any, hops: int) -> None:
        """Set a timer. There is one per time, key and hop count: what is emitted when it fires has that hop count."""
        of_key = self._of_key.setdefault(key, {})
        if (at_ms, hops) in of_key:
            return
        of_key[at_ms, hops] = None
        word = _NO_WORD
        if key is not NO_KEY:
            word = key_word(key)
            self._note(key)
        self._added += 1
        heapq.heappush(self._heap, (at_ms, word, self._added, key, hops))

    def pop_due(self, now_ms: int) -> tuple[float, Any, int] | None:
        """Remove and return the next due timer: its time, key and hops."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        at_ms, _, _, key, hops = heapq.heappop(self._heap)
        of_key = self._of_key[key]
        del of_key[at_ms, hops]
        if not of_key:
            del self._of_key[key]
        if key is not NO_KEY:
            self._note(key)
        return at_ms, key, hops

    def keyed(self) -> list[tuple[Any, float, int]]:
        """Entries (key, at_ms, hops) in the order in which they will fire."""
        return [(key, at_ms, hops) for at_ms, _, _, key, hops in sorted(self._heap) if key is not NO_KEY]

    def of(self, keys: Iterable[Any]) -> list[tuple[Any, float, int]]:
        """The same of these keys alone, key by key."""
        of_key = self._of_key
        return [(key, at_ms, hops) for key in keys if key in of_key for at_ms, hops in sorted(of_key[key])]

    def unkeyed(self) -> list[tuple[float, int]]:
        """The task's own timers, (at_ms, hops), in the order in which they will fire."""
        return [(at_ms, hops) for at_ms, _, _, key, hops in sorted(self._heap) if key is NO_KEY]

    def restore(self, keyed: Iterable[tuple[Any, float, int]], unkeyed: Iterable[tuple[float, int]]) -> None:
        """Restore timers."""
        for key, at_ms, hops in keyed:
            self.add(at_ms, canonical_key(key), hops)
        for at_ms, hops in unkeyed:
            self.add(at_ms, NO_KEY, hops)
