"""The life of a run: claim an attempt, restore every task, run; after a failure, again.

The chain of a job is a numbered list in the store: starts of attempts and manifests. Each entry is created exclusively.
Entries of removed cuts may be missing from it, but never the last entry. A coordinator that has lost the job, for
instance because it slept through a takeover, finds its number taken and stops, and no action of an earlier attempt is
ever applied.

- An entry carries the random number of its claimant, so a supervisor recognises its own entries, even those whose
  creation was never confirmed. Its own entry never fences it.
- When a supervisor dies, a successor of the same run takes over. It claims an attempt before it does anything else. It
  continues from the end of the chain if its run has claimed anything, whatever the run was asked to begin with. Before
  its claim, entries of its run are those of its predecessors; after it, those of a successor, which has the job.
- A run that was rescaled keeps its numbers of tasks. So does a later run that continues from the latest cut, if that
  was taken with them, and if its options give it the same numbers as the rescaled one: it is the same command again. A
  run with other options has its own numbers. So does one after a rescale that has no cut yet: it may have failed.
- If a rescale's first attempts cannot be restored, because a function of the user's raises where it divides state, the
  rescale is refused, and the next attempt has the numbers of tasks that took the cut.
- Retention is decided in the chain: a manifest lists the cuts that remain, and only those can be restored.
- A removal may be carried out late, so only what the chain has made dead for good is removed (`Sweep`).
- A manifest says whether its cut was taken for a stop. The run ends then, also under a successor; a later run goes on.
- A run that resumes from an older cut first publishes the unpublished output of the latest one, which was complete.
- A run that replaces output says so in its claim: from then on the cuts after the one that it restores are dead, and so
  is their output. It is removed before any task is restored, again by each attempt until one has completed a cut.
- The last entry says where to resume: a manifest names its own cut, a start the cut that it restored. So a run that was
  asked to go back to an older cut goes back to it again if it fails before its first cut. If none of its tasks ever
  ran, it ends with a start of the cut that the chain named before: a try in vain does not change what is latest.
- If the job has several pipelines (`pipelines.py`), each has a supervisor, and "the last entry" is the last one of its
  pipeline. Whether the job is lost, all entries decide.

No task runs before all are restored. Then a coordinator leads the attempt (`coordinator.py`): it calls its supervisor
to append a manifest, or to leave the attempt for one with other numbers of tasks.

After a failure the next attempt begins at once. If further attempts fail before one of them completes a cut, each pause
is longer than the one before, by a random amount, which gives a full disk or a rebooting host time to recover. The run
fails when too many attempts have failed within a time window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId, prepared_by
from backedge.recovery.protocol.coordinator import Coordinator, SnapshotOptions
from backedge.recovery.protocol.orders import (
    AppendEntry,
    AttemptStart,
    CutId,
    Entry,
    FailRun,
    Fenced,
    FileId,
    Manifest,
    Numbered,
    Order,
    PauseRestart,
    ReplaceOutput,
    Rescale,
    RestoreTasks,
    StartTasks,
    Sweep,
)
from backedge.recovery.protocol.pipelines import THE_JOB, Pipeline
from backedge.recovery.protocol.protocol_errors import BrokenInvariantError, ProtocolError
from backedge.recovery.protocol.requests import Request, RequestKind, Requests, Sizes
from backedge.recovery.protocol.state_files import StateLists


def claimant_of(run: str, own: str) -> str:
    """The claimant of a supervisor, from the number of its run and its own.

    >>> claimant_of("4f", "09"), run_of("4f.09")
    ('4f.09', '4f')
    """
    return f"{run}.{own}"


def run_of(claimant: str) -> str:
    """The run that a supervisor belongs to; empty for one that shares its run with no other."""
    return claimant.rpartition(".")[0]


class Stage(Enum):
    """The stage of the run."""

    CLAIMING = "claiming"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSING = "pausing"
    OVER = "over"


class Claim(Enum):
    """Whose entries the chain holds, of the job or of one pipeline."""

    NONE = "none of this run"
    PREDECESSOR = "those of a predecessor"
    OWN = "those of this supervisor"
    LOST = "those of another run or of a successor behind them"


CLAIMS: Mapping[Claim, tuple[Claim, Claim, Claim]] = {
    Claim.NONE: (Claim.OWN, Claim.PREDECESSOR, Claim.NONE),
    Claim.PREDECESSOR: (Claim.OWN, Claim.PREDECESSOR, Claim.LOST),
    Claim.OWN: (Claim.OWN, Claim.LOST, Claim.LOST),
    Claim.LOST: (Claim.LOST, Claim.LOST, Claim.LOST),
}
"""What a claim becomes by an entry of this supervisor, by one of its run, and by one of another run.

