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
    """Shows milliseconds since 1970.

    - ahead_ms: the difference between this clock and the monotonic one.

    >>> system_ms, monotonic_ms = iter([1_000]), iter([50, 60, 65])
    >>> clock = RunClock(lambda: next(system_ms), lambda: next(monotonic_ms))
    >>> clock.now_ms(), clock.now_ms()
    (1010, 1015)
    """

    def __init__(
        self, system_ms: Callable[[], int] | None = None, monotonic_ms: Callable[[], int] | None = None
    ) -> None:
        self._monotonic_ms = monotonic_ms or _monotonic_ms
        self.ahead_ms = (system_ms or _system_ms)() - self._monotonic_ms()

    def now_ms(self) -> int:
        """The time."""
        return self._monotonic_ms() + self.ahead_ms

    def at_least(self, now_ms: int) -> None:
        """Advance to this time, if it is later."""
        self.ahead_ms = max(self.ahead_ms, now_ms - self._monotonic_ms())


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
