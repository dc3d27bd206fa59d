"""The clock of a run's tasks: milliseconds since 1970 that never go back, even if the system's clock is set.

Timers refer to this clock and are stored in cuts, so its time must have the same meaning in the next process. Therefore
it starts at the system's time, which processes and machines have in common, but not before the time of the restored
cut: a timer set 10 s ahead is due at most 10 s after the restore, even if the system's clock was set back an hour
meanwhile. The time during which a run was down counts: timers that became due in it fire at once. After the start, only
the monotonic clock counts; a jump of the system's clock is only noticed by the next process.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class RunClock:
    """The clock of an actor, which stands still within a turn, and never steps.

    - clock_ns: the monotonic clock, which does not stand still.
    - turn_ns, steady_ms: when the turn has begun, on the monotonic clock. now_ms: the same since 1970.

    >>> system_ms, monotonic_ns = iter([1_000]), iter([50_000_000, 50_000_000, 60_000_000])
    >>> clock = RunClock(lambda: next(system_ms), lambda: next(monotonic_ns))
    >>> clock.now_ms, clock.begin_turn(), clock.now_ms
    (1000, 60000000, 1010)
    """

    def __init__(
        self, system_ms: Callable[[], int] | None = None, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.clock_ns = clock_ns
        self._ahead_ms = (system_ms or _system_ms)() - clock_ns() // 1_000_000
        self.begin_turn()

    def begin_turn(self) -> int:
        """A turn begins; returns `turn_ns`."""
        self.turn_ns = turn_ns = self.clock_ns()
        self.steady_ms = turn_ns // 1_000_000
        self.now_ms = self.steady_ms + self._ahead_ms
        return turn_ns

    def at_least(self, now_ms: int) -> None:
        """Advance to this time, if it is later."""
        self.begin_turn()
        self._ahead_ms += max(0, now_ms - self.now_ms)
        self.now_ms = max(now_ms, self.now_ms)


def _system_ms() -> int:
    return time.time_ns() // 1_000_000
