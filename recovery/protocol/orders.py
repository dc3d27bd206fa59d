"""Orders of the coordinator and the supervisor to their driver, carried out in the order of the list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from backedge.graphs.ids import Attempt, Epoch, TaskId, turn_in
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.requests import Request, Sizes


class Trigger(NamedTuple):
    """Start the epoch at this task.

    `patience_ms` is how long the task may wait for its inputs, and `base` the cut since which it writes what changed
    (see `Barrier`).
    """

    task: TaskId
    epoch: Epoch
    mode: Mode
    patience_ms: int | None = None
    base: Epoch | None = None


class Abort(NamedTuple):
    """Tell the task that the epoch will never complete, on a path that nothing holds up."""

    task: TaskId
    epoch: Epoch
    mode: Mode


class GivenUp(NamedTuple):
    """Report to the user that an epoch will never complete, and why. Follows the epoch's aborts."""

    epoch: Epoch
    reason: str


class TellToEnd(NamedTuple):
    """Tell a loop head that its loop has run dry and must end."""

    task: TaskId


class Complete(NamedTuple):
    """Tell the task that the cut is complete, and which of the task's transactions it lists."""

    task: TaskId
    epoch: Epoch
    transactions: tuple[str, ...]


class DropCut(NamedTuple):
    """Remove a cut that the last manifest no longer keeps. If this fails, a later `Sweep` removes it."""

    epoch: Epoch


class FileId(NamedTuple):
    """What a task has written: in which attempt, and for which epoch; None is its last state."""

    attempt: Attempt
    epoch: Epoch | None
    task: TaskId


class StateFile(NamedTuple):
    """What a task has written of its keyed state, everything or what changed: how many entries, and bytes on disk."""

    attempt: Attempt
    epoch: Epoch | None
    keys: int
    size: int = 0


class Compact(NamedTuple):
    """Put the keyed state in these files of a task into one file; then `on_compacted`, whether that has failed or not.

    It is filed under `epoch`, a number of its own. The files are those of a complete cut. If retention drops them
    meanwhile, that is a failure like any other. The first `left` of them, none or one, stay as they are: then the new
    file holds what has changed since the cut of that one.
    """

    task: TaskId
    epoch: Epoch
    files: tuple[StateFile, ...]
    left: int = 0


class CutId(NamedTuple):
    """A complete cut, and the attempt that took it."""

    epoch: Epoch
    attempt: Attempt


class Sweep(Struct, frozen=True):
    """Remove leftovers of attempts, now or at any later time. Skip what cannot be removed.

    No removal can be fenced: a supervisor may stall and carry it out long after another has taken over. So this removes
    only what the chain has made dead for good. `attempt` is the attempt of the supervisor that gives the order, after
    its claim: nothing of a later attempt is touched, and of its own only what can no longer become part of a cut.
    `is_over` says that this attempt has ended.

    - cuts: the cuts that the chain keeps; only these can be restored.
    - files: what they name, and the outputs of compactions that run or wait to be named.
    - others: the attempts of other pipelines, of which nothing is removed.
    - last: the last complete cut; earlier epochs will never complete.
    - prepared: transactions that must or may still be published.
    - noted: transactions listed by a restorable cut; a restore needs to know whether they were published.
    - settled: no run can go back to before this epoch any more; None if this has not changed since the last sweep.
    - committed: at the end of the run, the transactions that its last cut lists. What is not published of them, because
      a process has died, no task will publish.
    """

    attempt: Attempt
    is_over: bool
    cuts: frozenset[CutId]
    last: Epoch | None
    prepared: frozenset[str]
    noted: frozenset[str]
    files: frozenset[FileId] = frozenset()
    others: frozenset[Attempt] = frozenset()
    settled: Epoch | None = None
    committed: frozenset[str] = frozenset()

    def removes_file(self, file: FileId) -> bool:
        """Whether to remove what a task has written. Nothing that is in no list of a kept cut comes into one later."""
        if file in self.files:
            return False
        is_settled = file.epoch is not None and self.last is not None and file.epoch <= self.last
        return self._is_earlier(file.attempt) or (file.attempt == self.attempt and is_settled)

    def removes_epoch(self, epoch: Epoch, attempt: Attempt) -> bool:
        """Whether to remove the files that an attempt wrote for an epoch."""
        if (epoch, attempt) in self.cuts:
            return False
        return self._is_earlier(attempt) or (attempt == self.attempt and self.last is not None and epoch < self.last)

    def removes_last_states(self, attempt: Attempt) -> bool:
        """Whether to remove the last states and the versions of an attempt that no kept cut names."""
        return self._is_earlier(attempt)

    def removes_open(self, attempt: int) -> bool:
        """Whether to remove output that an attempt has not prepared."""
        return self._is_earlier(Attempt(attempt))

    def removes(self, transaction: str) -> bool:
        """Whether to remove a transaction that an attempt has prepared. What has another name is left alone."""
        turn = turn_in(transaction)
        return turn is not None and transaction not in self.prepared and self._is_earlier(turn.attempt)

    def forgets(self, transaction: str) -> bool:
        """Whether to remove the note that a transaction was published.

        A transaction of this attempt that was prepared after the last cut may be published, and be listed by a later
        cut, before this is carried out. The same holds for one of a task that has ended, which has epoch 0.
        """
        turn = turn_in(transaction)
        if turn is None or transaction in self.noted:
            return False
        is_settled = self.last is not None and 0 < turn.epoch <= self.last
        return self._is_earlier(turn.attempt) or (turn.attempt == self.attempt and is_settled)

    @property
    def settles(self) -> bool:
        """Whether output may be settled that was not before."""
        return self.settled is not None or not self.cuts

    def is_settled(self, transaction: str) -> bool:
        """Whether no run can go back to before a transaction, so that it is never removed once it is published.

        The first cut that the chain keeps only becomes later, so this remains true.
        """
        turn = turn_in(transaction)
        if turn is None or turn.attempt in self.others or turn.attempt > self.attempt:
            return False
        return not self.cuts or (self.settled is not None and 0 < turn.epoch <= self.settled)

    def _is_earlier(self, attempt: Attempt) -> bool:
        if attempt in self.others:
            return False
        return attempt <= self.attempt if self.is_over else attempt < self.attempt


