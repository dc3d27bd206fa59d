"""The life of a run: claim an attempt, restore every task, run, and again after a death.

The chain of a job is a numbered list in the store: starts of attempts and manifests. Each entry is created exclusively.
Entries of cuts that were dropped may be gone from it, never the last one.
So whoever has lost the job, for instance a coordinator that slept through a takeover, finds its place taken and stops;
and nothing of an earlier attempt is ever applied.

No task runs before all are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from graphs.ids import Attempt, Epoch, TaskId
from recovery.orders import (
    AppendEntry,
    AttemptStart,
    Entry,
    FailRun,
    Fenced,
    Manifest,
    Numbered,
    Order,
    RestoreTasks,
    StartTasks,
)


class Stage(Enum):
    """Where the run is."""

    CLAIMING = "claiming"
    RESTORING = "restoring"
    RUNNING = "running"
    OVER = "over"


class Supervisor:
    """Attempts of one run."""

    def __init__(self, restarts_max: int = 10) -> None:
        self.restarts_max = restarts_max
        self.restarts = 0
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(0)
        self.entries = 0
        self.next_epoch = Epoch(1)
        self.cuts: list[Epoch] = []
        self.savepoints: set[Epoch] = set()
        self.restored_from: Epoch | None = None
        self.waiting: set[TaskId] = set()
        self.wanted: Epoch | None = None
        self.anew = False

    def begin(self, chain: Sequence[Numbered], epoch: Epoch | None = None, *, anew: bool = False) -> list[Order]:
        """Read the chain and claim the next attempt, from the latest cut or from the one that is asked for.

        A run that is to begin `anew` takes no other's job over.
        """
        for number, entry in chain:
            if number > self.entries:
                self._learn(number, entry)
        self.anew = anew
        if anew and self.entries:
            self.stage = Stage.OVER
            return [FailRun("another run of this job has begun in the same folder meanwhile, and has it now")]
        if epoch is not None and epoch not in self.cuts:
            raise ValueError(f"epoch {epoch} is no complete cut of this job; there are {self.cuts or 'none'}")
        self.wanted = epoch
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(self.attempt + 1)
        self.restored_from = epoch or (self.cuts[-1] if self.cuts else None)
        return [AppendEntry(self.entries + 1, AttemptStart(self.attempt, self.restored_from))]

    def _learn(self, number: int, entry: Entry) -> None:
        self.entries = number
        self.attempt = max(self.attempt, entry.attempt)
        if isinstance(entry, Manifest):
            self.cuts.append(entry.epoch)
            if entry.savepoint is not None:
                self.savepoints.add(entry.epoch)
            self.next_epoch = Epoch(max(self.next_epoch, entry.epoch + 1))

    def on_dropped(self, epoch: Epoch) -> None:
        """Retention has dropped a cut: nothing will be restored from it."""
        self.cuts.remove(epoch)

    def periodic_cuts(self) -> list[Epoch]:
        """The cuts that retention may drop in their turn: all but the savepoints, which are kept by name."""
        return [epoch for epoch in self.cuts if epoch not in self.savepoints]

    def on_appended(self, entry: Entry) -> list[Order]:
        """The entry is ours. A claim is followed by the restore."""
        self._learn(self.entries + 1, entry)
        if isinstance(entry, Manifest):
            return []
        self.stage = Stage.RESTORING
        return [RestoreTasks(self.attempt, self.restored_from)]

    def on_taken(self, number: int, chain: Sequence[Numbered]) -> list[Order]:
        """Somebody else was faster. A run that begins tries behind it; one that had the job has lost it."""
        if self.stage is Stage.CLAIMING and not self.restarts:
            return self.begin(chain, self.wanted, anew=self.anew)
        self.stage = Stage.OVER
        return [Fenced(number)]

    def on_placed(self, tasks: Iterable[TaskId]) -> None:
        """These are the tasks of the attempt; all of them must be restored before one runs."""
        self.waiting = set(tasks)

    def append(self, entry: Entry) -> list[Order]:
        """Where the next entry goes."""
        return [AppendEntry(self.entries + 1, entry)]

    def on_restored(self, task: TaskId, attempt: Attempt) -> list[Order]:
        """A task has its state back."""
        if attempt != self.attempt or self.stage is not Stage.RESTORING:
            return []
        self.waiting.discard(task)
        if self.waiting:
            return []
        self.stage = Stage.RUNNING
        return [StartTasks(self.attempt)]

    def on_failure(self, reason: str, chain: Sequence[Numbered]) -> list[Order]:
        """A process died or the attempt failed: claim another attempt, unless the job is lost or there were too many.

        What failed may have failed because a later run took over: to claim behind it would take the job back.
        """
        if self.stage is Stage.OVER:
            return []
        for number, entry in chain:
            if number > self.entries and entry.attempt > self.attempt:
                self.stage = Stage.OVER
                return [Fenced(number)]
        self.restarts += 1
        if self.restarts > self.restarts_max:
            self.stage = Stage.OVER
            return [FailRun(f"restarted {self.restarts_max} times, and then: {reason}")]
        return self.begin(chain)

    def on_finished(self) -> None:
        """The run is over."""
        self.stage = Stage.OVER
