"""What the coordinator and the supervisor tell their driver to do, in the order of the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from graphs.ids import Attempt, Epoch, TaskId
from recovery.messages import Mode


class Trigger(NamedTuple):
    """Start the epoch at this task. `within` is the drain that a probe is for."""

    task: TaskId
    epoch: Epoch
    mode: Mode
    within: Epoch | None = None


class Abort(NamedTuple):
    """Tell the task that the epoch will never complete. On a path that nothing holds up."""

    task: TaskId
    epoch: Epoch
    mode: Mode


class TellToEnd(NamedTuple):
    """Tell a loop head that its loop has run dry for good."""

    task: TaskId


class Complete(NamedTuple):
    """Tell the task that the cut is complete, and which of its transactions it lists."""

    task: TaskId
    epoch: Epoch
    transactions: tuple[str, ...]


class DropCut(NamedTuple):
    """Remove a cut that retention no longer keeps."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record that a cut is complete. `files` tells for each task the epoch of its file; None is its last state."""

    epoch: Epoch
    attempt: Attempt
    mode: Mode
    files: Mapping[TaskId, Epoch | None]
    transactions: Mapping[TaskId, tuple[str, ...]]
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """An attempt begins, from that cut or from nothing."""

    attempt: Attempt
    restored: Epoch | None


Entry = Manifest | AttemptStart
"""One entry of the chain of a job."""


class Numbered(NamedTuple):
    """An entry at its place in the chain. The first has number 1, and entries that nobody needs may be gone."""

    number: int
    entry: Entry


class WriteManifest(NamedTuple):
    """Append the manifest to the chain; then `on_manifest_written` or `on_manifest_failed`."""

    manifest: Manifest


class AppendEntry(NamedTuple):
    """Create entry `number` exclusively; then `on_appended`, or `on_taken` if somebody was faster."""

    number: int
    entry: Entry


class RestoreTasks(NamedTuple):
    """Give every task its part of that cut, or its beginning; then `on_restored` for each."""

    attempt: Attempt
    epoch: Epoch | None


class StartTasks(NamedTuple):
    """All tasks are restored: let them run."""

    attempt: Attempt


class FailAttempt(NamedTuple):
    """The attempt cannot go on; the job is restored from its last cut."""

    reason: str


class Fenced(NamedTuple):
    """Another coordinator holds the job: stop, write nothing more."""

    number: int


class FailRun(NamedTuple):
    """The run has failed for good."""

    reason: str


class Finished(NamedTuple):
    """Everything has ended, the final cut is complete, its output is published."""

    epoch: Epoch


Order = (
    Trigger
    | Abort
    | TellToEnd
    | Complete
    | DropCut
    | WriteManifest
    | AppendEntry
    | RestoreTasks
    | StartTasks
    | FailAttempt
    | Fenced
    | FailRun
    | Finished
)
