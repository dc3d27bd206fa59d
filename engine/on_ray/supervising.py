"""The life of a run on Ray: carries out what the coordinator and the supervisor of `recovery` say.

One loop: reports of tasks, deaths of actors, requests of the user and the passing of time come in; orders go out. The
decisions are those of the pure classes; here is how they reach store and actors.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from engine.cut_view import CutView
from engine.on_ray.control import Die, FaultReached, Outcome, Progress, Published, Restored, TaskReport
from engine.on_ray.crew import CrewError, NoRoomError
from engine.on_ray.faults import Kill, Recurring
from engine.on_ray.options import RunFailedError, RunSpec
from engine.on_ray.output import Output, listed_in
from engine.on_ray.restoring import place, records_in_logs
from engine.on_ray.storing import JobStore, open_chain
from engine.on_ray.story import Story
from engine.on_ray.switchboard import Switchboard
from graphs.errors import GraphError
from graphs.ids import Attempt, Epoch, TaskId
from recovery.coordinator import Coordinator
from recovery.effects import Acknowledge, AcknowledgeEnd, Committed, Decline
from recovery.errors import FencedError, RescaleError
from recovery.orders import (
    Abort,
    AppendEntry,
    Complete,
    DropCut,
    FailAttempt,
    FailRun,
    Fenced,
    Finished,
    Manifest,
    Order,
    RestoreTasks,
    StartTasks,
    TellToEnd,
    Trigger,
    WriteManifest,
)
from recovery.stores.errors import StoreError
from recovery.supervisor import Supervisor

TICK_MS = 10
CLAIM_PAUSE_MS = 500
WAIT_TOLD_S, WAIT_TOLD_AGAIN_S = 5.0, 60.0
REFUSALS = (StoreError, RescaleError, GraphError, FencedError, NoRoomError)


class CancelledError(RuntimeError):
    """Nobody wants the run any more that waits for a place."""


class Supervising:
    """One run, from its start until it is finished, failed, cancelled or fenced."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.is_restorable = spec.options.root is not None
        self.story = Story(spec.options.job)
        self.store: JobStore = open_chain(spec.options)
        self.output = Output(spec.deployment.plan, spec.options)
        self.supervisor = Supervisor(spec.restarts_max)
        self.coordinator: Coordinator | None = None
        self.deployment = spec.deployment
        self.actors = Switchboard(spec.options.job, uuid.uuid4().hex[:8], spec.strategy, spec.spares, self._on_wait)
        self.requests: deque[tuple[str, Any]] = deque()
        self.files: dict[tuple[TaskId, Epoch | None], Any] = {}
        self.kills = [kill for kill in spec.kills if kill.when != "every"]
        self.recurring = Recurring(spec.kills)
        self.chance = random.Random(spec.options.seed)
        self.stops_with: str | None = None
        self.claim_due_ms: int | None = None
        self.unclaimed = ""
        self.wait_told_at_s = WAIT_TOLD_S
        self.is_over = False

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Story:
        """Run to the end, good or bad."""
        try:
            self._obey(self.supervisor.begin(self.store.chain(), self.spec.resume_from, anew=self.spec.anew))
            while not self.is_over:
                self._turn()
        except REFUSALS as refusal:
            self._fail(refusal)
        finally:
            for actor, report in self.actors.stop_all():
                self._hear_out(actor, report)
            self.actors.close()
            self.story.stale += self.actors.stale
        if self.story.state in ("finished", "stopped"):
            self.output.roll_back(())
            self.story.outputs = self.output.collected()
        self.story.printed = self.output.printed
        return self.story

    def _turn(self) -> None:
        for actor, report in self.actors.reports(TICK_MS):
            self._on_report(actor, report)
        while self.actors.overs and not self.is_over:
            self._on_over(*self.actors.overs.popleft())
        silent = self.actors.silent()
        if silent and not self.is_over:
            self._restart(f"nothing was heard of actor {', '.join(silent)}")
        while self.requests and not self.is_over:
            self._on_request(*self.requests.popleft())
        if self.coordinator is not None:
            self._obey(self.coordinator.on_tick(_now_ms()))
            self._kill_at_random()
        if self.claim_due_ms is not None and _now_ms() >= self.claim_due_ms:
            self._claim_again()
        self.actors.flush()

    # -- what happened -------------------------------------------------------------------------------------------

    def _on_report(self, actor: str, report: Any) -> None:
        match report:
            case TaskReport(task, effect, files):
                self._on_effect(task, effect, files)
            case Restored(tasks):
                for task in tasks:
                    self._obey(self.supervisor.on_restored(task, self.supervisor.attempt))
            case FaultReached(pid, kill, task):
                self._on_fault(actor, pid, kill, task)
            case _:
                self._hear_out(actor, report)

    def _hear_out(self, actor: str, report: Any) -> None:
        """What is worth hearing of an attempt that is over, too."""
        match report:
            case Progress(counts) | Outcome(_, _, counts):
                has_hopped = self.story.on_progress(self.supervisor.attempt, actor, counts)
                if has_hopped and self.coordinator is not None:
                    self.coordinator.on_hops(_now_ms())
            case Published(sink, transaction, records):
                self.output.publish(sink, transaction, records)
            case _:
                self.story.stale += 1

    def _on_effect(self, task: TaskId, effect: Any, files: Any) -> None:
        coordinator, attempt, now_ms = self.coordinator, self.supervisor.attempt, _now_ms()
        if coordinator is None:
            return
        match effect:
            case Acknowledge(epoch, report):
                self.files[task, epoch] = files
                self._obey(coordinator.on_acknowledge(task, attempt, epoch, report, now_ms))
            case AcknowledgeEnd():
                self.files[task, None] = files
                self._obey(coordinator.on_task_ended(task, attempt, effect, now_ms))
            case Decline(epoch, reason):
                self.story.say(f"epoch {epoch} was declined by {task}: {reason}")
                self._obey(coordinator.on_decline(task, attempt, epoch, reason, now_ms))
            case Committed(epoch):
                self._obey(coordinator.on_committed(task, epoch))
            case _:
                raise TypeError(f"{effect} is no report")

    def _on_over(self, actor: str, attempt: Attempt, outcome: Outcome | None) -> None:
        if attempt != self.supervisor.attempt:
            return
        if outcome is None:
            self.actors.crew.lose(actor)
            self._restart(f"the process of actor {actor} died")
        elif outcome.end == "broken":
            self._fail(outcome.error or RunFailedError(outcome.reason))
        elif outcome.end == "failed":
            self._restart(outcome.reason)

    def _on_request(self, name: str, value: Any) -> None:
        if name == "cancel":
            self.story.finish("cancelled")
            self.is_over = True
        elif name == "stop":
            self.stops_with = value
            self._ask_for(value)
        else:
            self._ask_for(value)

    def _ask_for(self, savepoint: str) -> None:
        if self.coordinator is not None:
            self._obey(self.coordinator.request(self.spec.snapshots.mode, _now_ms(), savepoint=savepoint))

    def _on_fault(self, actor: str, pid: int, kill: Kill, task: TaskId) -> None:
        if kill in self.kills:  # otherwise another task was there first; this one waits until the attempt is over
            self.kills.remove(kill)
            self._kill(actor, pid, kill, str(task))

    def _kill_at_random(self) -> None:
        for kill in self.recurring.due(_now_ms()):
            actor = self.actors.crew.random_member(self.chance)
            if actor is not None:
                self._kill(actor, self.actors.crew.arrivals[actor].pid, kill, actor)

    def _kill(self, actor: str, pid: int, kill: Kill, where: str) -> None:
        self.story.on_kill(actor, pid, kill, where)
        self.actors.tell(actor, Die())
        self.actors.flush()

    # -- orders --------------------------------------------------------------------------------------------------

    def _obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Trigger(task) | TellToEnd(task) | Complete(task) | Abort(task):
                    self.actors.tell(self.deployment.tasks[task].actor, order)
                case WriteManifest(manifest):
                    self._obey(self.supervisor.append(manifest))
                case AppendEntry():
                    self._append(order)
                case RestoreTasks(attempt, epoch):
                    self._place(attempt, epoch)
                case StartTasks():
                    self._start(order)
                    if self.stops_with is not None:
                        self._ask_for(self.stops_with)
                case DropCut(epoch):
                    self.store.drop(epoch)
                    self.supervisor.on_dropped(epoch)
                case FailAttempt(reason):
                    self._restart(reason)
                    return
                case FailRun(reason):
                    self._fail(RunFailedError(reason))
                case Fenced(number):
                    job = self.spec.options.job
                    self._fail(FencedError(f"another run has taken over job {job!r}: entry {number} of its chain"))
                case Finished():
                    self.supervisor.on_finished()
                    self.story.finish("finished" if self.stops_with is None else "stopped")
                    self.is_over = True

    def _append(self, append: AppendEntry) -> None:
        entry = append.entry
        files: dict[TaskId, Any] = {}
        if isinstance(entry, Manifest):
            files = {task: self.files.get((task, epoch)) for task, epoch in entry.files.items()}
        try:
            is_ours = self.store.create(append.number, entry, files, self.deployment)
        except OSError as error:
            if self.coordinator is not None and isinstance(entry, Manifest):
                self.story.say(f"the manifest of epoch {entry.epoch} could not be written: {error}")
                self._obey(self.coordinator.on_manifest_failed(entry.epoch, str(error), _now_ms()))
            else:
                self.unclaimed = f"the start of attempt {entry.attempt} could not be recorded: {error}"
                self.story.say(self.unclaimed)
                self.claim_due_ms = _now_ms() + CLAIM_PAUSE_MS
            return
        if not is_ours:
            self._obey(self.supervisor.on_taken(append.number, self.store.chain()))
            return
        self._obey(self.supervisor.on_appended(entry))
        if isinstance(entry, Manifest) and self.coordinator is not None:
            self._complete(entry, files, self.coordinator)

    def _claim_again(self) -> None:
        """Try another start, which counts as a restart: there may be room on the disk by now."""
        self.claim_due_ms = None
        self._obey(self.supervisor.on_failure(self.unclaimed, self.store.chain()))

    def _complete(self, manifest: Manifest, files: dict[TaskId, Any], coordinator: Coordinator) -> None:
        epoch = manifest.epoch
        self.files = {name: kept for name, kept in self.files.items() if name[1] is None or name[1] > epoch}
        self.story.on_cut(manifest, files)
        self._obey(coordinator.on_manifest_written(epoch, _now_ms()))
        if self.stops_with is not None and manifest.savepoint == self.stops_with:
            self._obey(coordinator.on_stop(epoch))
            return
        stop_when = self.deployment.plan.stop_when
        if stop_when is not None and self.is_restorable and self.coordinator is coordinator:
            view = CutView(self.store.cut(epoch), self.deployment.plan, *self.output.transactions())
            if stop_when(view):
                self.story.say(f"stop_when holds at epoch {epoch}")
                self._obey(coordinator.on_stop(epoch))

    def _restart(self, reason: str) -> None:
        self.coordinator = None
        if not self.is_restorable:
            advice = "without snapshots= a run cannot be restored: give it a folder for them"
            self._fail(RunFailedError(f"{reason}; {advice}"))
            return
        self.story.on_restart(reason)
        for actor, report in self.actors.stop_all():
            self._hear_out(actor, report)
        self._obey(self.supervisor.on_failure(reason, self.store.chain()))

    def _fail(self, error: Exception) -> None:
        self.story.finish("failed", error)
        self.is_over = True

    # -- an attempt ----------------------------------------------------------------------------------------------

    def _place(self, attempt: Attempt, epoch: Epoch | None) -> None:
        self.store.forget_incomplete(attempt)
        later = [cut for cut in self.supervisor.cuts if epoch is not None and cut > epoch]
        if later:
            self.story.say(
                f"epoch {epoch} is older than the latest cut, {later[-1]}: what was published since is published again"
            )
        parts = place(self.spec.deployment, None if epoch is None else self.store.cut(epoch))
        self.output.roll_back(listed_in(parts))
        self.files = {}
        self.supervisor.on_placed(self.deployment.tasks)
        self.story.on_attempt(attempt, epoch, records_in_logs(parts))
        self.wait_told_at_s = WAIT_TOLD_S
        try:
            self.store.describe(self.deployment.plan)
            self.actors.begin(attempt, self.deployment, parts, self.spec.options, tuple(self.kills))
        except CancelledError:
            return  # the request is heard with the next turn
        except (CrewError, OSError) as error:
            self.actors.overs.append(("", attempt, Outcome("failed", str(error))))

    def _on_wait(self, waited_s: float, lacking: str) -> None:
        """An actor has no place yet."""
        if ("cancel", None) in self.requests:
            raise CancelledError
        if waited_s >= self.wait_told_at_s:
            self.wait_told_at_s = waited_s + WAIT_TOLD_AGAIN_S
            self.story.say(lacking)

    def _start(self, order: StartTasks) -> None:
        self.actors.all_are_connected()
        for actor in self.actors.actors():
            self.actors.tell(actor, order)
        next_epoch, cuts = self.supervisor.next_epoch, self.supervisor.periodic_cuts()
        snapshots = self.spec.snapshots
        self.coordinator = Coordinator(self.deployment, order.attempt, snapshots, next_epoch, cuts, _now_ms())
        self.actors.crew.fill_spares()
        self.recurring.on_running(_now_ms())
        self.story.on_running({name: arrival.pid for name, arrival in self.actors.crew.arrivals.items()})


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
