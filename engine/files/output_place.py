"""Where a sink of files publishes: the port that a folder and a place in an object store implement alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from backedge.engine.files.parts import Part
from backedge.graphs.io import Rollback, SinkWriter, Withdrawal

NewPart = Callable[[Path], Part]
"""Creates the local file of a part, in the format of the sink."""


class OutputPlace(Protocol):
    """The output of one task of a sink."""

    def check(self, fresh: bool) -> None:
        """Raise an `OutputError` unless it can be written to; also if it contains output and the run is fresh."""

    def claim(self) -> bool:
        """Claim it for this run. False if the run already has it. `OutputError` names another owner."""
        ...

    @property
    def is_claimed(self) -> bool:
        """Whether this run has claimed it."""
        ...

    def release(self) -> None:
        """Release the claim of a run that will never be resumed."""

    def open_writer(self, new_part: NewPart) -> SinkWriter:
        """Open the writer of the task."""
        ...

    def roll_back(self, rollback: Rollback) -> None:
        """Remove parts that will not be published."""

    @property
    def can_withdraw(self) -> bool:
        """Whether it can remove what was published."""
        ...

    def withdraw(self, later: Withdrawal) -> None:
        """Remove what was published after a cut."""
