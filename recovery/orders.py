"""What the coordinator and the supervisor tell their driver to do, in the order of the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from graphs.ids import Attempt, Epoch, TaskId
from recovery.messages import Mode


class Trigger(NamedTuple):
    """Start the epoch at this task.

    `within` is the drain that a probe is for; `patience_ms` how long the task may wait for its inputs (see `Barrier`).
    """

    task: TaskId
    epoch: Epoch
    mode: Mode
    within: Epoch | None = None
    patience_ms: int | None = None


class Abort(NamedTuple):
    """Tell the task that the epoch will never complete. On a path that nothing holds up."""

    task: TaskId
    epoch: Epoch
    mode: Mode


class GivenUp(NamedTuple):
    """Report to the user that an epoch will never complete, and why. It follows the epoch's aborts."""

    epoch: Epoch
    reason: str


class TellToEnd(NamedTuple):
    """Tell a loop head that its loop has run dry for good."""

    task: TaskId


class Complete(NamedTuple):
    """Tell the task that the cut is complete, and which of its transactions it lists."""

    task: TaskId
    epoch: Epoch
    transactions: tuple[str, ...]


class DropCut(NamedTuple):
    """Remove a cut that the last manifest no longer keeps. Should that fail, a later `Sweep` does it."""

    epoch: Epoch


class CutId(NamedTuple):
    """A complete cut, and the attempt that took it."""

    epoch: Epoch
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove what attempts have left behind. Now or at any later time; if something cannot be removed, go on.

    No removal can be fenced: a supervisor may stall, and carry this out when others have long taken over. So it removes
    nothing but what the chain has made dead for good. `attempt` is the attempt whose supervisor gives this order, after
    its claim: nothing of a later one is touched, and of its own only what can no longer become part of a cut. `is_over`
    says that this attempt has come to its end.

    - cuts: those that the chain keeps. Only they can be restored.
    - last: the last cut that is complete; epochs before it will not be.
    - prepared: transactions that are still to be published, or may be.
    - noted: transactions that a restorable cut lists. A restore asks whether they were published.
    """

    attempt: Attempt
    is_over: bool
    cuts: frozenset[CutId]
    last: Epoch | None
    prepared: frozenset[str]
    noted: frozenset[str]

    def removes_epoch(self, epoch: Epoch, attempt: Attempt) -> bool:
        """Whether the files that an attempt wrote for an epoch go."""
        if (epoch, attempt) in self.cuts:
            return False
        return self._is_earlier(attempt) or (attempt == self.attempt and self.last is not None and epoch < self.last)

    def removes_last_states(self, attempt: Attempt) -> bool:
        """Whether the last states of an attempt go, but for those that a cut names which is kept."""
        return self._is_earlier(attempt)

    def removes_open(self, attempt: Attempt) -> bool:
        """Whether output goes that an attempt has not prepared."""
        return self._is_earlier(attempt)

    def removes_prepared(self, name: str, attempt: Attempt) -> bool:
        """Whether a transaction goes that an attempt has prepared."""
        return name not in self.prepared and self._is_earlier(attempt)

    def removes_note(self, name: str, attempt: Attempt) -> bool:
        """Whether the note goes that a transaction of an attempt was published."""
        return name not in self.noted and attempt <= self.attempt

    def _is_earlier(self, attempt: Attempt) -> bool:
        return attempt <= self.attempt if self.is_over else attempt < self.attempt


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record that a cut is complete. `files` tells for each task the epoch of its file; None is its last state.

    A cut that was requested has the request's id, and the name it is kept by.

    `kept` are the cuts that remain, this one included; None stands for all. The files of others go when this is
    durable, and they can no longer be restored.
    """

    epoch: Epoch
    attempt: Attempt
    mode: Mode
    files: Mapping[TaskId, Epoch | None]
    transactions: Mapping[TaskId, tuple[str, ...]]
    savepoint: str | None = None
    claimant: str = ""
    request: str | None = None
    kept: tuple[Epoch, ...] | None = None


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """An attempt begins, from that cut or from nothing."""

    attempt: Attempt
    restored: Epoch | None
    claimant: str = ""


Entry = Manifest | AttemptStart
"""One entry of the chain of a job.

`claimant` is the random number of the supervisor that created it: two supervisors never write equal entries, so an
entry that reads back as it was written is the writer's own.
"""


class Numbered(NamedTuple):
    """An entry at its place in the chain. The first has number 1, and entries that nobody needs may be gone."""

    number: int
    entry: Entry


class WriteManifest(NamedTuple):
    """Append the manifest to the chain; then `on_manifest_written` or `on_manifest_failed`."""

    manifest: Manifest


class AppendEntry(NamedTuple):
    """Create entry `number` exclusively; then `on_appended`, or `on_taken` if another entry has that number.

    If it is unknown whether the entry exists (the disk failed, a reply was lost): `on_unknown`. Until the answer is
    known, nothing that the entry names is aborted or removed.
    """

    number: int
    entry: Entry


class RestoreTasks(NamedTuple):
    """Give every task its part of that cut, or its beginning; then `on_restored` for each.

    `unpublished` are transactions of a later cut that the run goes back behind: they are published before a task runs,
    for that cut was complete.
    """

    attempt: Attempt
    epoch: Epoch | None
    unpublished: tuple[str, ...] = ()


class StartTasks(NamedTuple):
    """All tasks are restored: let them run."""

    attempt: Attempt


class FailAttempt(NamedTuple):
    """The attempt cannot go on; the job is restored from its last cut."""

    reason: str


class PauseRestart(NamedTuple):
    """Begin the next attempt after this pause: `is_due` says when, then `resume`."""

    pause_ms: int


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
    | GivenUp
    | TellToEnd
    | Complete
    | DropCut
    | Sweep
    | WriteManifest
    | AppendEntry
    | RestoreTasks
    | StartTasks
    | FailAttempt
    | PauseRestart
    | Fenced
    | FailRun
    | Finished
)
