"""Names the operators and the task that print, in front of what they print.

Ray writes what a process prints to a file, reads that file line by line, and shows each line to the driver with the
name of the actor in front. A line of the file that begins with `MARK` sets this name for those that follow. So a task
that prints where another one has printed before gets such a line first: an actor may host several tasks, and a spare
has the name of none. `engine/on_ray/worker_logs.py` reads the same lines.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from threading import Lock
from typing import Any, TextIO, cast

from graphs.deployment import Task

MARK = ":actor_name:"

printing_as: ContextVar[str] = ContextVar("printing_as", default="")
"""The label of the task that is running; calls that it makes in other threads inherit it."""


def label_of(job: str, task: Task) -> str:
    """How a task is named in front of what it prints: its job, the chain of its operators, and its index."""
    return f"{job}/{' > '.join(task.operators)}/{task.id.index}"


class LabelledOutput:
    """An output of this process, with a mark in front of what another task prints. Otherwise the output itself."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._lock = Lock()
        self._label = ""
        self._is_at_start = True

    def write(self, text: str) -> int:
        """Write a text, after a mark if it begins a line of another task."""
        if not text:
            return 0
        with self._lock:
            label = printing_as.get()
            if self._is_at_start and label and label != self._label:
                self._label = label
                self._output.write(f"{MARK}{label}\n")
            self._is_at_start = text.endswith("\n")
            return self._output.write(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def label_output() -> None:
    """Have all that this process prints from now on labelled."""
    sys.stdout = cast(TextIO, LabelledOutput(sys.stdout))
    sys.stderr = cast(TextIO, LabelledOutput(sys.stderr))
