"""The life cycle of a task, and its legal transitions."""

from __future__ import annotations

from enum import Enum


class Life(Enum):
    """The life cycle of a task.

    | from | by | to |
    | --- | --- | --- |
    | NEW | `start` | RUNNING |
    | RUNNING | exhausted, told to end, inputs ended, iteration over: `RunEnd` follows | ENDING |
    | ENDING | `on_end_hooks_ran` | ENDED |
    | HAD_ENDED | `start`: only says END again, and runs no hooks | ENDED_AGAIN |

    HAD_ENDED is the state of a task that had ended in the restored cut.

    - takes: whether inputs are processed. is_over: whether it has ended, so that triggers have no effect.
    """

    NEW = ("new", False, False)
    RUNNING = ("running", True, False)
    ENDING = ("ending", False, False)
    ENDED = ("ended", False, True)
    HAD_ENDED = ("had ended", False, True)
    ENDED_AGAIN = ("ended again", False, True)

    def __init__(self, label: str, takes: bool, is_over: bool) -> None:
        self.label = label
        self.takes = takes
        self.is_over = is_over


TRANSITIONS = {
    (Life.NEW, Life.RUNNING),
    (Life.RUNNING, Life.ENDING),
    (Life.ENDING, Life.ENDED),
    (Life.HAD_ENDED, Life.ENDED_AGAIN),
}
