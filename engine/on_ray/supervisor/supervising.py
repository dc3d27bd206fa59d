"""The life of a run on Ray: carries out what the coordinator and the supervisor of `recovery` say.

One loop: reports of tasks, deaths of actors, requests of the user and the passing of time come in; orders go out. The
decisions are those of the pure classes; here is how they reach store and actors.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from engine.cut_view import CutView
from engine.on_ray.job_store import JobStore, has_records_in_loops, open_chain
from engine.on_ray.planned_faults import Kill, Recurring
from engine.on_ray.run_spec import RunFailedError, RunSpec
from engine.on_ray.supervisor.crew import CrewError, NoRoomError
from engine.on_ray.supervisor.published_output import Output
from engine.on_ray.supervisor.restore_plan import place
from engine.on_ray.supervisor.run_story import Story
from engine.on_ray.supervisor.silence import Silences
from engine.on_ray.supervisor.switchboard import STOP_TIMEOUT_S, Switchboard
from engine.on_ray.transport.control_messages import (
    Die,
    FaultReached,
    Outcome,
    Progress,
    Published,
    Restored,
    TaskReport,
)
from engine.task_errors import USER_RAISED, stop_when_error
from graphs.graph_errors import GraphError
from graphs.ids import Attempt, Epoch, TaskId
from recovery.coordinator import Coordinator
from recovery.effects import Acknowledge, AcknowledgeEnd, Committed, Decline
from recovery.graph_change import fitted
from recovery.messages import Mode
from recovery.orders import (
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
    RestoreTasks,
    StartTasks,
    Sweep,
    TellToEnd,
    Trigger,
    WriteManifest,
)
from recovery.protocol_errors import FencedError, ProtocolError, RescaleError
from recovery.requests import Reply, Request, RequestKind
from recovery.rescale import fitting
from recovery.stores.store_errors import OutcomeUnknownError, StoreError
from recovery.stores.task_files import TaskFiles
from recovery.supervisor import Supervisor
from recovery.unpublished import with_unpublished

TICK_MS = 10
LONG_TURN_MS = 2_000
LOOK_MS = 3_000
NO_ANSWER = "its process does not answer; it is stopped, or in native code that lets no other thread run"
CLAIM_PAUSE_MS = 500
# How often the chain is read, or an entry of it created again, before that is given up.
TRIES_MAX = 20
WAIT_TOLD_S, WAIT_TOLD_AGAIN_S = 5.0, 60.0
REFUSALS = (StoreError, RescaleError, GraphError, FencedError, NoRoomError)


class CancelledError(RuntimeError):
    """Nobody wants the run any more that waits for a place."""


class Look(NamedTuple):
    """A question to a silent actor: how long it had been silent, and until when it may answer."""

    answer: Future[str]
    silent_ms: int
    until_ms: int


class Supervising:
    """One run, from its start until it is finished, failed, cancelled or fenced."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.is_restorable = spec.options.root is not None
        self.story = Story(spec.options.job)
        self.store: JobStore = open_chain(spec.options)
        self.output = Output(spec.deployment.plan, spec.options)
        self.supervisor = Supervisor(secrets.token_hex(16), spec.restarts)
        self.coordinator: Coordinator | None = None
        self.deployment = spec.deployment
        self.has_rounds = any(task.iteration is not None for task in spec.deployment.tasks.values())
        self.actors = Switchboard(
            spec.options.job, uuid.uuid4().hex[:8], spec.run.placement, spec.run.spares, self._on_wait
        )
        self.asked: deque[Request] = deque()
        self.asking = threading.Lock()
        self.is_cancelled = False
        self.files: dict[tuple[TaskId, Epoch | None], Any] = {}
        self.kills = [kill for kill in spec.kills if kill.when != "every"]
        self.recurring = Recurring(spec.kills)
        self.chance = random.Random(spec.options.seed)
        self.heard_ms: dict[str, int] = {}
        self.silences = Silences(spec.silence_ms)
        # What silent actors are doing is asked; each has until then to answer.
        self.looks: dict[str, Look] = {}
        self.claim_due_ms: int | None = None
        self.unclaimed = ""
        self.unknown: AppendEntry | None = None
        self.unknown_due_ms = 0
        self.tries = 0
        self.wait_told_at_s = WAIT_TOLD_S
        self.is_over = False
        self.has_ended = False

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Story:
        """Run to the end, good or bad."""
        try:
            self._obey(self.supervisor.begin(self._read_chain(), self.spec.resume_from, anew=self.spec.anew))
            while not self.is_over:
                self._turn()
        except REFUSALS as refusal:
            self._fail(refusal)
        except OutcomeUnknownError as unread:
            self._fail(RunFailedError(str(unread)))
        finally:
            for actor, report in self.actors.stop_all():
                self._hear_out(actor, report)
            self.actors.close()
            self._answer_last_requests()
            self.story.stale += self.actors.stale
        if self.story.state in ("finished", "stopped"):
            self.story.outputs = self.output.collected()
        self._clean_up()
        self.story.printed, self.story.printed_before = self.output.printed_from(0), self.output.printed_before
        return self.story

    def _clean_up(self) -> None:
        """No task runs any more: remove what nobody will ask for."""
        if self.story.state in ("finished", "stopped") or not self.is_restorable:
            self._obey(self.supervisor.on_finished(is_restorable=self.is_restorable))
        if not self.is_restorable:
            self._remove("the claim to the output folder", self.output.release)

    def _remove(self, what: str, removal: Callable[[], None]) -> None:
        """Remove something. What cannot be removed is reported, once, and left to a later sweep: it harms nobody."""
        try:
            removal()
        except OSError as error:
            told = f"{what} could not be removed ({error}); it is tried again later"
            if told not in self.story.lines:
                self.story.say(told)

    def _turn(self) -> None:
        for actor, report in self.actors.reports(TICK_MS):
            self._on_report(actor, report)
        while self.actors.overs and not self.is_over:
            self._on_over(*self.actors.overs.popleft())
        silent = self.actors.silent()
        if silent and not self.is_over:
            self._restart(f"nothing was heard of actor {', '.join(silent)}")
        self._look_at_silent()
        if self.is_cancelled and not self.is_over:
            self.supervisor.requests.on_failed("it was cancelled")
            self.story.finish("cancelled")
            self.is_over = True
        while self.asked and not self.is_over:
            self._on_request(self.asked.popleft())
        if self.coordinator is not None:
            if self._is_in_a_long_turn():
                self.coordinator.on_records()
            self._obey(self.coordinator.on_tick(_now_ms()))
            self._kill_at_random()
        if self.claim_due_ms is not None and _now_ms() >= self.claim_due_ms:
            self._claim_again()
        if self.unknown is not None and _now_ms() >= self.unknown_due_ms:
            self._append(self.unknown)
        if self.claim_due_ms is None and self.supervisor.is_due(_now_ms()) and not self.is_over:
            self._resume()
        self.actors.flush()

    def _look_at_silent(self) -> None:
        """Report who has said nothing for long, with what it is doing."""
        now_ms = _now_ms()
        for actor, silent_ms in self.silences.due(now_ms):
            if (answer := self.actors.crew.look(actor)) is not None:
                self.looks[actor] = Look(answer, silent_ms, now_ms + LOOK_MS)
        for actor, look in list(self.looks.items()):
            if not look.answer.done() and now_ms < look.until_ms:
                continue
            del self.looks[actor]
            has_answered = look.answer.done() and look.answer.exception() is None
            doing = look.answer.result() if has_answered else NO_ANSWER
            told = f"actor {actor} has said nothing for {look.silent_ms // 1000} s: {doing}"
            if self.spec.run.on_silence == "restart" and not self.is_over:
                self.actors.crew.dismiss(actor)
                self._restart(told)
                return
            self.story.say(told)

    def _is_in_a_long_turn(self) -> bool:
        """Whether an actor has said nothing for so long that it must be busy with one record."""
        until_ms = _now_ms() - LONG_TURN_MS
        return any(self.heard_ms.get(actor, until_ms) < until_ms for actor in self.actors.actors())

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
                self._on_progress(actor, report)
                has_hopped = self.story.on_progress(self.supervisor.attempt, actor, counts)
                if has_hopped and self.coordinator is not None:
                    self.coordinator.on_hops(_now_ms())
            case Published(sink, transaction, records):
                self.output.publish(sink, transaction, records)
            case _:
                self.story.stale += 1

    def _on_progress(self, actor: str, report: Progress | Outcome) -> None:
        """Hold what an actor says of its progress against the epochs that are open."""
        self.heard_ms[actor] = _now_ms()
        self.silences.on_heard(actor, _now_ms())
        coordinator = self.coordinator
        if coordinator is None:
            return
        before = self.story.counts.get((self.supervisor.attempt, actor))
        if before is not None and report.counts.records > before.records:
            coordinator.on_records()
        if isinstance(report, Progress):
            for task, epoch, remaining in report.remaining:
                coordinator.on_remaining(task, self.supervisor.attempt, epoch, remaining, _now_ms())

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
            case Decline(epoch, reason, is_expected):
                self._obey(coordinator.on_decline(task, attempt, epoch, reason, now_ms, is_expected=is_expected))
            case Committed(epoch):
                self._obey(coordinator.on_committed(task, epoch))
            case _:
                raise TypeError(f"{effect} is no report")

    def _on_over(self, actor: str, attempt: Attempt, outcome: Outcome) -> None:
        if attempt != self.supervisor.attempt:
            return
        if outcome.end == "died":
            self.actors.crew.lose(actor)
            self._restart(outcome.reason)
        elif outcome.end == "broken":
            self._fail(outcome.error or RunFailedError(outcome.reason))
        elif outcome.end == "failed":
            self._restart(outcome.reason)

    def ask(self, request_id: str, kind: RequestKind, name: str | None) -> Reply | None:
        """A client's request, from any thread; the answer is there when the client repeats it."""
        if kind is not RequestKind.STOP and not self.is_restorable:
            wanted = "the requested cut" if name is None else f"savepoint {name!r}"
            return Reply(error=f"the run keeps no snapshots, so {wanted} has no place: give it snapshots=")
        # A savepoint may be resumed with another parallelism, which cannot go on in the middle of a round.
        in_rounds = kind is RequestKind.SAVEPOINT and self.has_rounds
        request = Request(request_id, kind, name, Mode.BETWEEN_ROUNDS if in_rounds else self.spec.snapshots.mode)
        requests = self.supervisor.requests
        with self.asking:
            if not self.has_ended and request_id not in requests.answers:
                self.asked.append(request)
                return None
            return requests.ask(request)

    def _on_request(self, request: Request) -> None:
        if self.supervisor.requests.ask(request) is None and self.coordinator is not None:
            self._obey(self.coordinator.serve_requests(_now_ms()))

    def _answer_last_requests(self) -> None:
        """Reply what arrived during the last turn; what arrives from now on is answered at once."""
        with self.asking:
            self.has_ended = True
            self.supervisor.requests.on_failed("its supervisor failed")
            for request in self.asked:
                self.supervisor.requests.ask(request)
            self.story.answers = dict(self.supervisor.requests.answers)

    def _on_fault(self, actor: str, pid: int, kill: Kill, task: TaskId) -> None:
        if kill in self.kills:  # otherwise another task was there first; this one waits until the attempt is over
            self.kills.remove(kill)
            self._kill(actor, pid, kill, str(task))

    def _kill_at_random(self) -> None:
        for kill in self.recurring.due(_now_ms()):
            actor = self.actors.crew.random_member(self.chance)
            if actor is not None:
                self._kill(actor, self.actors.crew.arrivals[actor].pid, kill, actor)
                if self.recurring.on_kill():
                    self.story.say(
                        "the last planned faults came before any cut was complete, so the run made no progress: "
                        f"{kill} leaves too little time; take a longer interval, or cuts more often (every=)"
                    )

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
                case Compact():
                    raise ProtocolError("cuts on Ray hold everything (files_max is 1), so there is nothing to compact")
                case GivenUp(_, reason):
                    self.story.say(reason)
                case WriteManifest(manifest):
                    self._obey(self.supervisor.append(manifest))
                case AppendEntry():
                    self._append(order)
                case RestoreTasks(attempt, epoch, unpublished):
                    self._place(attempt, epoch, unpublished)
                case StartTasks():
                    self._start(order)
                case DropCut(epoch):
                    self._remove(f"cut {epoch}", partial(self.store.drop, epoch))
                case Sweep():
                    self._remove("what attempts have left behind", partial(self.store.sweep, order))
                    self._remove("output that will not be published", partial(self.output.sweep, order))
                case FailAttempt(reason):
                    self._restart(reason)
                    return
                case PauseRestart(pause_ms):
                    self.story.say(f"the next attempt begins in {pause_ms / 1000:.1f} s")
                case FailRun(reason):
                    self._fail(RunFailedError(reason))
                case Fenced(number):
                    job = self.spec.options.job
                    self._fail(FencedError(f"another run has taken over job {job!r}: entry {number} of its chain"))
                case Finished():
                    is_stopped = self.coordinator is not None and self.coordinator.is_stopping
                    self.story.finish("stopped" if is_stopped else "finished")
                    self.is_over = True

    def _append(self, append: AppendEntry) -> None:
        entry = append.entry
        files: dict[TaskId, Any] = {}
        if isinstance(entry, Manifest):
            files = {task: self.files.get((task, epoch)) for task, epoch in entry.files.items()}
        chain: list[Numbered] = []
        try:
            is_ours = self.store.create(append.number, entry, files, self.deployment)
            if not is_ours:
                chain = self._read_chain()
        except OutcomeUnknownError as error:
            self._on_unknown(append, error)
            return
        except OSError as error:
            if self.coordinator is not None and isinstance(entry, Manifest):
                reason = f"the manifest of epoch {entry.epoch} could not be written: {error}"
                self._obey(self.coordinator.on_manifest_failed(entry.epoch, reason, _now_ms()))
            else:
                unclaimed = f"the start of attempt {entry.attempt} could not be recorded: {error}"
                self.story.say(unclaimed)
                self._claim(unclaimed)
            return
        self.unknown, self.tries = None, 0
        if not is_ours:
            self._obey(self.supervisor.on_taken(append.number, chain))
            return
        following = self.supervisor.on_appended(entry)
        if isinstance(entry, Manifest) and self.coordinator is not None:
            # Sinks publish first; what is removed can wait.
            self._complete(entry, files, self.coordinator)
        self._obey(following)

    def _read_chain(self) -> list[Numbered]:
        try:
            return self.store.chain()
        except OSError as error:
            raise OutcomeUnknownError(error.errno, f"the chain of the job could not be read: {error}") from error

    def _on_unknown(self, append: AppendEntry, error: OSError) -> None:
        """Create the same entry again in a moment; until then nothing that it names is given up."""
        if self.unknown is None:
            self.story.say(f"entry {append.number} of the chain may or may not exist, and is created again: {error}")
        self.unknown, self.unknown_due_ms = append, _now_ms() + CLAIM_PAUSE_MS
        self.tries += 1
        if self.tries > TRIES_MAX:
            # The next attempt reads the chain, and goes on from there with the entry or without it.
            self._restart(f"entry {append.number} of the chain could not be created: {error}")

    def _claim_later(self, reason: str) -> None:
        self.unclaimed, self.claim_due_ms = reason, _now_ms() + CLAIM_PAUSE_MS

    def _claim_again(self) -> None:
        """Try another start, which counts as a restart: the disk may have recovered by now."""
        self.claim_due_ms = None
        self._claim(self.unclaimed)

    def _claim(self, reason: str) -> None:
        """Claim the next attempt, once the chain can be read."""
        try:
            chain = self._read_chain()
        except OutcomeUnknownError as error:
            if self.tries == 0:
                self.story.say(str(error))
            self.tries += 1
            if self.tries > TRIES_MAX:
                self._fail(RunFailedError(f"{reason}; and {error}"))
            else:
                self._claim_later(reason)
            return
        self.tries = 0
        self._obey(self.supervisor.on_failure(reason, chain, _now_ms()))

    def _resume(self) -> None:
        """The pause before the next attempt is over. A chain that cannot be read counts as another failure."""
        try:
            chain = self._read_chain()
        except OutcomeUnknownError as error:
            self._claim_later(str(error))
            return
        self._obey(self.supervisor.resume(chain))

    def _complete(self, manifest: Manifest, files: dict[TaskId, Any], coordinator: Coordinator) -> None:
        epoch = manifest.epoch
        self.files = {name: kept for name, kept in self.files.items() if name[1] is None or name[1] > epoch}
        self.story.on_cut(manifest, files)
        self.recurring.on_cut()
        self._obey(coordinator.on_manifest_written(epoch, _now_ms()))
        stop_when = self.deployment.plan.stop_when
        goes_on = self.coordinator is coordinator and coordinator.final is None
        if stop_when is not None and self.is_restorable and goes_on:
            cut = self.store.manifest(epoch)
            view = CutView(cut.outline, self.store.files(cut), self.deployment.plan, *self.output.transactions())
            try:
                may_stop = stop_when(view)
            except USER_RAISED as error:
                self._fail(stop_when_error(self.deployment.plan.name, epoch, error))
                return
            if may_stop:
                self.story.say(f"stop_when holds at epoch {epoch}")
                self._obey(coordinator.on_stop(epoch))
        if not self.is_over and self.coordinator is coordinator:
            self._kill_at_loop(epoch, files)

    def _kill_at_loop(self, epoch: Epoch, files: Mapping[TaskId, Any]) -> None:
        """Carry out a planned fault that waits for a complete cut with records in a loop: this one is then restored."""
        kill = next((kill for kill in self.kills if kill.when == "loop" and kill.amount <= epoch), None)
        if kill is None or not has_records_in_loops(files):
            return
        task = next(task for task in self.deployment.tasks.values() if kill.concerns(task))
        self.kills.remove(kill)
        self._kill(task.actor, self.actors.crew.arrivals[task.actor].pid, kill, str(task.id))
        # No later cut may complete before the death is noticed: it would be restored in place of this one.
        self.coordinator = None

    def _restart(self, reason: str) -> None:
        self.coordinator = None
        if not self.is_restorable:
            advice = "without snapshots= a run cannot be restored: give it a folder for them"
            self._fail(RunFailedError(f"{reason}; {advice}"))
            return
        self.story.on_restart(reason)
        self.looks.clear()
        silent_ms = self.silences.longest_ms(_now_ms())
        self.silences.begin((), _now_ms())
        # Who is in a function has as long as it may be silent anyway.
        patience_s = max(STOP_TIMEOUT_S, (self.spec.silence_ms - silent_ms) / 1000)
        for actor, report in self.actors.stop_all(patience_s):
            self._hear_out(actor, report)
        self.unknown, self.tries = None, 0
        self._claim(reason)

    def _fail(self, error: Exception) -> None:
        self.supervisor.requests.on_failed(str(error))
        self.story.finish("failed", error)
        self.is_over = True

    # -- an attempt ----------------------------------------------------------------------------------------------

    def _place(self, attempt: Attempt, epoch: Epoch | None, unpublished: Sequence[str]) -> None:
        later = [cut for cut in self.supervisor.cuts if epoch is not None and cut > epoch]
        if later:
            self.story.say(
                f"epoch {epoch} is older than the latest cut, {later[-1]}: what was published since is published again"
            )
        try:
            cut = None if epoch is None else self.store.manifest(epoch)
        except OSError as error:
            reason = f"the manifest of epoch {epoch} could not be read: {error}"
            self.actors.overs.append(("", attempt, Outcome("failed", reason)))
            return
        outline = None if cut is None else fitted(cut.outline, self.deployment.plan, self.spec.change)
        if outline is not None:
            self.deployment = fitting(outline, self.deployment)
        parts = with_unpublished(place(self.deployment, outline), unpublished, self.deployment)
        self.files = {}
        self.supervisor.on_placed(self.deployment.tasks)
        self.story.on_attempt(attempt, epoch, 0 if cut is None else cut.records_in_logs)
        self.wait_told_at_s = WAIT_TOLD_S
        try:
            self.store.describe(self.deployment.plan)
            kills, processed = tuple(self.kills), self.story.by_task()
            files: Mapping[TaskId, TaskFiles] = {} if cut is None else cut.tasks
            self.actors.begin(attempt, self.deployment, parts, files, self.spec.options, kills, processed)
        except CancelledError:
            return  # the request is heard with the next turn
        except (CrewError, OSError) as error:
            self.actors.overs.append(("", attempt, Outcome("failed", str(error))))

    def _on_wait(self, waited_s: float, lacking: str) -> None:
        """An actor has no place yet."""
        if self.is_cancelled:
            raise CancelledError
        if waited_s >= self.wait_told_at_s:
            self.wait_told_at_s = waited_s + WAIT_TOLD_AGAIN_S
            self.story.say(lacking)

    def _start(self, order: StartTasks) -> None:
        self.actors.all_are_connected()
        for actor in self.actors.actors():
            self.actors.tell(actor, order)
        self.heard_ms = {}
        self.silences.begin(self.actors.actors(), _now_ms())
        next_epoch, cuts = self.supervisor.next_epoch, self.supervisor.periodic_cuts()
        snapshots = self.spec.snapshots
        requests, restored = self.supervisor.requests, self.supervisor.restored_from
        self.coordinator = Coordinator(
            self.deployment, order.attempt, snapshots, next_epoch, cuts, _now_ms(), requests, restored
        )
        self.actors.crew.fill_spares()
        self.recurring.on_running(_now_ms())
        self.story.on_running({name: arrival.pid for name, arrival in self.actors.crew.arrivals.items()})


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
