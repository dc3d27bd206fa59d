"""Something that happens in the middle of a call of a sink: its process dies there, or sleeps while others go on.

A step is a call from Python into C, which all reading, writing and sending is. Calls within the standard library belong
to the step that made them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import FrameType
from typing import Any

_LIBRARY = os.path.dirname(os.__file__)
_INSTALLED = ("site-packages", "dist-packages")

_OF_LOCKS = frozenset({"__enter__", "__exit__", "acquire", "release"})
"""A process that dies takes its locks with it. Here they would stay locked."""

Site = tuple[str, int]
"""The file and the line of a step."""


class Died(BaseException):
    """The process has died. No handler of an `Exception` may see it."""


class Steps:
    """Counts the steps of this thread in a `with`, and has something happen before one of them."""

    def __init__(self, at: tuple[Site, int] | None = None, happens: Callable[[Site], object] | None = None) -> None:
        self.counts: dict[Site, int] = {}
        self.has_happened = False
        self._at = at
        self._happens = happens

    def __enter__(self) -> Steps:
        sys.setprofile(self._on)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _on(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "c_call" or name.startswith("<") or name == __file__:
            return
        # What is raised while an object is deleted has no effect.
        if argument.__name__ in _OF_LOCKS or frame.f_code.co_name == "__del__":
            return
        if name.startswith(_LIBRARY) and not any(folder in name for folder in _INSTALLED):
            return
        site = name, frame.f_lineno
        count = self.counts[site] = self.counts.get(site, 0) + 1
        if self._at == (site, count) and not self.has_happened:
            self.has_happened = True
            if self._happens is not None:
                self._happens(site)


class KnownSteps:
    """The steps that calls of each kind have had, from which one is drawn: rare sites as often as frequent ones.

    Where a sleeping task has kept all others waiting, it holds a lock: it is not put to sleep there again, nor between
    two such sites.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[Site, int]] = {}
        self._locked: dict[str, tuple[int, int]] = {}

    def copy(self) -> KnownSteps:
        return deepcopy(self)

    def learn(self, kind: str, counts: dict[Site, int]) -> None:
        known = self._counts.setdefault(kind, {})
        for site, count in counts.items():
            known[site] = max(count, known.get(site, 0))

    def draw(self, kind: str, chance: Random, *, to_sleep: bool) -> tuple[Site, int] | None:
        """A step of such a call; None if none is known."""
        sites = list(self._counts.get(kind, ()))
        if to_sleep and kind in self._locked:
            first, last = self._locked[kind]
            sites = sites[:first] + sites[last + 1 :]
        if not sites:
            return None
        site = chance.choice(sites)
        return site, chance.randint(1, self._counts[kind][site])

    def lock(self, kind: str, site: Site) -> None:
        """A task that slept here kept the others waiting."""
        index = list(self._counts[kind]).index(site)
        first, last = self._locked.get(kind, (index, index))
        self._locked[kind] = min(first, index), max(last, index)