A run that begins has not had the job: what others append before its first claim does not fence it.
"""


class Beginning(NamedTuple):
    """What a run was asked to begin with: to go back to a cut (None: where the chain ends), and to remove the output
    after it. `anew`: refuse to take over the job of another run.
    """

    epoch: Epoch | None = None
    anew: bool = False
    replaces_output: bool = False


class KeptCut(NamedTuple):
    """A complete cut that the chain keeps: its attempt, the transactions that it lists, and the files that it needs.

    `states` are the files that make up the keyed state of each task.
    """

    attempt: Attempt
    transactions: frozenset[str]
    is_savepoint: bool
    files: frozenset[FileId]
    states: StateLists


class RestartOptions(Struct, frozen=True):
    """The limits on restarts: an attempt may fail `restarts_max` times within `window_ms`. How long a restart waits.

    - window_ms: None means that no failure is ever forgotten.
    - is_exponential: the first restart in a row is immediate; then the pause doubles from `pause_ms` to `pause_ms_max`,
      less up to half of it at random. Otherwise each restart waits `pause_ms`.
    """

    restarts_max: int = 10
    window_ms: int | None = 3_600_000
    pause_ms: int = 100
    pause_ms_max: int = 30_000
    is_exponential: bool = True


class Supervisor:
    """The attempts of one run. `claimant` is a random number that no other supervisor of the job has (`claimant_of`),
    except those of the other pipelines of the run. To break a rule for a test, replace `coordinator_class` or
    `requests_class`.

    - requests: those of the run. coordinator: that of the attempt that runs; None while none does.
    - rescaling: the rescale for which an attempt was left, or is about to be.
    - restarts: by this supervisor. failed_ms: the times of the failures that count against the limit.
    - failures_in_a_row: attempts that have failed since the last complete cut.
    - begun: the numbers of tasks that the run's options give it. sizes: those of the next attempt, if the run was
      rescaled. The claim has both, for successors and for later runs that begin with the same numbers. sizes_of_cut:
      those of the attempt that took the latest cut.
    - claim: whose entries the chain holds. claim_of_pipeline: the same of this pipeline alone.
    - asked: what the run was asked to begin with, until its claim is in the chain.
    - highest: the highest attempt in the chain. others: the attempts of other pipelines, each with its pipeline.
    - given_up: the pipelines that were given up and have not begun again.
    - came_from: the cut that the chain named before the run's first claim; None if there was none, or a predecessor
      has claimed. has_run: whether the tasks of an attempt were started.
    - dropped: what the user gives up by name; the output of such a sink is not published any more.
    - replaces: the cut after which the chain says that output is removed, as long as that may be unfinished.
    """

    coordinator_class: type[Coordinator] = Coordinator
    requests_class: type[Requests] = Requests

    def __init__(
        self,
        claimant: str,
        options: RestartOptions | None = None,
        pipeline: Pipeline = THE_JOB,
        begun: Sizes = (),
        dropped: frozenset[str] = frozenset(),
        snapshots: SnapshotOptions | None = None,
    ) -> None:
        self.claimant = claimant
        self.snapshots = snapshots or SnapshotOptions()
        self.begun = begun
        self.dropped = dropped
        self.run = run_of(claimant)
        self.options = options or RestartOptions()
        self.pipeline = pipeline
        self.requests = self.requests_class()
        self.coordinator: Coordinator | None = None
        self.rescaling: Rescale | None = None
        self.restarts = 0
        self.failed_ms: deque[int] = deque()
        self.failures_in_a_row = 0
        self.sizes: Sizes = ()
        self.sizes_of_cut: Sizes = ()
        self.claim = Claim.NONE
        self.claim_of_pipeline = Claim.NONE
        self.asked: Beginning | None = None
        self.resume_at_ms = 0
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(0)
        self.highest = Attempt(0)
        self.others: dict[Attempt, str | None] = {}
        self.given_up: set[str | None] = set()
        self.entries = 0
        self.next_epoch = Epoch(1)
        self.kept: dict[Epoch, KeptCut] = {}
        self.last_cut: Epoch | None = None
        self.restored_from: Epoch | None = None
        self.continues_from: Epoch | None = None
        self.waiting: set[TaskId] = set()
        self.came_from: Epoch | None = None
        self.has_run = False
        self.replaces: Epoch | None = None

    def begin(
        self,
        chain: Sequence[Numbered],
        epoch: Epoch | None = None,
        *,
        anew: bool = False,
        replaces_output: bool = False,
    ) -> list[Order]:
        """Read the chain and claim the first attempt, from the cut that the last entry names or from the requested one.

        A run that begins `anew` does not take over another run's job. A successor continues what its predecessors
        began.
        """
        self.asked = Beginning(epoch, anew, replaces_output)
        return self._claim(chain)

    def _claim(self, chain: Sequence[Numbered]) -> list[Order]:
        """Read the chain and claim the next attempt."""
        if fenced := self.fenced_by(chain):
            return fenced
        foreign = self._foreign(chain)
        self.read(chain)
        if self.claim_of_pipeline is Claim.PREDECESSOR:
            self.asked = None
        epoch, anew, replaces_output = self.asked or Beginning()
        if self.claim_of_pipeline is Claim.NONE:
            # An older cut may be divisible only among the tasks that it was taken with.
            self.sizes = self.sizes_of_cut if epoch is None else ()
            self.came_from = self.continues_from
        if anew and foreign:
            return self._fence(foreign[0])
        if epoch is not None and epoch not in self.cuts:
            # It was there when the run was started.
            self.stage = Stage.OVER
            there = ", ".join(map(str, self.cuts)) or "none"
            return [
                FailRun(
                    f"epoch {epoch} is no longer a cut of this job, because another run has dropped it meanwhile: end "
                    f"that run, and resume from one of the cuts that are left ({there})"
                )
            ]
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(max(self.attempt, self.highest) + 1)
        self.restored_from = self.continues_from if epoch is None else epoch
        replaces = epoch if replaces_output and epoch is not None else self.replaces
        begun = self.begun if self.sizes else ()
        start = AttemptStart(self.attempt, self.restored_from, sizes=self.sizes, replaces=replaces, begun=begun)
        return self.append(start)

    def read(self, chain: Sequence[Numbered]) -> None:
        """Read the new entries."""
        for number, entry in chain:
            if number > self.entries:
                self._learn(number, entry)

    def _learn(self, number: int, entry: Entry) -> None:
        self.entries = number
        self.highest = max(self.highest, entry.attempt)
        self.claim = self._claim_after(self.claim, entry)
        if isinstance(entry, Manifest):
            self.next_epoch = Epoch(max(self.next_epoch, entry.epoch + 1))
            self.given_up.update(entry.given_up)
            self.others = {attempt: name for attempt, name in self.others.items() if name not in entry.given_up}
            if self.pipeline.name in entry.given_up:
                self._forget()
        self.given_up.discard(entry.pipeline)
        if not self._is_own(entry):
            self.others[entry.attempt] = entry.pipeline
            return
        self.claim_of_pipeline = self._claim_after(self.claim_of_pipeline, entry)
        if isinstance(entry, AttemptStart):
            self.continues_from = entry.restored
            self.replaces = entry.replaces
            if self.replaces is not None:
                self.kept = {epoch: cut for epoch, cut in self.kept.items() if epoch <= self.replaces}
                self.last_cut, self.sizes_of_cut = self.replaces, ()
            is_same = self._is_of_this_run(entry) or entry.begun == self.begun
            self.sizes = entry.sizes if is_same else ()
        else:
            self.continues_from = self.last_cut = entry.epoch
            self.sizes_of_cut = self.sizes
            self.replaces = None
            if entry.request is not None:
                self.requests.on_recorded(entry.request, entry.epoch)
            self.requests.has_stopped |= self._ends_run(entry)
            transactions = frozenset(name for names in entry.transactions.values() for name in names)
            self.kept[entry.epoch] = KeptCut(
                entry.attempt, transactions, entry.savepoint is not None, entry.named, entry.states
            )
            if entry.kept is not None:
                kept = frozenset(entry.kept)
                self.kept = {epoch: cut for epoch, cut in self.kept.items() if epoch in kept}

    def _forget(self) -> None:
        """This pipeline begins from the beginning: what it had was given up."""
        self.continues_from = self.last_cut = self.replaces = None
        self.kept, self.sizes, self.sizes_of_cut = {}, (), ()

    def _ends_run(self, cut: Manifest) -> bool:
        """Whether this run ends with a cut: it was taken for a stop. A later run goes on from it."""
        return cut.stops and self._is_of_this_run(cut)

    def _is_own(self, entry: Entry) -> bool:
        """Whether an entry is of this pipeline."""
        return entry.pipeline == self.pipeline.name

    @property
    def is_restoring(self) -> bool:
        """Whether tasks of the attempt are being restored."""
        return self.stage is Stage.RESTORING

    @property
    def is_over(self) -> bool:
        """Whether no attempt follows any more."""
        return self.stage is Stage.OVER

    @property
    def has_claimed(self) -> bool:
        """Whether an entry in the chain is this supervisor's, and no other run has the job."""
        return self.claim is Claim.OWN

    @property
    def cuts(self) -> list[Epoch]:
        """The cuts that can be restored, in the order in which they were taken."""
        return list(self.kept)

    @property
    def _first_cut(self) -> Epoch | None:
        return min(self.kept, default=None)

    def sweep(self, *, is_over: bool = False) -> Sweep:
        """What may be removed now or at any later time, but for files that the coordinator may still name."""
        spared = frozenset[FileId]() if is_over or self.coordinator is None else self.coordinator.state_files.outputs
        unpublished = self._listed_by(self.last_cut)
        return Sweep(
            self.attempt,
            is_over,
            cuts=frozenset(CutId(epoch, cut.attempt) for epoch, cut in self.kept.items()),
            last=self.last_cut,
            prepared=unpublished | self._listed_by(self.restored_from),
            noted=frozenset(name for cut in self.kept.values() for name in cut.transactions),
            files=spared.union(*(cut.files for cut in self.kept.values())),
            others=frozenset(self.others),
            settled=self._first_cut,
            committed=unpublished if is_over else frozenset(),
        )

    def _listed_by(self, epoch: Epoch | None) -> frozenset[str]:
        cut = None if epoch is None else self.kept.get(epoch)
        return frozenset() if cut is None else cut.transactions

    def on_appended(self, entry: Entry, now_ms: int = 0) -> list[Order]:
        """The entry was created. Sinks publish what a cut lists. Remove what is dead now; after a claim, restore."""
        first_before = self._first_cut
        self._learn(self.entries + 1, entry)
        if isinstance(entry, Manifest):
            self.failures_in_a_row = 0
            sweep = self.sweep()
            sweep = sweep if self._first_cut != first_before else replace(sweep, settled=None)
            coordinator = self.coordinator
            return [*(() if coordinator is None else coordinator.on_manifest_written(entry.epoch, now_ms)), sweep]
        # From here on the chain says where to resume.
        self.asked = None
        self.stage = Stage.RESTORING
        # Before the sweep, which removes what is prepared: a task may be publishing it, and that must be found.
        replacing = (
            [] if self.replaces is None else [ReplaceOutput(self.attempt, self.replaces, frozenset(self.others))]
        )
        waiting = self.published_before(self.restored_from).items()
        unpublished = sorted(name for sink, names in waiting if sink not in self.dropped for name in names)
        return [*replacing, self.sweep(), RestoreTasks(self.attempt, self.restored_from, tuple(unpublished))]

    def published_before(self, restored: Epoch | None) -> dict[str, list[str]]:
        """What is published before a run goes on from this cut: the transactions of the latest one, by their sinks."""
        found: dict[str, list[str]] = {}
        for name in self._listed_by(self.last_cut) if restored != self.last_cut else ():
            found.setdefault(prepared_by(name)[0], []).append(name)
        return found

    def on_taken(self, append: AppendEntry, chain: Sequence[Numbered]) -> list[Order]:
        """Another entry has the number of this one.

        If another supervisor created it, a run that is beginning claims the next number, and a run that had the job has
        lost it. If an earlier attempt of this supervisor created it and gave it up before the answer was known, the
        next attempt claims the number after it. If another pipeline of this run did, the entry gets the next number.
        """
        if self._lost_with(chain) is None:
            if self.stage is Stage.CLAIMING:
                return self._claim(chain)
            if chain and chain[-1].number >= append.number:
                self.read(chain)
                return self.append(append.entry)
        return self._fence(append.number)

    def _lost_with(self, chain: Sequence[Numbered]) -> int | None:
        """The entry with which another supervisor took the job over; None if this one still has it, or never had it."""
        claim = self.claim
        for number, entry in chain:
            if number > self.entries and (claim := self._claim_after(claim, entry)) is Claim.LOST:
                return number
        return None

    def _claim_after(self, claim: Claim, entry: Entry) -> Claim:
        by_own, by_run, by_another = CLAIMS[claim]
        if entry.claimant == self.claimant:
            return by_own
        return by_run if self._is_of_this_run(entry) else by_another

    def _is_of_this_run(self, entry: Entry) -> bool:
        return entry.claimant == self.claimant or (self.run != "" and run_of(entry.claimant) == self.run)

    def _foreign(self, chain: Sequence[Numbered]) -> list[int]:
        """The numbers of entries that other runs have created since the last read."""
        return [number for number, entry in chain if number > self.entries and not self._is_of_this_run(entry)]

    def on_placed(self, tasks: Iterable[TaskId]) -> None:
        """Note the tasks of the attempt; all of them must be restored before one runs."""
        self.waiting = set(tasks)

    def append(self, entry: Entry) -> list[Order]:
        """Append an entry, under the next number. A manifest names the pipelines that are given up."""
        if isinstance(entry, Manifest):
            given_up = self.pipeline.gives_up.union(name for name in self.given_up if name is not None)
            entry = replace(entry, given_up=tuple(sorted(given_up)))
        entry = replace(entry, claimant=self.claimant, pipeline=self.pipeline.name)
        return [AppendEntry(self.entries + 1, entry)]

    def on_unknown(self, append: AppendEntry) -> list[Order]:
        """It is unknown whether this entry exists: repeat its creation until the answer is known."""
        return [append]

    def on_restored(self, task: TaskId, attempt: Attempt) -> list[Order]:
        """A task has restored its state."""
        if attempt != self.attempt or self.stage is not Stage.RESTORING:
            return []
        self.waiting.discard(task)
        if self.waiting:
            return []
        self.stage = Stage.RUNNING
        self.has_run = True
        return [StartTasks(self.attempt)]

    def on_started(self, deployment: Deployment, now_ms: int) -> None:
        """All tasks were started: the coordinator leads them from here on."""
        cut = None if self.restored_from is None else self.kept.get(self.restored_from)
        self.coordinator = self.coordinator_class(
            self,
            deployment,
            self.attempt,
            self.snapshots,
            self.next_epoch,
            {epoch: kept.is_savepoint for epoch, kept in self.kept.items()},
            now_ms,
            self.restored_from,
            {} if cut is None else cut.states,
        )

    def leave(self) -> None:
        """Let nothing more of this attempt take effect: its failure is about to be reported, or its rescale."""
        self.coordinator = None

    def on_failure(self, reason: str, chain: Sequence[Numbered], now_ms: int) -> list[Order]:
        """A process died or the attempt failed: claim another attempt, unless the job is lost or the limit is reached.

        If a pause is needed first, the driver calls `resume` once `is_due`.

        The cause of the failure may be a takeover by a later run; claiming after that would take the job back.
        """
        if self.stage is Stage.OVER:
            return []
        if fenced := self.fenced_by(chain):
            return fenced
        self.rescaling = None
        self.restarts += 1
        self.failures_in_a_row += 1
        self.failed_ms.append(now_ms)
        window_ms = self.options.window_ms
        while window_ms is not None and self.failed_ms[0] <= now_ms - window_ms:
            self.failed_ms.popleft()
        if len(self.failed_ms) > self.options.restarts_max:
            self.stage = Stage.OVER
            within = "" if window_ms is None else f" within {window_ms / 1000:g} s"
            restarted = f"restarted {self.options.restarts_max} times{within}"
            failure = f"{restarted}, as often as max_restarts allows, and then: {reason}"
            self.requests.on_failed(failure)
            return [FailRun(failure)]
        pause_ms = self._pause_ms()
        if pause_ms == 0:
            return self._claim(chain)
        self.stage = Stage.PAUSING
        self.resume_at_ms = now_ms + pause_ms
        return [PauseRestart(pause_ms)]

    def rescale(self, request: Request, epoch: Epoch, parallelism: Mapping[str, int]) -> list[Order]:
        """The cut of a rescale is complete: leave the attempt, which has this parallelism, if that cut allows it."""
        self.rescaling = Rescale(request, epoch, request.sizes_in(parallelism))
        return [self.rescaling]

    def on_rescale(self, chain: Sequence[Numbered]) -> list[Order]:
        """The attempt was left for a rescale: claim the next one.

        Its tasks restore that cut: it is the last entry of the chain. Tasks of the attempt that was left may go on for
        a while, as after a failure; the number of the new one fences them.
        """
        if fenced := self.fenced_by(chain):
            return fenced
        if self.rescaling is None:
            raise ProtocolError("an attempt was left for a rescale, and none was ordered")
        self.read(chain)
        self.sizes, self.rescaling = self.rescaling.sizes, None
        return self._claim(chain)

    def gives_up_rescale(self, error: str) -> bool:
        """The attempt can never be restored. If that may be due to a rescale, refuse it. Returns whether it was."""
        former = self.sizes_of_cut or self.begun
        is_rescaled = bool(self.sizes) and self.sizes != former
        if self.stage is not Stage.RESTORING or not is_rescaled or self.restored_from != self.last_cut:
            return False
        parallelism = dict(self.sizes)
        for request in list(self.requests.unanswered.values()):
            if request.kind is RequestKind.RESCALE and request.is_met_by(parallelism):
                self.requests.refuse(request, error, is_for_good=True)
        self.sizes = former
        return True

    def is_due(self, now_ms: int) -> bool:
        """Whether the pause before the next attempt is over."""
        return self.stage is Stage.PAUSING and now_ms >= self.resume_at_ms

    def resume(self, chain: Sequence[Numbered]) -> list[Order]:
        """Claim the next attempt after a pause, unless another run has taken over meanwhile."""
        return self._claim(chain)

    def fenced_by(self, chain: Sequence[Numbered]) -> list[Order]:
        """What ends the run if another one has taken over the job; nothing if it has not."""
        lost_with = self._lost_with(chain)
        return [] if lost_with is None else self._fence(lost_with)

    def _fence(self, number: int) -> list[Order]:
        self.stage = Stage.OVER
        self.requests.on_failed("another run has taken over the job")
        return [Fenced(number)]

    def _pause_ms(self) -> int:
        """The pause before the next restart."""
        if not self.options.is_exponential:
            return self.options.pause_ms
        if self.failures_in_a_row == 1:
            return 0
        doublings = min(self.failures_in_a_row - 2, 32)
        longest_ms = min(self.options.pause_ms << doublings, self.options.pause_ms_max)
        return longest_ms - longest_ms * crc32(f"{self.claimant} {self.restarts}".encode()) // 2**33

    def hand_back(self) -> list[Order]:
        """The run has failed. If no task of it ever ran, have the chain name the cut that it named before."""
        has_moved = self.has_claimed and self.came_from is not None and self.came_from != self.continues_from
        if not has_moved or self.has_run or self.replaces is not None:
            return []
        return self.append(AttemptStart(Attempt(self.highest + 1), self.came_from))

    def check(self) -> None:
        """Raise if these attributes, or those of the coordinator, contradict each other."""
        is_led = self.stage in (Stage.RESTORING, Stage.RUNNING)
        if is_led and self.claim is not Claim.OWN:
            raise BrokenInvariantError(f"attempt {self.attempt} is led under the claim {self.claim.name}")
        needed = (self.continues_from, self.last_cut)
        coordinator = self.coordinator
        if coordinator is not None and self.stage is Stage.RUNNING:
            coordinator.check()
            needed += coordinator.bases()
            if coordinator.attempt != self.attempt or coordinator.latest != self.continues_from:
                led = f"attempt {coordinator.attempt} with {coordinator.latest} as its latest cut"
                raise BrokenInvariantError(
                    f"attempt {self.attempt} goes on from {self.continues_from}, and {led} is led"
                )
        for epoch in needed:
            if epoch is not None and epoch not in self.kept:
                raise BrokenInvariantError(f"cut {epoch} may be needed, and the chain keeps {self.cuts}")

    def on_finished(self, *, is_restorable: bool = True) -> list[Order]:
        """The run is over and no task runs any more. If nothing can be restored, nothing is kept."""
        self.stage = Stage.OVER
        sweep = self.sweep(is_over=True)
        nothing = frozenset[str]()
        return [sweep if is_restorable else replace(sweep, cuts=frozenset(), prepared=nothing, noted=nothing)]


def read_pipelines(chain: Sequence[Numbered]) -> dict[str | None, Supervisor]:
    """A supervisor for each pipeline in the chain, which has read it."""
    readers = {name: Supervisor("", pipeline=Pipeline(name)) for name in dict.fromkeys(e.pipeline for _, e in chain)}
    for reader in readers.values():
        reader.read(chain)
    return readers
