"""Credit limits how much may be in transit in a channel, from the sending task to the receiving one (rule 9).

- The receiver reports how much it has consumed in total, and the size of the window. The channel is full when the
  sender has sent a whole window more than that. A task processes nothing while one of its output channels is full.
  Barriers, END and control messages need no credit.
- Credit is numbered and cumulative, and only the highest number counts. So one message that arrives makes up for lost
  ones, and a late message has no effect. Credit is sent when a quarter of the window was consumed or the window has
  changed by a quarter. It is repeated for ever, first every 250 ms and then less often, because neither end can know
  which messages were lost.
- The window of a regular channel follows the receiver: it holds what the receiver consumes in half a second, shared
  among its inputs. It starts with one record, at most doubles at a time, and shrinks at once.
  Sources pause meanwhile, so only the batches already in transit are affected. They are counted as usual.
- A back edge is never full for its task, and its window is fixed: batches for which the receiver has no room wait at
  the sender. For a back edge, consumed means received.

Both ends live as long as the attempt. Sizes are in any unit that both ends share: bytes on a cluster.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from backedge.graphs.deployment import Channel

REPEAT_MS, REPEAT_MS_MAX = 250, 8_000
WINDOW_NS = 500_000_000
WINDOW_NS_MIN = 100_000_000
PERIOD_NS = 50_000_000
PERIODS = 20


class Credit(NamedTuple):
    """A receiver's message to its sender: how much it has consumed in total, and how much may be in transit."""

    number: int
    consumed: int
    window: int


class Allowance:
    """The sender's end of a channel.

    - sent: how much was sent in this attempt. consumed, window: the receiver's latest values, from message `number`.

    >>> allowance = Allowance(window=10)
    >>> allowance.sent += 10
    >>> allowance.is_full()
    True
    >>> allowance.on_credit(Credit(1, consumed=4, window=8)), allowance.room()
    (True, 2)
    """

    __slots__ = ("consumed", "number", "sent", "window")

    def __init__(self, window: int) -> None:
        self.sent: int = 0
        self.consumed = 0
        self.window = window
        self.number = 0

    def is_full(self) -> bool:
        """Whether nothing more may be sent now."""
        return self.sent - self.consumed >= self.window

    def room(self) -> int:
        """How much may be sent now."""
        return max(0, self.window - self.sent + self.consumed)

    def on_credit(self, credit: Credit) -> bool:
        """Apply a message of the receiver; return whether it was new."""
        if credit.number <= self.number:
            return False
        self.number, self.consumed, self.window = credit
        return True


class Grant:
    """The receiver's end of a channel: what it has consumed, and what it has reported.

    - consumed: how much, in this attempt. window: how much may be in transit. said: the last message.

    >>> grant = Grant(window=8)
    >>> grant.consumed += 3
    >>> grant.is_due(), grant.say()
    (True, Credit(number=1, consumed=3, window=8))
    >>> grant.is_due(), grant.repeats_at(0), grant.repeats_at(250), grant.repeats_at(300)
    (False, True, True, False)
    """

    __slots__ = ("_repeat_at_ms", "_repeat_ms", "_repeat_ms_min", "_repeated", "consumed", "said", "window")

    def __init__(self, window: int, repeat_ms: int = REPEAT_MS) -> None:
        self.consumed: int = 0
        self.window = window
        self.said = Credit(0, 0, window)
        self._repeated = 0
        self._repeat_at_ms, self._repeat_ms, self._repeat_ms_min = 0, repeat_ms, repeat_ms

    def is_due(self) -> bool:
        """Whether a message to the sender is due."""
        _, consumed, window = self.said
        return 4 * (self.consumed - consumed) > window or 4 * abs(self.window - window) > window

    def say(self) -> Credit:
        """The next message; the caller sends it."""
        self.said = Credit(self.said.number + 1, self.consumed, self.window)
        return self.said

    def repeats_at(self, now_ms: int) -> bool:
        """Whether to repeat the message in case it was lost: at each call while there is news, then ever less often."""
        if not self.consumed:
            return False
        if self.consumed != self._repeated:
            self._repeated, self._repeat_ms = self.consumed, self._repeat_ms_min
        elif now_ms < self._repeat_at_ms:
            return False
        self._repeat_at_ms = now_ms + self._repeat_ms
        self._repeat_ms = min(2 * self._repeat_ms, REPEAT_MS_MAX)
        return True


class Consumption:
    """The pace at which a channel is consumed while it has batches, and the window that follows from it.

    - inputs: the number of regular channels of the task. The time from one batch to the next includes other channels,
      external calls and full outputs, so a cheap task in front of an expensive one counts as slow.
    - The last complete period and the current one give the present pace; the last second shows whether it is a burst.
      The lower of the two counts.

    >>> slow = Consumption(inputs=1)
    >>> slow.note(5, took_ns=250_000_000)
    True
    >>> slow.window(before=1_000, largest=1, window_max=4_000)
    10
    """

    __slots__ = ("_last", "_now", "_past", "_periods", "_share_ns")

    def __init__(self, inputs: int) -> None:
        self._share_ns = max(WINDOW_NS // inputs, WINDOW_NS_MIN)
        self._now = self._last = self._past = (0, 0)
        self._periods: deque[tuple[int, int]] = deque()

    def note(self, size: int, took_ns: int) -> bool:
        """Count a batch of `size` that took `took_ns`; return whether a period is over."""
        size, took_ns = self._now[0] + size, self._now[1] + took_ns
        self._now = size, took_ns
        if took_ns < PERIOD_NS:
            return False
        self._last = self._now
        self._periods.append(self._now)
        past_size, past_ns = self._past[0] + size, self._past[1] + took_ns
        while past_ns > PERIODS * PERIOD_NS and len(self._periods) > 1:
            first = self._periods.popleft()
            past_size, past_ns = past_size - first[0], past_ns - first[1]
        self._past = past_size, past_ns
        self._now = 0, 0
        return True

    def window(self, before: int, largest: int, window_max: int) -> int:
        """The new window. `largest` is the size of the largest recent batch, which should fit at once."""
        (size, took_ns), (past_size, past_ns) = self._now, self._past
        recent = (self._last[0] + size) * self._share_ns // max(1, self._last[1] + took_ns)
        steady = (past_size + size) * self._share_ns // max(1, past_ns + took_ns)
        return max(1, min(recent, steady, 2 * max(before, largest), window_max))


class Bounded(Protocol):
    def is_full(self) -> bool: ...


class Room:
    """Whether a task has room for its output. It processes and reads nothing while it has none."""

    __slots__ = ("_bounded",)

    def __init__(self) -> None:
        self._bounded: list[Bounded] = []

    def add(self, channel: Channel, out: Bounded) -> None:
        """Add a channel that the task sends into."""
        if not channel.is_back:
            self._bounded.append(out)

    def is_full(self) -> bool:
        """Whether an output channel of the task is full."""
        # Usually a single channel or none: a loop is faster than a generator.
        for out in self._bounded:  # noqa: SIM110
            if out.is_full():
                return True
        return False
