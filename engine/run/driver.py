"""Drives a run: carries out the orders of its supervisor and the coordinator of that, and reports what happened.

It is the same on a cluster and in the simulator; the world around it is behind ports (`ports.py`). It makes no
decision about the protocol: what to order is decided by `recovery/protocol/coordinator.py` and
`recovery/protocol/supervisor.py`. It decides what to do when the store fails:

- Orders are carried out from a queue. The orders that follow from one come before the orders behind it. When an attempt
  fails or the run ends, what is left in the queue is dropped.
- An entry of the chain is created by a step of its own (`advance`), which the world takes when it is due. There is at
  most one step at a time.
- Where the outcome of creating an entry is unknown, the same entry is created again after a pause. Once unknown, the
  outcome stays unknown until an answer comes: an error of a repetition says nothing about the first try. Until then
  nothing that the entry names is given up.
- A manifest that was certainly not created fails its epoch. A claim that was certainly not created fails like an
  attempt: it counts as a restart, and the next claim reads the chain again.
- A chain that cannot be read is read again after a pause.
- After `tries_max` failed repetitions in a row, an entry whose outcome is unknown fails the attempt, because the next
  claim reads from the chain whether the entry exists. A chain that cannot be read `reads_max` times in a row fails the
  run.
- Before a failed attempt is reported, the chain says whether another run has taken over the job: that run has removed
  the files whose absence may be the failure, so the takeover is the reason to report.
- A cut that cannot be read fails the attempt. Removals may be carried out beside everything else, and late. One that
  fails is reported and left to a later sweep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct

from backedge.engine.io.later_output import LaterOutput
from backedge.engine.run.ports import Placed, RunEnding, RunPorts
from backedge.graphs.deployment import Deployment
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.task_errors import TaskError
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Effect, Remaining
from backedge.recovery.protocol.orders import (
    Abort,
    AppendEntry,
    Compact,
    Complete,
    DropCut,
    FailAttempt,
    FailRun,
    Fenced,
    Finished,
    GivenUp,
    Manifest,
    Numbered,
    Order,
    PauseRestart,
    ReplaceOutput,
    Rescale,
    RestoreTasks,
    StartTasks,
    Sweep,
    TellToEnd,
    Trigger,
)
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.protocol.requests import Reply, Request, Requests
from backedge.recovery.protocol.supervisor import AS_IT_ENDS, Beginning, Stage, Supervisor
from backedge.recovery.restore.plan import with_unpublished
from backedge.recovery.stores.store_errors import OutcomeUnknownError, StoreError


class ChainReading(Enum):
    """Why the chain has to be read: to begin the run, or to claim after a failure, a pause, or the cut of a rescale."""

    BEGIN = "begin"
    CLAIM = "claim"
    RESUME = "resume"
    RESCALE = "rescale"


class StoreRetries(Struct, frozen=True):
    """How long to wait before a step in the store is repeated, and how often it is repeated in a row.

    A chain is read again for ten minutes, because the store may be restarting, with a message every minute.
    """

    pause_ms: int = 500
    tries_max: int = 20
    reads_max: int = 1200
    reads_told: int = 120


class RunDriver:
    """One run, from its start until it has ended.

    - deployment: the tasks of the current or the latest attempt.
    - files: what tasks have reported of their snapshots, by task and epoch (None: the last state). Manifests list it.
    - queue: orders that are not carried out yet. is_obeying: whether they are being carried out.
    - step: what has to be done in the store next, at `due_ms`. tries: how often it has failed in a row.
    - is_unknown: whether the entry of the step may exist already.
    - reason: the failure after which the chain is read. asked: what the run is to begin with.
    - ending: how the run has ended; None as long as it goes on.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        ports: RunPorts[Any],
        deployment: Deployment,
        retries: StoreRetries | None = None,
        *,
        is_restorable: bool = True,
    ) -> None:
        self.supervisor = supervisor
        self.ports = ports
        self.deployment = deployment
        self.retries = retries or StoreRetries()
        self.is_restorable = is_restorable
        self.files: dict[tuple[TaskId, Epoch | None], Any] = {}
        self.queue: deque[Order] = deque()
        self.is_obeying = False
        self.step: AppendEntry | ChainReading | None = None
        self.due_ms = 0
        self.tries = 0
        self.is_unknown = False
        self.reason = ""
        self.asked = AS_IT_ENDS
        self.ending: RunEnding | None = None

    @property
    def is_over(self) -> bool:
        return self.ending is not None

    @property
    def attempt(self) -> Attempt:
        """The current attempt, or the last one."""
        return self.supervisor.attempt

    @property
    def restored_from(self) -> Epoch | None:
        return self.supervisor.restored_from

    @property
    def coordinator(self) -> Coordinator | None:
        """That of the running attempt; None while no attempt runs."""
        return self.supervisor.coordinator

    @property
    def runs(self) -> bool:
        """Whether an attempt runs, and the run has not ended."""
        return self.coordinator is not None and self.ending is None

    @property
    def requests(self) -> Requests:
        return self.supervisor.requests

    def begin(self, asked: Beginning = AS_IT_ENDS) -> None:
        """Claim the first attempt."""
        self.asked = asked
        self.obey(self._read_chain(ChainReading.BEGIN))

    # -- what happened -------------------------------------------------------------------------------------------

    def on_report(self, task: TaskId, attempt: Attempt, effect: Effect, files: Any = None) -> None:
        """A task reports an effect of its core; `files` are those of the snapshot that it acknowledges."""
        coordinator = self.coordinator
        if coordinator is None or attempt != coordinator.attempt:
            return
        if files is not None:
            match effect:
                case Acknowledge(epoch) if coordinator.is_open(epoch):
                    self.files[task, epoch] = files
                case AcknowledgeEnd():
                    self.files[task, None] = files
                case _:
                    pass
        self.obey(coordinator.on_report(task, attempt, effect, self.ports.clock.now_ms))

    def on_restored(self, task: TaskId, attempt: Attempt) -> None:
        """A task has its state back."""
        if self._is_under_way():
            self.obey(self.supervisor.on_restored(task, attempt))

    def on_failure(self, attempt: Attempt, reason: str) -> None:
        """A process of the attempt died, or the attempt cannot go on. Ignored where that attempt is over already."""
        if attempt == self.supervisor.attempt and self._is_under_way():
            self.obey([FailAttempt(reason)])

    def _is_under_way(self) -> bool:
        """Whether the attempt is being restored or runs. After a failure the supervisor hears of it with the chain."""
        is_left = self.step in (ChainReading.CLAIM, ChainReading.RESCALE)
        return self.supervisor.stage in (Stage.RESTORING, Stage.RUNNING) and not is_left

    def on_unrestorable(self, attempt: Attempt, error: str) -> bool:
        """A task can never be restored. Returns whether the run goes on, without the rescale that may be the reason."""
        if attempt != self.supervisor.attempt or not self.supervisor.gives_up_rescale(error):
            return False
        self.obey([FailAttempt(f"the rescale was given up: {error}")])
        return True

    def on_remaining(self, task: TaskId, attempt: Attempt, epoch: Epoch, remaining: Remaining) -> None:
        """A task reports what it still has to do for an epoch."""
        if self.coordinator is not None:
            self.coordinator.on_remaining(task, attempt, epoch, remaining, self.ports.clock.now_ms)

    def on_compacted(self, task: TaskId, attempt: Attempt, epoch: Epoch, keys: int | None, size: int = 0) -> None:
        """A task's files were compacted into one of `keys` entries and `size` bytes; None if that failed."""
        if self.coordinator is not None:
            self.coordinator.on_compacted(task, attempt, epoch, keys, size)

    def on_records(self) -> None:
        """Records were processed somewhere, or a task is busy with one."""
        if self.coordinator is not None:
            self.coordinator.on_records()

    def on_hops(self) -> None:
        """Records have just gone round a loop."""
        if self.coordinator is not None:
            self.coordinator.on_hops(self.ports.clock.now_ms)

    def on_tick(self) -> None:
        now_ms = self.ports.clock.now_ms
        if self.coordinator is not None:
            self.obey(self.coordinator.on_tick(now_ms))
        elif self.step is None and self.supervisor.is_due(now_ms):
            self.obey(self._read_chain(ChainReading.RESUME))

    def ask(self, request: Request) -> Reply | None:
        """A client makes or repeats a request. Returns the answer if there is one."""
        answer = self.requests.ask(request)
        if answer is None and self.coordinator is not None:
            self.obey(self.coordinator.serve_requests(self.ports.clock.now_ms))
        return answer

    def placed(self, epoch: Epoch) -> Placed:
        """Where the tasks would run, and what they would restore, if the attempt restored this cut."""
        return self.ports.actors.place(self.ports.store.manifest(epoch), self.supervisor.chain.sizes)

    # -- the end -------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Let nothing more of this attempt take effect: its failure is about to be reported."""
        self.supervisor.leave()
        self._set_step(None)
        self.queue.clear()

    def end(self, ending: RunEnding, reason: str = "") -> None:
        """End the run; the first end counts. All requests without an answer are told the reason."""
        if self.ending is None:
            self.ending = ending
            self.queue.clear()
            if ending not in (RunEnding.FINISHED, RunEnding.STOPPED):
                self.requests.on_failed(reason)
            self.ports.observer.on_end(ending, reason)

    def ends_as_lost(self) -> bool:
        """Whether another run has taken over the job. Then the run ends with that: the other one may have removed what
        this one misses.
        """
        try:
            fenced = self.supervisor.fenced_by(self._chain())
        except (OSError, StoreError):
            return False
        for order in fenced:
            self._carry_out(order)
        return bool(fenced)

    def clean_up(self) -> None:
        """The run is over and none of its tasks runs any more: remove what is no longer needed."""
        if self.ending in (RunEnding.FINISHED, RunEnding.STOPPED) or not self.is_restorable:
            for order in self.supervisor.on_finished(is_restorable=self.is_restorable):
                self._carry_out(order)
        elif self.ending is not RunEnding.FENCED:
            for order in self.supervisor.hand_back():
                self._hand_back(order)

    def _hand_back(self, order: Order) -> None:
        if isinstance(order, AppendEntry):
            try:
                self.ports.store.create(order.number, order.entry, {}, self.deployment)
            except (OSError, StoreError) as error:
                self.ports.observer.say(f"resume the next run by the number of its cut, and not from latest: {error}")

    # -- orders --------------------------------------------------------------------------------------------------

    def obey(self, orders: Sequence[Order]) -> None:
        """Carry out orders and those that follow from them."""
        self.queue.extend(orders)
        if self.is_obeying:
            return
        self.is_obeying = True
        try:
            while self.queue and self.ending is None:
                following = self._carry_out(self.queue.popleft())
                self.queue.extendleft(reversed(following))
        finally:
            self.is_obeying = False
        self.queue.clear()

    def _carry_out(self, order: Order) -> Sequence[Order]:
        """Carry out one order. Returns the orders that follow from it."""
        match order:
            case Trigger() | TellToEnd() | Complete() | Abort() | Compact():
                self.ports.actors.tell(order)
            case GivenUp(epoch, reason):
                self.files = {name: kept for name, kept in self.files.items() if name[1] != epoch}
                self.ports.observer.on_given_up(epoch, reason)
            case AppendEntry():
                self._append(order)
            case ReplaceOutput():
                return self._replace(order)
            case RestoreTasks(attempt, epoch, unpublished):
                return self._restore(attempt, epoch, unpublished)
            case StartTasks():
                self.ports.actors.start(order)
                self.supervisor.on_started(self.deployment, self.ports.clock.now_ms)
                self.ports.observer.on_running()
            case DropCut(epoch):
                self._remove(f"cut {epoch}", partial(self.ports.store.drop, epoch))
            case Sweep():
                self._remove("what attempts have left behind", partial(self.ports.store.sweep, order))
                self._remove("output that will not be published", partial(self.ports.output.roll_back, order))
                self._remove("input that no restore will read", partial(self.ports.settle_input, order))
            case FailAttempt(reason):
                return self._fail_attempt(reason)
            case Rescale():
                return self._rescale(order)
            case PauseRestart(pause_ms):
                self.ports.observer.on_pause(pause_ms)
            case FailRun(reason):
                self.end(RunEnding.FAILED, reason)
            case Fenced(number):
                self.end(RunEnding.FENCED, f"another run has taken over the job with entry {number} of its chain")
            case Finished(_, is_stopped):
                self.end(RunEnding.STOPPED if is_stopped else RunEnding.FINISHED)
        return ()

    def _restore(self, attempt: Attempt, epoch: Epoch | None, unpublished: Sequence[str]) -> Sequence[Order]:
        ports, supervisor = self.ports, self.supervisor
        later = [cut for cut in supervisor.chain.kept if epoch is not None and cut > epoch]
        if later:
            ports.observer.say(
                f"epoch {epoch} is older than the latest cut, {later[-1]}: what was published since is published again"
            )
        try:
            cut = None if epoch is None else ports.store.manifest(epoch)
        except OSError as error:
            return [FailAttempt(f"the manifest of epoch {epoch} could not be read: {error}")]
        placed = ports.actors.place(cut, supervisor.chain.sizes)
        self.deployment = placed.deployment
        restores = with_unpublished(placed.restores, unpublished, placed.deployment)
        self.files = {}
        supervisor.on_placed(placed.deployment.tasks)
        ports.observer.on_attempt(attempt, cut)
        ports.actors.restore(attempt, Placed(placed.deployment, restores, supervisor.begun_epoch), cut)
        return ()

    def _replace(self, order: ReplaceOutput) -> Sequence[Order]:
        after = order.after
        try:
            self.ports.output.replace(LaterOutput.than(self.ports.store.manifest(after), order.attempt, order.others))
        except OSError as error:
            return [FailAttempt(f"the output after epoch {after} could not be removed: {error}")]
        except TaskError as error:  # the next attempt would end the same
            return [FailRun(f"the output after epoch {after} could not be removed: {error}")]
        self.ports.observer.say(f"what was published after epoch {after} was removed")
        return ()

    def _remove(self, what: str, removal: Callable[[], None]) -> None:
        """Remove something, beside the run. What cannot be removed now does no harm; a later sweep tries again."""

        def remove() -> None:
            try:
                removal()
            except (OSError, StoreError) as error:
                self.ports.observer.say_once(f"{what} could not be removed ({error}); it is tried again later")

        self.ports.beside(remove)

    def _fail_attempt(self, reason: str) -> Sequence[Order]:
        """End the attempt, and claim the next one."""
        self.abandon()
        if not self.is_restorable:
            advice = "without snapshots= a run cannot be restored: give it a folder for them"
            return [FailRun(f"{reason}; {advice}")]
        self.reason, unread = reason, ""
        chain: Sequence[Numbered] = ()
        try:
            chain = self._chain()
        except OutcomeUnknownError as error:
            unread = str(error)
        fenced = self.supervisor.fenced_by(chain)
        if not fenced:
            self.ports.observer.on_restart(reason)
        self.ports.actors.stop()
        if unread:
            self._set_step(ChainReading.CLAIM)
            return self._on_unread(unread)
        # An entry that was created meanwhile has the number that the claim wants, so nothing is missed.
        return fenced or self.supervisor.on_failure(reason, chain, self.ports.clock.now_ms)

    def _rescale(self, order: Rescale) -> Sequence[Order]:
        """Leave the attempt for one with other numbers of tasks, if the cut can be restored with them."""
        ports, epoch = self.ports, order.epoch
        try:
            ports.actors.place(ports.store.manifest(epoch), order.sizes)
        except (RescaleError, GraphError) as refusal:
            # The flow cannot have the sizes of two rescales together that it could have had one by one.
            is_for_good = isinstance(refusal, RescaleError) and refusal.is_for_good
            self.requests.refuse(order.request, str(refusal), is_for_good=is_for_good)
            ports.observer.say(f"the rescale was refused, and the run goes on as before: {refusal}")
            return ()
        except OSError as error:
            self.requests.on_failed_try(order.request, f"the manifest of epoch {epoch} could not be read: {error}")
            return ()
        self.abandon()
        ports.observer.on_rescale(dict(order.sizes))
        ports.actors.stop()
        return self._read_chain(ChainReading.RESCALE)

    # -- steps in the store --------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a step in the store is to be taken now."""
        return self.step is not None and self.ending is None and self.ports.clock.now_ms >= self.due_ms

    def advance(self) -> None:
        """Take the step in the store that is due."""
        if isinstance(self.step, AppendEntry):
            self._create(self.step)
        elif self.step is not None:
            self.obey(self._read_chain(self.step))

    def _set_step(self, step: AppendEntry | ChainReading | None) -> None:
        self.step, self.due_ms = step, self.ports.clock.now_ms
        self.tries, self.is_unknown = 0, False

    def _put_off(self) -> None:
        self.due_ms = self.ports.clock.now_ms + self.retries.pause_ms

    def _append(self, append: AppendEntry) -> None:
        """Create an entry with the next `advance`, or after a pause if the outcome of an earlier try is unknown."""
        if self.is_unknown:
            self.step = append
            self._put_off()
        else:
            self._set_step(append)

    def _chain(self) -> Sequence[Numbered]:
        try:
            return self.ports.store.chain()
        except OSError as error:
            raise OutcomeUnknownError(error.errno, f"the chain of the job could not be read: {error}") from error

    def _read_chain(self, reading: ChainReading) -> Sequence[Order]:
        """Read the chain, now and not only at the next `advance`. Returns what the supervisor orders."""
        if self.step is not reading:
            self._set_step(reading)
        try:
            chain = self._chain()
        except OutcomeUnknownError as error:
            return self._on_unread(str(error))
        self._set_step(None)
        match reading:
            case ChainReading.BEGIN:
                return self.supervisor.begin(chain, self.asked)
            case ChainReading.CLAIM:
                return self.supervisor.on_failure(self.reason, chain, self.ports.clock.now_ms)
            case ChainReading.RESUME:
                return self.supervisor.resume(chain)
            case ChainReading.RESCALE:
                return self.supervisor.on_rescale(chain)

    def _on_unread(self, error: str) -> Sequence[Order]:
        if self.tries % self.retries.reads_told == 0:
            self.ports.observer.say(error)
        self.tries += 1
        if self.tries > self.retries.reads_max:
            return [FailRun(f"{self.reason}; and {error}" if self.reason else error)]
        self._put_off()
        return ()

    def _create(self, append: AppendEntry) -> None:
        entry = append.entry
        files: dict[TaskId, Any] = {}
        if isinstance(entry, Manifest):
            files = {task: self.files.get((task, epoch)) for task, epoch in entry.files.items()}
        chain: Sequence[Numbered] = ()
        try:
            is_ours = self.ports.store.create(append.number, entry, files, self.deployment)
            if not is_ours:
                chain = self._chain()
        except OSError as error:
            self._on_create_error(append, error)
            return
        self._set_step(None)
        if not is_ours:
            self.obey(self.supervisor.on_taken(append, chain))
        elif isinstance(entry, Manifest):
            self._on_cut(entry, files)
        else:
            self.obey(self.supervisor.on_appended(entry))

    def _on_create_error(self, append: AppendEntry, error: OSError) -> None:
        if self.is_unknown or isinstance(error, OutcomeUnknownError):
            self._on_unknown(append, error)
        elif isinstance(append.entry, Manifest):
            self._set_step(None)
            if self.coordinator is not None:
                reason = f"the manifest of epoch {append.entry.epoch} could not be written: {error}"
                now_ms = self.ports.clock.now_ms
                self.obey(self.coordinator.on_manifest_failed(append.entry.epoch, reason, now_ms))
        else:
            self.reason = f"the start of attempt {append.entry.attempt} could not be recorded: {error}"
            self.ports.observer.say(self.reason)
            self.obey(self._read_chain(ChainReading.CLAIM))

    def _on_unknown(self, append: AppendEntry, error: OSError) -> None:
        if not self.is_unknown:
            self.ports.observer.say(
                f"entry {append.number} of the chain may or may not exist, and is created again: {error}"
            )
        self.is_unknown = True
        self.tries += 1
        if self.tries > self.retries.tries_max:
            self.obey([FailAttempt(f"entry {append.number} of the chain could not be created: {error}")])
        else:
            self.obey(self.supervisor.on_unknown(append))

    def _on_cut(self, manifest: Manifest, files: dict[TaskId, Any]) -> None:
        """A cut is complete. Sinks publish first; what is removed can wait."""
        epoch = manifest.epoch
        self.files = {name: kept for name, kept in self.files.items() if name[1] is None or name[1] > epoch}
        self.obey(self.supervisor.on_appended(manifest, self.ports.clock.now_ms))
        coordinator = self.coordinator if self.runs else None
        if coordinator is not None and coordinator.final is None and self.ports.stop_condition.holds(manifest):
            self.ports.observer.say(f"stop_when holds at epoch {epoch}")
            self.obey(coordinator.on_stop(epoch))
        self.ports.observer.on_cut(manifest, files)
