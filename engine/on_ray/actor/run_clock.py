"""The clock of a run's tasks: milliseconds since 1970 that never go back, and go on when the system's clock is set.

Timers are due at times of this clock, and lie in cuts with them; so what it shows must mean the same in the next
process. Therefore it starts at the system's time, for that is what processes and machines have in common, but at no
time before that of the cut that is restored: a timer set for 10 s ahead is due at most 10 s after the restore, even if
the system's clock was set back an hour meanwhile. The time that a run was down counts: what fell due in it fires at
once. From there on the monotonic clock counts, and a jump of the system's clock is noticed only by the next process.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class RunClock:
    """Shows milliseconds since 1970.

    >>> system_ms, monotonic_ms = iter([1_000]), iter([50, 60, 65])
    >>> clock = RunClock(lambda: next(system_ms), lambda: next(monotonic_ms))
    >>> clock.now_ms(), clock.now_ms()
    (1010, 1015)
    """

    def __init__(
        self, system_ms: Callable[[], int] | None = None, monotonic_ms: Callable[[], int] | None = None
    ) -> None:
        self._monotonic_ms = monotonic_ms or _monotonic_ms
        # What the monotonic clock is behind this one.
        self._ahead_ms = (system_ms or _system_ms)() - self._monotonic_ms()

    def now_ms(self) -> int:
        """The time."""
        return self._monotonic_ms() + self._ahead_ms

    def at_least(self, now_ms: int) -> None:
        """Go on from this time, if it is later."""
        self._ahead_ms = max(self._ahead_ms, now_ms - self._monotonic_ms())


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
