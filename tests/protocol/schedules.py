"""Every order in which things can happen on a bench: all states that it can reach, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from proof.cloning import dump, load
from tests.protocol.bench_of_cores import Bench

Move = tuple[Any, ...]
"""A function of the bench or the name of a method of it, and what it is called with."""


def every_state(bench: Bench, also: Callable[[Bench], list[Move]]) -> Iterator[Bench]:
    """Walk all schedules. What can happen are the moves of the bench and those that `also` lists."""
    seen: set[bytes] = set()
    waiting = [dump(bench)]
    while waiting:
        data = waiting.pop()
        if data in seen:
            continue
        seen.add(data)
        here: Bench = load(data)
        yield here
        for what, *arguments in [*here.moves(), *also(here)]:
            there: Bench = load(data)
            if isinstance(what, str):
                getattr(there, what)(*arguments)
            else:
                what(there, *arguments)
            waiting.append(dump(there))