class Manifest(Struct, frozen=True):
    """The record that a cut is complete. `files` maps each task to the epoch of its files; None is its last state.

    A requested cut has the id of the request, and the name it is kept by. `stops`: the request was a stop, so the run
    ends with this cut.

    `kept` are the cuts that remain, including this one; None means all. Once this record is durable, other cuts can no
    longer be restored, and their files are removed, except those that kept cuts name.

    `states` maps each task to the files that make up its keyed state, oldest first. The last one is its own of this
    cut; for each key the last file that holds it counts.

    `pipeline` names the pipeline that the cut is of; None if the whole job is one. `given_up` names others whose
    earlier cuts are dead: the run, or one before it, goes on without them.
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
    states: Mapping[TaskId, tuple[StateFile, ...]] = {}
    pipeline: str | None = None
    stops: bool = False
    given_up: tuple[str, ...] = ()

    @property
    def named(self) -> frozenset[FileId]:
        """Everything that tasks have written and this cut needs."""
        own = {FileId(self.attempt, epoch, task) for task, epoch in self.files.items()}
        earlier = {FileId(file.attempt, file.epoch, task) for task, files in self.states.items() for file in files}
        return frozenset(own | earlier)


class AttemptStart(Struct, frozen=True):
    """The start of an attempt, from the `restored` cut or from the beginning.

    `sizes` are the numbers of tasks, if the run was rescaled, and `begun` those that its options gave it; both are
    empty for any other run. `pipeline` names the pipeline that is started; None if the whole job is one.

    `replaces` is a cut after which all output is removed. Once this record is durable, later cuts can no longer be
    restored. Each start names it again, until an attempt has removed the output and completed a cut.
    """

    attempt: Attempt
    restored: Epoch | None
    claimant: str = ""
    sizes: Sizes = ()
    pipeline: str | None = None
    replaces: Epoch | None = None
    begun: Sizes = ()


Entry = Manifest | AttemptStart
"""One entry of the chain of a job.

`claimant` is the random number of the supervisor that created it: two supervisors never write equal entries, so an
entry that reads back as it was written is the writer's own.
"""


class Numbered(NamedTuple):
    """An entry at its place in the chain. The first has number 1; entries that are no longer needed may be missing."""

    number: int
    entry: Entry


class AppendEntry(NamedTuple):
    """Create entry `number` exclusively; then `on_appended`, or `on_taken` if another entry has that number, or
    `on_manifest_failed` if a manifest could not be created.

    If it is unknown whether the entry exists (a disk error, a lost reply), call `on_unknown`. Until the answer is
    known, nothing that the entry names is aborted or removed.
    """

    number: int
    entry: Entry


class ReplaceOutput(NamedTuple):
    """Remove the output that earlier attempts have prepared or published after this cut, before any task is restored.

    If this fails, the attempt fails. It may be carried out again, or late: that output is dead for good. `others` are
    the attempts of other pipelines, of whose output nothing is removed.
    """

    attempt: Attempt
    after: Epoch
    others: frozenset[Attempt] = frozenset()


class RestoreTasks(NamedTuple):
    """Restore every task from that cut, or from the beginning; then `on_restored` for each.

    `unpublished` are transactions of a complete cut later than the restored one: they are published before a task runs.
    """

    attempt: Attempt
    epoch: Epoch | None
    unpublished: tuple[str, ...] = ()


class StartTasks(NamedTuple):
    """All tasks are restored: start them; then `on_started`."""

    attempt: Attempt


class FailAttempt(NamedTuple):
    """The attempt has failed; the job is restored from its last cut."""

    reason: str


class Rescale(NamedTuple):
    """Leave the attempt for one with these numbers of tasks, which restores this cut; then `on_rescale`.

    The cut was taken for this request. If it cannot be restored with them, the request is refused and the attempt goes
    on.
    """

    request: Request
    epoch: Epoch
    sizes: Sizes


class PauseRestart(NamedTuple):
    """Begin the next attempt after this pause, when `is_due` is true, with `resume`."""

    pause_ms: int


class Fenced(NamedTuple):
    """Another coordinator has taken over the job: stop, and write nothing more."""

    number: int


class FailRun(NamedTuple):
    """The run has failed for good."""

    reason: str


class Finished(NamedTuple):
    """All tasks have ended, or a stop ended the run; the final cut is complete, and its output is published."""

    epoch: Epoch
    is_stopped: bool = False


Order = (
    Trigger
    | Abort
    | GivenUp
    | TellToEnd
    | Complete
    | DropCut
    | Compact
    | Sweep
    | AppendEntry
    | ReplaceOutput
    | RestoreTasks
    | StartTasks
    | FailAttempt
    | Rescale
    | PauseRestart
    | Fenced
    | FailRun
    | Finished
)
