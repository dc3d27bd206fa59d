"""Names the operators and the task that print, in front of what they print.

Ray writes what a process prints to a file, reads that file line by line, and shows each line to the driver with the
name of the actor in front. A line of the file that begins with `MARK` sets this name for those that follow. So a task
that prints where another one has printed before gets such a line first: an actor may host several tasks, and a spare
has the name of none. `engine/on_ray/worker_logs.py` reads the same lines.

Lines are written as a whole. `print` with several arguments writes each of them, and Ray's output passes them on at
once, so a reader that comes in between shows two lines. What a program flushes is written as it is.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from threading import Lock
from typing import Any, TextIO, cast

from backedge.graphs.deployment import Task

MARK = ":actor_name:"

LINE_CHARACTERS_MAX = 8_192
"""A longer line is written in parts."""

printing_as: ContextVar[str] = ContextVar("printing_as", default="")
"""The label of the task that is running; calls that it makes in other threads inherit it."""


def label_of(job: str, task: Task) -> str:
    """How a task is named in front of what it prints: its job, the chain of its operators, and its index."""
    return f"{job}/{' > '.join(task.operators)}/{task.id.index}"


class LabelledOutput:
    """An output of this process, with a mark in front of what another task prints. Otherwise the output itself.

    - label: the task that the last mark names.
    - waiting: the beginning of a line, with its mark.
    - is_at_start: whether what comes next begins a line.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._lock = Lock()
        self._label = ""
        self._waiting = ""
        self._is_at_start = True

    def write(self, text: str) -> int:
        """Write a text, after a mark if it begins a line of another task."""
        if not text:
            return 0
        with self._lock:
            label = printing_as.get()
            if self._is_at_start and label and label != self._label:
                self._label = label
                self._waiting = f"{MARK}{label}\n"
            self._is_at_start = text.endswith("\n")
            lines, end, rest = (self._waiting + text).rpartition("\n")
            if len(rest) > LINE_CHARACTERS_MAX:
                end, rest = end + rest, ""
            self._waiting = rest
            if end:
                self._output.write(lines + end)
            return len(text)

    def flush(self) -> None:
        """Write what waits for the end of its line, too."""
        with self._lock:
            if self._waiting:
                self._output.write(self._waiting)
                self._waiting = ""
            self._output.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def label_output() -> None:
    """Have all that this process prints from now on labelled."""
    sys.stdout = cast(TextIO, LabelledOutput(sys.stdout))
    sys.stderr = cast(TextIO, LabelledOutput(sys.stderr))
