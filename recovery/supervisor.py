"""The life of a run: claim an attempt, restore every task, run, and again after a death.

The chain of a job is a numbered list in the store: starts of attempts and manifests. Each entry is created exclusively.
Entries of cuts that were dropped may be gone from it, never the last one.
So whoever has lost the job, for instance a coordinator that slept through a takeover, finds its place taken and stops;
and nothing of an earlier attempt is ever applied.

- An entry carries the random number of its claimant, so a supervisor knows its own entries, even those whose creation
  it was never told of. An entry of its own never fences it.
- Retention is decided in the chain: a manifest names the cuts that remain, and only those can be restored.
- What is removed is what the chain has made dead for good (`Sweep`), for a removal may be carried out late.
- A run that goes back behind the last cut publishes first what that lists and is not published yet: it was complete.
- The last entry says where to continue: a manifest with its own cut, a start with the cut that it restored. So a run
  that was asked to go back to an older cut goes back to it again if it fails before its first cut.

No task runs before all are restored.

After a failure the next attempt begins at once. If the attempts after it fail too, before any of them has completed a
cut, each waits longer than the one before, by a random amount, so that a full disk or a host that comes back has time.
The run fails when too many attempts have failed within a stretch of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from graphs.ids import Attempt, Epoch, TaskId
from recovery.orders import (
    AppendEntry,
    AttemptStart,
    CutId,
    Entry,
    FailRun,
    Fenced,
    Manifest,
    Numbered,
    Order,
    PauseRestart,
    RestoreTasks,
    StartTasks,
    Sweep,
)
from recovery.requests import Requests


class Stage(Enum):
    """Where the run is."""

    CLAIMING = "claiming"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSING = "pausing"
    OVER = "over"


class KeptCut(NamedTuple):
    """A complete cut that the chain keeps: who took it, and the transactions that it lists."""

    attempt: Attempt
    transactions: frozenset[str]
    is_savepoint: bool


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """How often an attempt may fail: `restarts_max` times within `window_ms`.

    The pause before a restart doubles from `pause_ms` to `pause_ms_max`, less up to half of it at random.
    """

    restarts_max: int = 10
    window_ms: int = 3_600_000
    pause_ms: int = 100
    pause_ms_max: int = 30_000


class Supervisor:
    """Attempts of one run. `claimant` is a random number that no other supervisor of the job has.

    - restarts: of the whole run. failed_ms: the times of those that count against the limit.
    - failures_in_a_row: attempts that have failed since the last complete cut.
    """

    def __init__(self, claimant: str, options: RestartOptions | None = None) -> None:
        self.claimant = claimant
        self.options = options or RestartOptions()
        self.requests = Requests()
        self.restarts = 0
        self.failed_ms: deque[int] = deque()
        self.failures_in_a_row = 0
        self.resume_at_ms = 0
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(0)
        self.entries = 0
        self.next_epoch = Epoch(1)
        self.kept: dict[Epoch, KeptCut] = {}
        self.last_cut: Epoch | None = None
        self.restored_from: Epoch | None = None
        self.continues_from: Epoch | None = None
        self.waiting: set[TaskId] = set()
        self.wanted: Epoch | None = None
        self.anew = False

    def begin(self, chain: Sequence[Numbered], epoch: Epoch | None = None, *, anew: bool = False) -> list[Order]:
        """Read the chain and claim the next attempt, from where the last entry says or from the cut that is asked for.

        A run that is to begin `anew` takes no other's job over.
        """
        foreign = self._foreign(chain)
        self.read(chain)
        self.anew = anew
        if anew and foreign:
            self.stage = Stage.OVER
            return [FailRun("another run of this job has begun in the same folder meanwhile, and has it now")]
        if epoch is not None and epoch not in self.cuts:
            missing = f"epoch {epoch} is no complete cut of this job; there are {self.cuts or 'none'}"
            if self.wanted is None:
                raise ValueError(missing)
            self.stage = Stage.OVER
            return [FailRun(f"{missing}: another run has dropped it meanwhile")]
        self.wanted = epoch
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(self.attempt + 1)
        self.restored_from = self.continues_from if epoch is None else epoch
        return self.append(AttemptStart(self.attempt, self.restored_from))

    def read(self, chain: Sequence[Numbered]) -> None:
        """Learn the entries that are new."""
        for number, entry in chain:
            if number > self.entries:
                self._learn(number, entry)

    def _learn(self, number: int, entry: Entry) -> None:
        self.entries = number
        self.attempt = max(self.attempt, entry.attempt)
        if isinstance(entry, AttemptStart):
            self.continues_from = entry.restored
        else:
            self.continues_from = self.last_cut = entry.epoch
            if entry.request is not None:
                self.requests.on_recorded(entry.request, entry.epoch)
            self.next_epoch = Epoch(max(self.next_epoch, entry.epoch + 1))
            transactions = frozenset(name for names in entry.transactions.values() for name in names)
            self.kept[entry.epoch] = KeptCut(entry.attempt, transactions, entry.savepoint is not None)
            if entry.kept is not None:
                self.kept = {epoch: cut for epoch, cut in self.kept.items() if epoch in entry.kept}

    @property
    def cuts(self) -> list[Epoch]:
        """The cuts that can be restored, in the order in which they were taken."""
        return list(self.kept)

    def periodic_cuts(self) -> list[Epoch]:
        """The cuts that retention may drop in their turn: all but the savepoints, which are kept by name."""
        return [epoch for epoch, cut in self.kept.items() if not cut.is_savepoint]

    def sweep(self, *, is_over: bool = False) -> Sweep:
        """What may be removed by now, and at any later time."""
        unpublished = self._listed_by(self.last_cut)
        return Sweep(
            self.attempt,
            is_over,
            cuts=frozenset(CutId(epoch, cut.attempt) for epoch, cut in self.kept.items()),
            last=self.last_cut,
            prepared=unpublished | self._listed_by(self.restored_from),
            noted=frozenset(name for cut in self.kept.values() for name in cut.transactions),
        )

    def _listed_by(self, epoch: Epoch | None) -> frozenset[str]:
        cut = None if epoch is None else self.kept.get(epoch)
        return frozenset() if cut is None else cut.transactions

    def on_appended(self, entry: Entry) -> list[Order]:
        """The entry is ours. What it has made dead is removed; a claim is followed by the restore."""
        self._learn(self.entries + 1, entry)
        if isinstance(entry, Manifest):
            self.failures_in_a_row = 0
            return [self.sweep()]
        # From here on the chain says where to continue.
        self.wanted, self.anew = None, False
        self.stage = Stage.RESTORING
        unpublished = () if self.last_cut == self.restored_from else sorted(self._listed_by(self.last_cut))
        return [self.sweep(), RestoreTasks(self.attempt, self.restored_from, tuple(unpublished))]

    def on_taken(self, number: int, chain: Sequence[Numbered]) -> list[Order]:
        """Another entry has that number.

        If it is another supervisor's, a run that begins tries behind it, and one that had the job has lost it. If it is
        of an earlier attempt of this one, given up before the answer was known, the next attempt goes on behind it.
        """
        if self.stage is Stage.CLAIMING and (not self.restarts or not self._foreign(chain)):
            return self.begin(chain, self.wanted, anew=self.anew)
        return self._fence(number)

    def _foreign(self, chain: Sequence[Numbered]) -> list[int]:
        """The numbers of entries that another supervisor has created since."""
        return [number for number, entry in chain if number > self.entries and entry.claimant != self.claimant]

    def on_placed(self, tasks: Iterable[TaskId]) -> None:
        """These are the tasks of the attempt; all of them must be restored before one runs."""
        self.waiting = set(tasks)

    def append(self, entry: Entry) -> list[Order]:
        """Where the next entry goes, and whose it is. A manifest keeps the savepoints of earlier attempts, too."""
        if isinstance(entry, Manifest) and entry.kept is not None:
            savepoints = [epoch for epoch, cut in self.kept.items() if cut.is_savepoint and epoch not in entry.kept]
            entry = replace(entry, kept=tuple(sorted((*savepoints, *entry.kept))))
        return [AppendEntry(self.entries + 1, replace(entry, claimant=self.claimant))]

    def on_unknown(self, append: AppendEntry) -> list[Order]:
        """Whether this entry exists is unknown: ask for the same one again, until the answer is known."""
        return [append]

    def on_restored(self, task: TaskId, attempt: Attempt) -> list[Order]:
        """A task has its state back."""
        if attempt != self.attempt or self.stage is not Stage.RESTORING:
            return []
        self.waiting.discard(task)
        if self.waiting:
            return []
        self.stage = Stage.RUNNING
        return [StartTasks(self.attempt)]

    def on_failure(self, reason: str, chain: Sequence[Numbered], now_ms: int) -> list[Order]:
        """A process died or the attempt failed: claim another attempt, unless the job is lost or there were too many.

        That may have to wait: then the driver calls `resume` once `is_due`.

        What failed may have failed because a later run took over: to claim behind it would take the job back.
        """
        if self.stage is Stage.OVER:
            return []
        foreign = self._foreign(chain)
        if foreign:
            return self._fence(foreign[0])
        self.requests.on_attempt_over()
        self.restarts += 1
        self.failures_in_a_row += 1
        self.failed_ms.append(now_ms)
        while self.failed_ms[0] <= now_ms - self.options.window_ms:
            self.failed_ms.popleft()
        if len(self.failed_ms) > self.options.restarts_max:
            self.stage = Stage.OVER
            within = f"{self.options.restarts_max} times within {self.options.window_ms / 1000:g} s"
            failure = f"restarted {within}, and then: {reason}"
            self.requests.on_failed(failure)
            return [FailRun(failure)]
        pause_ms = self._pause_ms()
        if pause_ms == 0:
            return self.begin(chain, self.wanted, anew=self.anew)
        self.stage = Stage.PAUSING
        self.resume_at_ms = now_ms + pause_ms
        return [PauseRestart(pause_ms)]

    def is_due(self, now_ms: int) -> bool:
        """Whether the pause before the next attempt is over."""
        return self.stage is Stage.PAUSING and now_ms >= self.resume_at_ms

    def resume(self, chain: Sequence[Numbered]) -> list[Order]:
        """Claim the next attempt after a pause, unless another run has taken over meanwhile."""
        foreign = self._foreign(chain)
        return self._fence(foreign[0]) if foreign else self.begin(chain, self.wanted, anew=self.anew)

    def _fence(self, number: int) -> list[Order]:
        self.stage = Stage.OVER
        self.requests.on_failed("another run has taken over the job")
        return [Fenced(number)]

    def _pause_ms(self) -> int:
        """The first restart in a row is not delayed, the second by `pause_ms`, and so on."""
        if self.failures_in_a_row == 1:
            return 0
        doublings = min(self.failures_in_a_row - 2, 32)
        longest_ms = min(self.options.pause_ms << doublings, self.options.pause_ms_max)
        return longest_ms - longest_ms * crc32(f"{self.claimant} {self.restarts}".encode()) // 2**33

    def on_finished(self, *, is_restorable: bool = True) -> list[Order]:
        """The run is over: no task runs any more. Where nothing will be restored, nothing is kept."""
        self.stage = Stage.OVER
        sweep = self.sweep(is_over=True)
        return [sweep if is_restorable else replace(sweep, prepared=frozenset(), noted=frozenset())]
