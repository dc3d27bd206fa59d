"""A reliable line between the supervisor and one actor in one attempt: orders one way, reports the other.

The transport may lose, delay or repeat messages. So each direction is numbered from 1:

- The receiver applies only the next number. A lower number is a repetition, a higher one follows a gap; both are
  dropped.
- Each message also confirms the last number that its sender has applied from the other direction.
- Messages not confirmed within `REPEAT_MS` are sent again, oldest first, until they are.

Both ends live as long as the attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

REPEAT_MS = 250
REPEATED_MAX = 64


class Said(NamedTuple):
    """A numbered message. Number 0 has no content and only confirms."""

    number: int
    what: Any


class LineEnd:
    """One end of a line.

    - unconfirmed: messages sent by this end and not confirmed yet, oldest first.
    - heard: the last number that was applied here. repeated, early: numbers of messages dropped for either reason.

    >>> ours, theirs = LineEnd(), LineEnd()
    >>> lost, second = ours.say("trigger", 0), ours.say("abort", 0)
    >>> theirs.accepts(second)
    False
    >>> [message.what for message in ours.due(250) if theirs.accepts(message)]
    ['trigger', 'abort']
    >>> ours.on_confirmed(theirs.confirm(), 251)
    >>> ours.due(1_000)
    []
    """

    __slots__ = ("_owes", "_repeat_at_ms", "early", "heard", "repeat_ms", "repeated", "said", "unconfirmed")

    def __init__(self, repeat_ms: int = REPEAT_MS) -> None:
        self.repeat_ms = repeat_ms
        self.said = 0
        self.unconfirmed: deque[Said] = deque()
        self.heard = 0
        self.repeated = 0
        self.early = 0
        self._repeat_at_ms = 0
        self._owes = False

    def say(self, what: Any, now_ms: int) -> Said:
        """Number the next message; the caller sends it."""
        self.said += 1
        message = Said(self.said, what)
        if not self.unconfirmed:
            self._repeat_at_ms = now_ms + self.repeat_ms
        self.unconfirmed.append(message)
        return message

    def due(self, now_ms: int) -> list[Said]:
        """The messages to repeat now."""
        if not self.unconfirmed or now_ms < self._repeat_at_ms:
            return []
        self._repeat_at_ms = now_ms + self.repeat_ms
        return list(_first(self.unconfirmed, REPEATED_MAX))

    def on_confirmed(self, number: int, now_ms: int) -> None:
        """The other end has applied everything up to this number."""
        if not self.unconfirmed or self.unconfirmed[0].number > number:
            return
        while self.unconfirmed and self.unconfirmed[0].number <= number:
            self.unconfirmed.popleft()
        self._repeat_at_ms = now_ms + self.repeat_ms

    def accepts(self, message: Said) -> bool:
        """Whether to apply this message, that is, whether it is the next one."""
        if message.number == 0:
            return False
        self._owes = True
        if message.number == self.heard + 1:
            self.heard += 1
            return True
        if message.number <= self.heard:
            self.repeated += 1
        else:
            self.early += 1
        return False

    def has_to_say(self) -> bool:
        """Whether there is something to repeat, now or later, or to confirm."""
        return self._owes or bool(self.unconfirmed)

    def owes_confirmation(self) -> bool:
        """Whether something was heard since `confirm` was last called."""
        return self._owes

    def confirm(self) -> int:
        """The number to confirm with the next message to the other end."""
        self._owes = False
        return self.heard


def _first(messages: deque[Said], count: int) -> Iterator[Said]:
    for _, message in zip(range(count), messages, strict=False):
        yield message
