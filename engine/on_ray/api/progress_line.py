"""Shows the progress of a run on the driver's standard error.

On a terminal and in a notebook, one line is updated in place. Elsewhere, for example in the logs of a submitted job, a
line is written every few seconds. Events (a death, a restore) get a line of their own in both cases.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from io import StringIO
from typing import TextIO

from backedge.engine.on_ray.supervisor.run_story import Story

LIVE_S = 0.25
PLAIN_S = 5.0
RATE_S = 1.0
_CLEAR_LINE = "\x1b[K"


class Display:
    """Reports on a stream how a run is doing; silent unless `wanted`."""

    def __init__(self, wanted: bool, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        found = stream or sys.stderr
        # Standard error may be closed.
        self._wanted = wanted and found is not None
        self._stream: TextIO = found or StringIO()
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._is_live = self._is_terminal or _is_of_notebook(self._stream)
        self._open_columns = 0
        self._told_s = clock()
        self._counted: deque[tuple[float, int, int]] = deque()

    def say(self, line: str) -> None:
        """Report an event on a line of its own."""
        if self._wanted:
            self.make_room()
            print(f"backedge: {line}", file=self._stream, flush=True)

    def show(self, story: Story) -> None:
        """Show the progress of the run, if it is time to do so again. Rates count from the first call."""
        if not self._wanted:
            return
        now_s, total = self._clock(), story.total()
        if not self._counted:
            # A run that is joined has processed records before.
            self._counted.append((now_s, total.records, total.hops))
            return
        if now_s - self._told_s < (LIVE_S if self._is_live else PLAIN_S):
            return
        self._told_s = now_s
        # Actors report progress about as often as the line is written; a longer period evens that out.
        while len(self._counted) > 1 and now_s - self._counted[1][0] >= RATE_S:
            self._counted.popleft()
        then_s, records, hops = self._counted[0]
        self._counted.append((now_s, total.records, total.hops))
        passed_s = max(now_s - then_s, 1e-9)
        line = figures(story, (total.records - records) / passed_s, (total.hops - hops) / passed_s)
        if not self._is_live:
            self.say(line)
            return
        columns = shutil.get_terminal_size().columns
        line = line[: columns - 1]
        print(f"{self._overwrite()}{line}", end="", file=self._stream, flush=True)
        self._open_columns = len(line)

    def make_room(self) -> None:
        """Clear the live line, because something else is about to be printed."""
        if self._open_columns:
            print(self._overwrite(), end="", file=self._stream, flush=True)
            self._open_columns = 0

    def _overwrite(self) -> str:
        """What clears the live line. A notebook knows how to return to its beginning, and no more."""
        return f"\r{_CLEAR_LINE}" if self._is_terminal else f"\r{' ' * self._open_columns}\r"


def print_lines(lines: list[str], stream: TextIO | None = None) -> None:
    """Print the output of `Print` sinks. Characters that the stream cannot encode are written as escapes."""
    stream = sys.stdout if stream is None else stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print("\n".join(lines).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _is_of_notebook(stream: TextIO) -> bool:
    """Whether a stream leads to the output of a notebook's cell."""
    return type(stream).__module__.startswith("ipykernel")


def figures(story: Story, records_per_s: float, hops_per_s: float) -> str:
    """The progress of a run as one line.

    >>> figures(Story("rank", state="running", attempt=1, last_epoch=7, log_bytes=2048), 12500, 90000)
    'running, attempt 1, epoch 7: 12,500 records/s, 90,000 hops/s, 0 bytes in loops, 2,048 in the log'
    """
    in_loops = sum(counts.in_loops for (attempt, _), counts in story.counts.items() if attempt == story.attempt)
    epoch = "-" if story.last_epoch is None else story.last_epoch
    return (
        f"{story.state}, attempt {story.attempt}, epoch {epoch}: {records_per_s:,.0f} records/s, "
        f"{hops_per_s:,.0f} hops/s, {in_loops:,} bytes in loops, {story.log_bytes:,} in the log"
    )
