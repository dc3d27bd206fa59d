"""How often and how soon a run restarts after failures.

After a failure the next attempt begins at once. If further attempts fail before one of them completes a cut, each pause
is longer than the one before, by a random amount, which gives a full disk or a rebooting host time to recover. The run
fails when too many attempts have failed within a time window.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

from msgspec import Struct


class RestartOptions(Struct, frozen=True):
    """The limits on restarts: an attempt may fail `restarts_max` times within `window_ms`. How long a restart waits.

    - window_ms: None means that no failure is ever forgotten.
    - is_exponential: the first restart in a row is immediate; then the pause doubles from `pause_ms` to `pause_ms_max`,
      less up to half of it at random. Otherwise each restart waits `pause_ms`.
    """

    restarts_max: int = 10
    window_ms: int | None = 3_600_000
    pause_ms: int = 100
    pause_ms_max: int = 30_000
    is_exponential: bool = True


class Restarts:
    """The failures of the attempts of one supervisor.

    - count: how many there were. failed_ms: the times of those that count against the limit.
    - in_a_row: attempts that have failed since the last complete cut; the supervisor sets it back.
    """

    def __init__(self, options: RestartOptions, claimant: str) -> None:
        self.options = options
        self.count = 0
        self.in_a_row = 0
        self.failed_ms: deque[int] = deque()
        self._claimant = claimant

    def on_failure(self, now_ms: int) -> str | None:
        """An attempt has failed. Returns the limit, in words, if that was one failure too many."""
        self.count += 1
        self.in_a_row += 1
        self.failed_ms.append(now_ms)
        options = self.options
        while options.window_ms is not None and self.failed_ms[0] <= now_ms - options.window_ms:
            self.failed_ms.popleft()
        if len(self.failed_ms) <= options.restarts_max:
            return None
        within = "" if options.window_ms is None else f" within {options.window_ms / 1000:g} s"
        return f"restarted {options.restarts_max} times{within}, as often as max_restarts allows"

    def pause_ms(self) -> int:
        """The pause before the next restart."""
        options = self.options
        if not options.is_exponential:
            return options.pause_ms
        if self.in_a_row == 1:
            return 0
        doublings = min(self.in_a_row - 2, 32)
        longest_ms = min(options.pause_ms << doublings, options.pause_ms_max)
        return longest_ms - longest_ms * crc32(f"{self._claimant} {self.count}".encode()) // 2**33
