"""The life of a run: claim an attempt, restore every task, run; after a failure, again.

The chain of a job is a numbered list in the store: starts of attempts and manifests. Each entry is created exclusively.
Entries that are no longer `needed` may be missing from it. A coordinator that has lost the job, for instance because it
slept through a takeover, finds its number taken and stops, and no action of an earlier attempt is ever applied.

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

What the chain says is in `chain_view.py`, the limits and pauses of restarts in `restarts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.chain_view import ChainView, Claim
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
from backedge.recovery.protocol.restarts import RestartOptions, Restarts


class Stage(Enum):
    CLAIMING = "claiming"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSING = "pausing"
    OVER = "over"


class Beginning(NamedTuple):
    """What a run was asked to begin with: to go back to a cut (None: where the chain ends), and to remove the output
    after it. `anew`: refuse to take over the job of another run.
    """

    epoch: Epoch | None = None
    anew: bool = False
    replaces_output: bool = False


AS_IT_ENDS = Beginning()
"""Where the chain ends."""


class Supervisor:
    """The attempts of one run, or of one of its pipelines. The chain knows it by its claimant, a random number that no
    other supervisor of the job has (`claimant_of`), except those of the other pipelines of the run. To break a rule for
    a test, replace `chain_class`, `coordinator_class` or `requests_class`.

    - chain: what the chain says of the job and of this pipeline. snapshots: the options of its cuts.
    - requests: those of the run. coordinator: that of the attempt that runs; None while none does.
    - rescaling: the rescale for which an attempt was left, or is about to be.
    - restarts: the failures of this supervisor's attempts. resume_at_ms: the end of the pause after the last one.
    - asked: what the run was asked to begin with, until its claim is in the chain.
    - attempt: the current one, or the last. restored_from: the cut that it restores.
    - waiting: its tasks that are not restored yet.
    - came_from: the cut that the chain named before the run's first claim; None if there was none, or a predecessor
      has claimed. has_run: whether the tasks of an attempt were started.
    - dropped: what the user gives up by name; the output of such a sink is not published any more.
    """

    chain_class: type[ChainView] = ChainView
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
        self.chain = self.chain_class(claimant, pipeline, begun)
        self.snapshots = snapshots or SnapshotOptions()
        self.dropped = dropped
        self.requests = self.requests_class()
        self.coordinator: Coordinator | None = None
        self.rescaling: Rescale | None = None
        self.restarts = Restarts(options or RestartOptions(), claimant)
        self.resume_at_ms = 0
        self.asked: Beginning | None = None
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(0)
        self.restored_from: Epoch | None = None
        self.waiting: set[TaskId] = set()
        self.came_from: Epoch | None = None
        self.has_run = False

    def begin(self, chain: Sequence[Numbered], asked: Beginning = AS_IT_ENDS) -> list[Order]:
        """Read the chain and claim the first attempt, from the cut that the last entry names or from the requested one.

        A run that begins `anew` does not take over another run's job. A successor continues what its predecessors
        began.
        """
        self.asked = asked
        return self._claim(chain)

    def _claim(self, chain: Sequence[Numbered]) -> list[Order]:
        """Read the chain and claim the next attempt."""
        if fenced := self.fenced_by(chain):
            return fenced
        known = self.chain
        foreign = [number for number, entry in known.unread(chain) if not known.is_of_this_run(entry)]
        self.read(chain)
        if known.claim_of_pipeline is Claim.PREDECESSOR:
            self.asked = None
        epoch, anew, replaces_output = self.asked or AS_IT_ENDS
        if known.claim_of_pipeline is Claim.NONE:
            # An older cut may be divisible only among the tasks that it was taken with.
            known.sizes = known.sizes_of_cut if epoch is None else ()
            self.came_from = known.continues_from
        if anew and foreign:
            return self._fence(foreign[0])
        if epoch is not None and epoch not in known.kept:
            # It was there when the run was started.
            self.stage = Stage.OVER
            there = ", ".join(map(str, known.cuts)) or "none"
            return [
                FailRun(
                    f"epoch {epoch} is no longer a cut of this job, because another run has dropped it meanwhile: end "
                    f"that run, and resume from one of the cuts that are left ({there})"
                )
            ]
        self.stage = Stage.CLAIMING
        self.attempt = Attempt(max(self.attempt, known.highest) + 1)
        self.restored_from = known.continues_from if epoch is None else epoch
        replaces = epoch if replaces_output and epoch is not None else known.replaces
        begun = known.begun if known.sizes else ()
        start = AttemptStart(self.attempt, self.restored_from, sizes=known.sizes, replaces=replaces, begun=begun)
        return self.append(start)

    def read(self, chain: Sequence[Numbered]) -> None:
        for number, entry in self.chain.unread(chain):
            self._learn(number, entry)

    def _learn(self, number: int, entry: Entry) -> None:
        self.chain.learn(number, entry)
        if isinstance(entry, Manifest) and self.chain.is_own(entry):
            if entry.request is not None:
                self.requests.on_recorded(entry.request, entry.epoch)
            self.requests.has_stopped |= self._ends_run(entry)

    def _ends_run(self, cut: Manifest) -> bool:
        """Whether this run ends with a cut: it was taken for a stop. A later run goes on from it."""
        return cut.stops and self.chain.is_of_this_run(cut)

    @property
    def is_restoring(self) -> bool:
        return self.stage is Stage.RESTORING

    @property
    def is_over(self) -> bool:
        """Whether no attempt follows any more."""
        return self.stage is Stage.OVER

    @property
    def has_claimed(self) -> bool:
        """Whether an entry in the chain is this supervisor's, and no other run has the job."""
        return self.chain.claim is Claim.OWN

    def sweep(self, *, is_over: bool = False) -> Sweep:
        """What may be removed now or at any later time, but for files that the coordinator may still name."""
        chain = self.chain
        spared = frozenset[FileId]() if is_over or self.coordinator is None else self.coordinator.state_files.outputs
        unpublished = chain.listed_by(chain.last_cut)
        return Sweep(
            self.attempt,
            is_over,
            cuts=frozenset(CutId(epoch, cut.attempt) for epoch, cut in chain.kept.items()),
            last=chain.last_cut,
            prepared=unpublished | chain.listed_by(self.restored_from),
            noted=frozenset(name for cut in chain.kept.values() for name in cut.transactions),
            files=spared.union(*(cut.files for cut in chain.kept.values())),
            others=frozenset(chain.others),
            settled=chain.first_cut,
            committed=unpublished if is_over else frozenset(),
        )

    @property
    def begun_epoch(self) -> Epoch:
        """The highest epoch that the chain says has begun."""
        return Epoch(self.chain.next_epoch - 1)

    def on_appended(self, entry: Entry, now_ms: int = 0) -> list[Order]:
        """The entry was created. Sinks publish what a cut lists. Remove what is dead now; after a claim, restore."""
        chain, first_before = self.chain, self.chain.first_cut
        self._learn(chain.entries + 1, entry)
        if isinstance(entry, Manifest):
            self.restarts.in_a_row = 0
            sweep = self.sweep()
            sweep = sweep if chain.first_cut != first_before else replace(sweep, settled=None)
            coordinator = self.coordinator
            return [*(() if coordinator is None else coordinator.on_manifest_written(entry.epoch, now_ms)), sweep]
        # From here on the chain says where to resume.
        self.asked = None
        self.stage = Stage.RESTORING
        # Before the sweep, which removes what is prepared: a task may be publishing it, and that must be found.
        replacing: list[Order] = []
        if chain.replaces is not None:
            replacing = [ReplaceOutput(self.attempt, chain.replaces, frozenset(chain.others))]
        waiting = chain.published_before(self.restored_from).items()
        unpublished = sorted(name for sink, names in waiting if sink not in self.dropped for name in names)
        # What settles output was settled when the chain said so. What a death has kept from it is, with the next.
        sweep = replace(self.sweep(), settled=None)
        return [*replacing, sweep, RestoreTasks(self.attempt, self.restored_from, tuple(unpublished))]

    def on_taken(self, append: AppendEntry, chain: Sequence[Numbered]) -> list[Order]:
        """Another entry has the number of this one.

        If another supervisor created it, a run that is beginning claims the next number, and a run that had the job has
        lost it. If an earlier attempt of this supervisor created it and gave it up before the answer was known, the
        next attempt claims the number after it. If another pipeline of this run did, the entry gets the next number.
        """
        if self.chain.lost_with(chain) is None:
            if self.stage is Stage.CLAIMING:
                return self._claim(chain)
            if chain and chain[-1].number >= append.number:
                self.read(chain)
                return self.append(append.entry)
        return self._fence(append.number)

    def on_placed(self, tasks: Iterable[TaskId]) -> None:
        """Note the tasks of the attempt; all of them must be restored before one runs."""
        self.waiting = set(tasks)

    def append(self, entry: Entry) -> list[Order]:
        """Append an entry, under the next number. A manifest names the pipelines that are given up."""
        chain = self.chain
        if isinstance(entry, Manifest):
            given_up = chain.pipeline.gives_up.union(name for name in chain.given_up if name is not None)
            entry = replace(entry, given_up=tuple(sorted(given_up)))
        entry = replace(entry, claimant=chain.claimant, pipeline=chain.pipeline.name)
        return [AppendEntry(chain.entries + 1, entry)]

    def on_unknown(self, append: AppendEntry) -> list[Order]:
        """It is unknown whether this entry exists: repeat its creation until the answer is known."""
        return [append]

    def on_restored(self, task: TaskId, attempt: Attempt) -> list[Order]:
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
        self.coordinator = self.coordinator_class(self, deployment, now_ms)

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
        if (limit := self.restarts.on_failure(now_ms)) is not None:
            self.stage = Stage.OVER
            failure = f"{limit}, and then: {reason}"
            self.requests.on_failed(failure)
            return [FailRun(failure)]
        pause_ms = self.restarts.pause_ms()
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
        self.chain.sizes, self.rescaling = self.rescaling.sizes, None
        return self._claim(chain)

    def gives_up_rescale(self, error: str) -> bool:
        """The attempt can never be restored. If that may be due to a rescale, refuse it. Returns whether it was."""
        chain = self.chain
        former = chain.sizes_of_cut or chain.begun
        is_rescaled = bool(chain.sizes) and chain.sizes != former
        if self.stage is not Stage.RESTORING or not is_rescaled or self.restored_from != chain.last_cut:
            return False
        parallelism = dict(chain.sizes)
        for request in list(self.requests.unanswered.values()):
            if request.kind is RequestKind.RESCALE and request.is_met_by(parallelism):
                self.requests.refuse(request, error, is_for_good=True)
        chain.sizes = former
        return True

    def is_due(self, now_ms: int) -> bool:
        """Whether the pause before the next attempt is over."""
        return self.stage is Stage.PAUSING and now_ms >= self.resume_at_ms

    def resume(self, chain: Sequence[Numbered]) -> list[Order]:
        """Claim the next attempt after a pause, unless another run has taken over meanwhile."""
        return self._claim(chain)

    def fenced_by(self, chain: Sequence[Numbered]) -> list[Order]:
        """What ends the run if another one has taken over the job; nothing if it has not."""
        lost_with = self.chain.lost_with(chain)
        return [] if lost_with is None else self._fence(lost_with)

    def _fence(self, number: int) -> list[Order]:
        self.stage = Stage.OVER
        self.requests.on_failed("another run has taken over the job")
        return [Fenced(number)]

    def hand_back(self) -> list[Order]:
        """The run has failed. If no task of it ever ran, have the chain name the cut that it named before."""
        chain = self.chain
        has_moved = self.has_claimed and self.came_from is not None and self.came_from != chain.continues_from
        if not has_moved or self.has_run or chain.replaces is not None:
            return []
        return self.append(AttemptStart(Attempt(chain.highest + 1), self.came_from))

    def check(self) -> None:
        """Raise if these attributes, or those of the coordinator, contradict each other."""
        chain, coordinator = self.chain, self.coordinator
        is_led = self.stage in (Stage.RESTORING, Stage.RUNNING)
        if is_led and chain.claim is not Claim.OWN:
            raise BrokenInvariantError(f"attempt {self.attempt} is led under the claim {chain.claim.name}")
        needed = (chain.continues_from, chain.last_cut)
        if coordinator is not None and self.stage is Stage.RUNNING:
            coordinator.check()
            needed += coordinator.bases()
            if coordinator.attempt != self.attempt:
                raise BrokenInvariantError(f"attempt {self.attempt} runs, and attempt {coordinator.attempt} is led")
        for epoch in needed:
            if epoch is not None and epoch not in chain.kept:
                raise BrokenInvariantError(f"cut {epoch} may be needed, and the chain keeps {chain.cuts}")

    def on_finished(self, *, is_restorable: bool = True) -> list[Order]:
        """The run is over and no task runs any more. If nothing can be restored, nothing is kept."""
        self.stage = Stage.OVER
        sweep = self.sweep(is_over=True)
        nothing = frozenset[str]()
        return [sweep if is_restorable else replace(sweep, cuts=frozenset(), prepared=nothing, noted=nothing)]
