"""Which keys of a state were touched since which capture: what a delta writes.

- The touched keys go into one set per capture. A capture closes the set of the one before it, and opens an empty one.
- A delta holds the keys of all sets since its base. Only sets older than the base are dropped; an abort drops nothing,
  because the delta after it must hold what the aborted one held.
- Cuts may be aborted for weeks. So beside the oldest set and those of the newest captures there are no others: they
  are put into the oldest one. And sets are dropped that no delta can hold, because they have too many keys.
- A capture that does not find its base, or would write too many keys, writes everything. Which one does is decided
  before it (`has`), for all operators of a task alike. What one of them files when it captures is in its delta as well.
- When too many keys are touched, tracking stops until the next capture, which writes everything.
- A key comes with its value if the state has handed it over, otherwise with None: then the state looks it up.
- A delta that holds all keys of its base's own delta makes that one superfluous: it may be applied without it.

The sets are dicts, which keep the order of the touches: the bytes of a delta depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from backedge.graphs.ids import Epoch


class TouchedKeys:
    """The touched keys of one state.

    >>> touched = TouchedKeys()
    >>> touched.capture(Epoch(1), base=None, keys=2)
    >>> touched.newest["a"] = None
    >>> list(touched.capture(Epoch(2), base=Epoch(1), keys=2))
    ['a']
    """

    tracked_min = 1_000
    """Any state may track this number of keys; a larger one, one key in `share`."""
    share = 8
    compared_max = 10_000
    """A delta of more keys is not compared with that of its base: this takes half a millisecond."""
    open_max = 8
    """More captures than this are seldom open at once. An older one can be a base only if it is one already."""

    def __init__(self) -> None:
        # Epoch of a capture -> the keys touched after it and before the next one, oldest first.
        self._since: dict[Epoch, dict[Any, Any]] = {}
        # Epoch of a capture -> the keys that it wrote, if it was a delta and not too large.
        self._written: dict[Epoch, frozenset[Any]] = {}
        # The keys touched since the newest capture; None while nothing is tracked.
        self.newest: dict[Any, Any] | None = None

    def begin(self, epoch: Epoch) -> None:
        """The state is exactly that of this cut."""
        self.newest = {}
        self._since = {epoch: self.newest}

    def add(self, values: dict[Any, Any]) -> None:
        """Add touched keys with their values, in a dict that does not change any more: it may be kept as it is."""
        if self.newest:
            self.newest.update(values)
        elif self.newest is not None:
            self.newest = self._since[next(reversed(self._since))] = values

    def has(self, base: Epoch | None, keys: int, more: int = 0) -> bool:
        """Whether a delta since this capture can be written, for a state of `keys` keys. `more` are yet to be added."""
        if self.newest is not None and len(self.newest) > self.limit(keys):
            self._forget()
        if base is None or base not in self._since:
            return False
        return sum(map(len, self._sets_from(base))) + more <= self.limit(keys)

    def capture(self, epoch: Epoch, base: Epoch | None, keys: int) -> dict[Any, Any] | None:
        """Close the newest set; return the keys to write, None for all of them. Ask `has` before."""
        found: dict[Any, Any] | None = None
        if base is not None and base in self._since:
            first, *later = self._sets_from(base)
            found = dict(first) if later else first
            for touched in later:
                found |= touched
            self._since = {since: touched for since, touched in self._since.items() if since >= base}
            self._written = {delta: keys for delta, keys in self._written.items() if delta >= base}
            if len(found) <= self.compared_max:
                self._written[epoch] = frozenset(found)
                self._written = dict(list(self._written.items())[-self.open_max :])
        self.newest = {}
        self._since[epoch] = self.newest
        self._limit_sets(self.limit(keys))
        return found

    def _limit_sets(self, keys_max: int) -> None:
        """Put old sets together, and drop the oldest ones if no delta can hold all keys since."""
        since = list(self._since)
        if len(since) > self.open_max + 1:
            self._since[since[0]] = self._since[since[0]] | self._since.pop(since[1])
        total = sum(map(len, self._since.values()))
        while total > keys_max:
            total -= len(self._since.pop(next(iter(self._since))))

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        """Whether the delta of this capture holds all keys of the one that its base wrote.

        >>> touched = TouchedKeys()
        >>> touched.begin(Epoch(1))
        >>> touched.newest["a"] = touched.newest["b"] = None
        >>> _ = touched.capture(Epoch(2), Epoch(1), keys=2)
        >>> touched.newest["a"] = None
        >>> _ = touched.capture(Epoch(3), Epoch(2), keys=2)
        >>> touched.newest["b"] = touched.newest["a"] = None
        >>> _ = touched.capture(Epoch(4), Epoch(3), keys=2)
        >>> touched.supersedes(Epoch(3), Epoch(2)), touched.supersedes(Epoch(4), Epoch(3))
        (False, True)
        """
        former, own = self._written.get(base), self._written.get(epoch)
        return former is not None and own is not None and former <= own

    def noting(self, keys: int) -> dict[Any, Any] | None:
        """The set of keys touched since the newest capture; None if the next capture writes everything anyway."""
        if self.newest and len(self.newest) > self.limit(keys):
            self._forget()
        return self.newest

    def _sets_from(self, base: Epoch) -> list[dict[Any, Any]]:
        return [touched for since, touched in self._since.items() if since >= base]

    def limit(self, keys: int) -> int:
        """How many keys may be written as a delta, for a state of `keys` keys."""
        return max(self.tracked_min, keys // self.share)

    def _forget(self) -> None:
        self.newest = None
        self._since.clear()


class Superseding(Protocol):
    """Keyed state, of which a delta was captured."""

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        """Whether the delta of this capture holds all keys that the delta of its base holds."""
        ...


class Bases:
    """The cuts since which the deltas of a task hold what changed."""

    def __init__(self) -> None:
        # Epoch of a capture -> that cut.
        self._of: dict[Epoch, Epoch] = {}

    def since(self, epoch: Epoch, base: Epoch, states: Iterable[Superseding]) -> Epoch:
        """The cut since which the delta of a capture holds what changed: its base, or that one's own base.

        All of the task's keyed states have been captured since `base`.
        """
        below = self._of.get(base)
        self._of = {cut: of_cut for cut, of_cut in self._of.items() if cut >= base}
        if below is not None and all(state.supersedes(epoch, base) for state in states):
            base = below
        self._of[epoch] = base
        return base


class NothingTracked(TouchedKeys):
    """For a run whose cuts hold everything: nothing is noted, and no capture finds its base."""

    def begin(self, epoch: Epoch) -> None:
        """The state is that of a cut, which nothing will be relative to."""

    def capture(self, epoch: Epoch, base: Epoch | None, keys: int) -> dict[Any, Any] | None:
        """All keys are written."""
        return None
