"""Detects silent actors, busy in a function or stopped: how long they are silent, and what they are doing.

An actor reports its progress several times a second, but not while a user's function runs, which may take long or never
end. So silence is not a failure; it is reported at the limit, and whenever its duration has doubled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from backedge.engine.operators.base import OperatorRuntime

_OWN_FOLDER = str(Path(__file__).parents[2])


class Doing(NamedTuple):
    """What a process is doing, in words, and whether an operator is: one of its functions, or what that waits for."""

    told: str
    is_operator: bool = False


NO_ANSWER = Doing("its process does not answer; it is stopped, or in native code that lets no other thread run", True)
ANSWER_MS = 3_000


class Silent(NamedTuple):
    """An actor that has reported nothing for that long."""

    actor: str
    silent_ms: int


class Question(NamedTuple):
    """What a silent actor is doing: asked after so long a silence, and no longer awaited from `until_ms` on."""

    answer: Future[Doing]
    silent_ms: int
    until_ms: int


class Silences:
    """When each actor of an attempt last reported, and when its silence is due to be reported. Time is passed in.

    >>> silences = Silences(limit_ms=30_000)
    >>> silences.begin(["body/0"], now_ms=0)
    >>> silences.due(29_999), silences.due(30_000), silences.due(59_999), silences.due(60_000)
    ([], [Silent(actor='body/0', silent_ms=30000)], [], [Silent(actor='body/0', silent_ms=60000)])
    """

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._heard_ms: dict[str, int] = {}
        self._due_ms: dict[str, int] = {}
        self._asked: dict[str, Question] = {}

    def begin(self, actors: Iterable[str], now_ms: int) -> None:
        """Start watching the actors of an attempt."""
        self._asked.clear()
        self._heard_ms = dict.fromkeys(actors, now_ms)
        self._due_ms = dict.fromkeys(self._heard_ms, now_ms + self.limit_ms)

    def on_heard(self, actor: str, now_ms: int) -> None:
        if actor in self._heard_ms:
            self._heard_ms[actor] = now_ms
            self._due_ms[actor] = now_ms + self.limit_ms

    def longest_ms(self, now_ms: int) -> int:
        """How long the most silent actor has reported nothing."""
        return max((now_ms - heard_ms for heard_ms in self._heard_ms.values()), default=0)

    def due(self, now_ms: int) -> list[Silent]:
        """The silences that are due to be reported."""
        found = [Silent(a, now_ms - self._heard_ms[a]) for a, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for actor, silent_ms in found:
            self._due_ms[actor] = now_ms + max(silent_ms, self.limit_ms)
        return found

    def explained(self, ask: Callable[[str], Future[Doing] | None], now_ms: int) -> Iterator[tuple[str, int, Doing]]:
        """Ask the actors whose silence is due what they are doing; yield what they, or others before, have answered."""
        for actor, silent_ms in self.due(now_ms):
            if (answer := ask(actor)) is not None:
                self._asked[actor] = Question(answer, silent_ms, now_ms + ANSWER_MS)
        for actor, (answer, silent_ms, until_ms) in list(self._asked.items()):
            if answer.done() or now_ms >= until_ms:
                del self._asked[actor]
                has_answered = answer.done() and answer.exception() is None
                yield actor, silent_ms, answer.result() if has_answered else NO_ANSWER


def place_of(thread: int) -> Doing:
    """What a thread is doing: the operator, and the current line of the user's function.

    >>> import threading
    >>> place_of(threading.get_ident()).told.startswith("it is in Backedge itself")
    True
    """
    # Python has no public name for this.
    innermost = frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if innermost is None:
        return Doing("it has left the attempt")
    function: FrameType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN_FOLDER):
        function, frame = frame, frame.f_back
    if function is None:
        code = innermost.f_code
        return Doing(f"it is in Backedge itself, in {code.co_name} of {code.co_filename}")
    where = f"it is in {function.f_code.co_name}, {function.f_code.co_filename}:{function.f_lineno}"
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, OperatorRuntime):
            return Doing(f"operator {owner.name!r} is busy: {where}", is_operator=True)
        frame = frame.f_back
    return Doing(where)
