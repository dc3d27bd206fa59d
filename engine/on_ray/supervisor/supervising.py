"""One run on Ray: the ports of its `RunDriver`, and the handling of actors that die, fall silent or find no machine.

A single loop passes reports and deaths of actors, requests of clients and clock ticks to the driver, which decides
nothing that depends on Ray. This module handles the rest: actors that die, never report or fall silent, waits for
machines, progress and planned faults.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from backedge.engine.cut_view import CutUnreadableError, CutView, reading_cut
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.job_store import JobStore, open_chain
from backedge.engine.on_ray.run_spec import RunFailedError, RunSpec
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.beside import Beside
from backedge.engine.on_ray.supervisor.crew import CrewError, NoRoomError, needs_of
from backedge.engine.on_ray.supervisor.kept_lines import KeptLines
from backedge.engine.on_ray.supervisor.planned_kills import PlannedKills
from backedge.engine.on_ray.supervisor.published_output import ATTACHED_LINES_MAX, DETACHED_LINES_MAX, Output
from backedge.engine.on_ray.supervisor.rescaling import Rescaling, crowded
from backedge.engine.on_ray.supervisor.run_figures import RunFigures
from backedge.engine.on_ray.supervisor.run_story import LINES_MAX, Story
from backedge.engine.on_ray.supervisor.settled_input import SettledInput
from backedge.engine.on_ray.supervisor.shared_constants import SharedConstants
from backedge.engine.on_ray.supervisor.silence import Silences
from backedge.engine.on_ray.supervisor.status_keeper import StatusKeeper
from backedge.engine.on_ray.supervisor.switchboard import STOP_TIMEOUT_S, Switchboard
from backedge.engine.on_ray.supervisor.version_directories import VersionDirectories
from backedge.engine.on_ray.transport.control_messages import (
    Begin,
    Compacted,
    FaultReached,
    Leader,
    Limit,
    Outcome,
    Progress,
    Published,
    Restored,
    TaskReport,
)
from backedge.engine.run.driver import RunDriver
from backedge.engine.run.ports import Placed, RunEnding, RunObserver, RunPorts
from backedge.graphs.expansion import resized, sizes_asked
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.rate import Rate, rate_in
from backedge.graphs.task_errors import USER_RAISED, stop_when_error
from backedge.recovery.protocol.chain_view import claimant_of, run_of
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    Abort,
    AttemptStart,
    Compact,
    Complete,
    Manifest,
    StartTasks,
    TellToEnd,
    Trigger,
)
from backedge.recovery.protocol.protocol_errors import FencedError, RescaleError
from backedge.recovery.protocol.requests import Asked, Reply, Request, RequestKind, Sizes, wanted
from backedge.recovery.protocol.supervisor import Beginning, Supervisor
from backedge.recovery.restore.graph_change import GraphMismatchError, fitted
from backedge.recovery.restore.plan import fitting, plan_restore
from backedge.recovery.stores.input_pieces import NO_CUT
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.names import constant_file, path_of
from backedge.recovery.stores.older_cuts import with_divisible_cut, with_older_cut
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import SnapshotCorruptError, StoreError
from backedge.recovery.stores.task_files import TaskFiles

TICK_MS = 10
LONG_TURN_MS = 2_000
WAIT_TOLD_S, WAIT_TOLD_AGAIN_S = 5.0, 60.0
REFUSALS = (StoreError, RescaleError, GraphError, FencedError, NoRoomError)


class CancelledError(RuntimeError):
    """The run was cancelled while it waited for a machine."""


class Common:
    """What the pipelines of a run have in common.

    - claimant: that of their supervisors, which are one process.
    - told: what the user should know. printed: what `Print` sinks write.
    - status: what is known about the whole run; None if it is one pipeline.
    - constants: those of the flow; `held` if the run keeps no cuts. versions: where those are that tasks publish.
    - rates: those that were changed in this run, by source.
    """

    def __init__(self, spec: RunSpec, held: Mapping[str, cluster.Pending] | None = None) -> None:
        self.claimant = claimant_of(spec.id, secrets.token_hex(8))
        self.told = KeptLines(LINES_MAX)
        self.printed = KeptLines(DETACHED_LINES_MAX if spec.run.detached else ATTACHED_LINES_MAX)
        self.status: Callable[[], RunStatus] | None = None
        self.constants = SharedConstants(spec.options, held or {})
        self.versions = VersionDirectories()
        self.rates: dict[str, Rate | None] = {}


class Supervising(RunObserver[CutDescription]):
    """One run, or one pipeline of a run, from its start until it is finished, stopped, failed, cancelled or fenced.

    - asked: requests of clients that the loop has not handled yet.
    - asking: lock of `asked` and `has_ended`, because requests come from any thread.
    - has_ended: whether the loop has ended, so that requests are answered at once.
    - earlier: the status that a former supervisor of this run has kept.
    - beside: what the loop does not wait for: removals, and keeping the status.
    - wait_told_at_s: the next message about a missing machine is due after this many seconds of waiting.
    """

    def __init__(self, spec: RunSpec, starter: ActorStarter | None = None, common: Common | None = None) -> None:
        self.spec = spec
        self.common = common or Common(spec)
        self.story = Story(spec.options.job, told=self.common.told)
        self.store: JobStore = open_chain(spec.options)
        self.output = Output(spec.deployment.plan, spec.options, self.common.printed)
        self.has_rounds = any(task.iteration is not None for task in spec.deployment.tasks.values())
        starter = starter or ActorStarter(spec.options.job, spec.run.placement)
        self.actors = Switchboard(starter, spec.run.spares, self._on_wait)
        self.rescaling = Rescaling(self.actors.crew, self.say)
        self.kills = PlannedKills(spec.kills, spec.options.seed, self.story, self.actors)
        self.beside = Beside(self.say_once)
        settled = SettledInput(spec.deployment.plan, spec.options.job, self.store, spec.snapshots.keep)
        self.driver = RunDriver(
            Supervisor(
                self.common.claimant,
                spec.restarts,
                spec.pipeline,
                tuple(spec.deployment.parallelism.items()),
                spec.options.dropped,
                spec.snapshots,
            ),
            RunPorts(self.store, self.output, self, self, self, self, self.beside.do, settled.settle),
            spec.deployment,
            is_restorable=spec.options.root is not None,
        )
        self.asked: deque[Request | Limit] = deque()
        self.asking = threading.Lock()
        self.is_cancelled = False
        self.silences = Silences(spec.silence_ms)
        self.statuses = StatusKeeper(self.store, self.beside, self.say, self.say_once, self.now_ms)
        self.earlier = self.statuses.kept_of(spec.id)
        if self.earlier is not None:
            sources = (operator for operator in self.earlier.operators if operator.is_source)
            self.common.rates |= {source.name: rate_in(source.rate or None) for source in sources}
        # The first pipeline adds it to its own figures, so that it counts once.
        added = self.earlier if spec.pipeline.place == 0 else None
        self.figures = RunFigures(spec.id, spec.options.root, time.time() - time.monotonic(), added)
        self.wait_told_at_s = WAIT_TOLD_S
        self.has_ended = False

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Story:
        """Run until the run has ended, successfully or not; return its story."""
        driver = self.driver
        try:
            if self.earlier is not None and self.earlier.is_over:
                # The supervisor of a detached run stays for a while after its end. If it dies then, nothing goes on.
                self._tell_end_of(self.earlier)
            else:
                run = self.spec.run
                driver.begin(Beginning(self.spec.resume_from, run.resume == "never", run.replace_output))
                while not driver.is_over:
                    self._turn()
        except REFUSALS as refusal:
            self._fail(refusal)
        finally:
            if driver.ending in (RunEnding.FENCED, RunEnding.CANCELLED):
                self.actors.crew.is_superseded = self._has_successor()
            for actor, report in self.actors.stop_all():
                self._hear_out(actor, report)
            self.actors.close()
            self._answer_last_requests()
            self.story.stale += self.actors.stale
        driver.clean_up()
        if driver.supervisor.has_claimed and driver.ending is not RunEnding.FENCED:
            self._keep_status()
        self.beside.finish()
        self.statuses.tell(self.status)
        # Last: all else is done, even if it cannot be read.
        if self.story.state in ("finished", "stopped"):
            self.story.outputs = self._collected()
        if not driver.is_restorable:
            self._release_output()
        return self.story

    def _collected(self) -> dict[str, list[Any]]:
        """The records that sinks keep. That the store is away for a moment makes no finished run fail."""
        retries = self.driver.retries
        for _ in range(retries.tries_max):
            try:
                return self.output.collected()
            except OSError as error:
                self.say_once(f"the collected output cannot be read yet: {error}")
                time.sleep(retries.pause_ms / 1000)
        return self.output.collected()

    def _tell_end_of(self, earlier: RunStatus) -> None:
        """The run has ended under a former supervisor, which may not have told its clients what it did for them."""
        error = RunFailedError(earlier.reason) if earlier.state == "failed" else None
        self.story.finish(earlier.state, error)
        last = self.story.last_epoch = None if earlier.last_epoch is None else Epoch(earlier.last_epoch)
        with suppress(OSError, StoreError):  # then clients hear only how the run has ended
            self.driver.supervisor.read(self.store.chain())
        if last is not None and earlier.state in ("finished", "stopped"):
            self.driver.requests.on_finished(last, is_stopped=earlier.state == "stopped")
        else:
            self.driver.requests.on_failed(f"it has {earlier.state}")

    def status(self) -> RunStatus:
        """What is known about the run. Called from any thread."""
        story = replace(self.story, counts=dict(self.story.counts))
        return self.figures.status(story, time.monotonic(), self.common.rates)

    def _keep_status(self) -> None:
        self.statuses.keep((self.common.status or self.status)(), self.now_ms)

    def _has_successor(self) -> bool:
        """Whether another supervisor of this run has claimed the job. Then the first actors are in its use."""
        try:
            chain = self.store.chain()
        except (OSError, StoreError):
            return False
        claimants = [entry.claimant for _, entry in chain if isinstance(entry, AttemptStart)]
        own = self.common.claimant
        return bool(claimants) and claimants[-1] != own and run_of(claimants[-1]) == run_of(own)

    def _release_output(self) -> None:
        try:
            self.output.release()
        except OSError as error:
            self.say(f"the claim to the output folder could not be removed ({error})")

    def _turn(self) -> None:
        driver = self.driver
        for actor, report in self.actors.reports(TICK_MS):
            self._on_report(actor, report)
        while self.actors.overs and not driver.is_over:
            self._on_over(*self.actors.overs.popleft())
        silent = self.actors.silent()
        if silent and not driver.is_over:
            driver.on_failure(driver.attempt, f"nothing was heard of actor {', '.join(silent)}")
        self._look_at_silent()
        if self.is_cancelled:
            driver.end(RunEnding.CANCELLED, "it was cancelled")
        while self.asked and not driver.is_over:
            self._accept(self.asked.popleft())
        for request, error in self.rescaling.prepared(self.now_ms):
            if error is None:
                driver.ask(request)
            else:
                self._refuse(request, error, is_for_good=False)
        self.rescaling.tidy(is_awaited=driver.requests.awaits_rescale)
        if self.silences.longest_ms(self.now_ms) > LONG_TURN_MS:
            driver.on_records()  # an actor must be busy with a single record
        driver.on_tick()
        if driver.runs:
            self.kills.strike_at_random(self.now_ms)
        while driver.is_due:
            driver.advance()
        self.actors.flush()
        self.statuses.tell_if_due(self.status, self.now_ms)

    def _accept(self, request: Request | Limit) -> None:
        if isinstance(request, Limit):
            for task in self.driver.deployment.tasks.values():
                if request.source in task.operators:
                    self.actors.tell(task.actor, request)
            # A successor has the rates from there.
            self._keep_status()
        elif request.kind is RequestKind.RESCALE and request.asked and not self.driver.requests.knows(request.id):
            deployment = self.driver.deployment
            try:
                wider = resized(deployment, dict(request.sizes_in(deployment.parallelism)))
            except GraphError as error:  # another rescale has been carried out since it was asked for
                self._refuse(request, str(error), is_for_good=False)
                return
            if (crowd := crowded(needs_of(wider), needs_of(deployment), cluster.cpus())) is None:
                self.rescaling.prepare(request, wider, self.now_ms)
            else:
                self._refuse(request, crowd, is_for_good=True)
        else:
            self.driver.ask(request)

    def _refuse(self, rescale: Request, error: str, *, is_for_good: bool) -> None:
        self.driver.requests.refuse(rescale, error, is_for_good=is_for_good)
        self.say(f"the rescale was refused, and the run goes on as before: {error}")

    @property
    def now_ms(self) -> int:
        return _now_ms()

    def _look_at_silent(self) -> None:
        """Ask actors that have been silent for long what they are doing; report it, or restart if so configured."""
        for actor, silent_ms, doing in self.silences.explained(self.actors.crew.look, self.now_ms):
            told = f"actor {actor} has said nothing for {silent_ms // 1000} s: {doing.told}"
            # To read a large state takes long, and would take as long again.
            is_reading = self.driver.supervisor.is_restoring and not doing.is_operator
            if self.spec.run.on_silence == "restart" and not is_reading and not self.driver.is_over:
                self.actors.crew.dismiss(actor)
                self.driver.on_failure(self.driver.attempt, told)
                return
            self.say(told)

    # -- reports, outcomes, requests -----------------------------------------------------------------------------

    def _on_report(self, actor: str, report: Any) -> None:
        driver, attempt = self.driver, self.driver.attempt
        match report:
            case TaskReport(task, effect, files, times):
                if isinstance(effect, Acknowledge):
                    self.figures.on_acknowledged(task, effect.epoch, times, time.monotonic())
                elif isinstance(effect, AcknowledgeEnd):
                    self.figures.on_ended(task)
                driver.on_report(task, attempt, effect, files)
            case Compacted(task, epoch, keys, files, failure):
                if failure is not None:
                    self.say_once(f"the state files of task {task} could not be put into one: {failure}")
                if files is not None:
                    self.store.on_compacted(files)
                driver.on_compacted(task, attempt, epoch, keys, 0 if files is None else files.layer.size)
            case Restored(tasks):
                for task in tasks:
                    driver.on_restored(task, attempt)
            case FaultReached(pid, kill, task):
                self.kills.on_reached(actor, pid, kill, task)
            case _:
                self._hear_out(actor, report)

    def _hear_out(self, actor: str, report: Any) -> None:
        """Process a report that counts even after its attempt; all others are counted as stale."""
        match report:
            case Progress(counts) | Outcome(_, _, counts):
                self._on_progress(actor, report)
                if self.story.on_progress(self.driver.attempt, actor, counts):
                    self.driver.on_hops()
            case Published(sink, transaction, records):
                self.output.publish(sink, transaction, records)
            case _:
                self.story.stale += 1

    def _on_progress(self, actor: str, report: Progress | Outcome) -> None:
        self.silences.on_heard(actor, self.now_ms)
        driver, attempt = self.driver, self.driver.attempt
        before = self.story.counts.get((attempt, actor))
        self.figures.on_processed(report.counts.records - (0 if before is None else before.records))
        if before is not None and report.counts.records > before.records:
            driver.on_records()
        if isinstance(report, Progress):
            for task, epoch, remaining in report.remaining:
                driver.on_remaining(task, attempt, epoch, remaining)
                self.figures.on_remaining(task, epoch, remaining)
            self.figures.on_loads(report.loads, time.monotonic())

    def _on_over(self, actor: str, attempt: Attempt, outcome: Outcome) -> None:
        """Process the end of an actor's part in an attempt."""
        if attempt != self.driver.attempt:
            return
        if outcome.end == "died":
            self.actors.crew.lose(actor)
        if outcome.end == "broken" and self.driver.on_unrestorable(attempt, outcome.reason):
            self.story.on_rescale_given_up()
        elif outcome.end == "broken":
            self._fail(outcome.error or RunFailedError(outcome.reason))
        elif outcome.end in ("died", "failed"):
            self.driver.on_failure(attempt, outcome.reason)
        elif outcome.end == "stopped":
            # Not by an order of this attempt, whose answers are awaited where it is given.
            self.driver.on_failure(attempt, f"actor {actor} has left the attempt")

    def ask(
        self, request_id: str, kind: RequestKind, name: str | None, parallelism: int | Mapping[str, int] | None
    ) -> Reply | None:
        """Accept a client's request, from any thread. Returns None until it is answered: the client asks again."""
        if kind is not RequestKind.STOP and not self.driver.is_restorable:
            told = f"the run keeps no snapshots, so {wanted(kind, name)} has no place: give it snapshots="
            return Reply(error=told, is_for_good=True)
        with self.asking:
            if not self.has_ended and self._is_noted(request_id):
                return None
        # These may be resumed with another parallelism, which is possible only between rounds.
        is_kept = kind in (RequestKind.SAVEPOINT, RequestKind.STOP)
        in_rounds = kind is RequestKind.RESCALE or (is_kept and self.has_rounds)
        mode = Mode.BETWEEN_ROUNDS if in_rounds else self.spec.snapshots.mode
        asked: Asked = ()
        if parallelism is not None:
            try:
                deployment = self.driver.deployment
                asked = tuple(sizes_asked(deployment, parallelism).items())
                resized(deployment, {**deployment.parallelism, **dict(asked)})
            except GraphError as error:
                return Reply(error=str(error), is_for_good=True)
        request = Request(request_id, kind, name, mode, asked)
        requests = self.driver.requests
        with self.asking:
            if not self.has_ended and not requests.has_answered(request_id):
                self.asked.append(request)
                return None
            return requests.ask(request)

    def _is_noted(self, request_id: str) -> bool:
        """Whether the loop knows of a request, which its client repeats several times a second, and has no answer."""
        requests = self.driver.requests
        is_asked = any(isinstance(asked, Request) and asked.id == request_id for asked in list(self.asked))
        is_unanswered = requests.knows(request_id) and not requests.has_answered(request_id)
        return is_asked or is_unanswered or self.rescaling.prepares(request_id)

    def limit(self, source: str, rate: Rate | None) -> str | None:
        """Change the rate of a source, from any thread. Attempts that begin later have it as well. Returns an error."""
        with self.asking:
            if self.has_ended:
                return "the run is over"
            self.common.rates[source] = rate
            self.asked.append(Limit(source, rate))
            return None

    def _answer_last_requests(self) -> None:
        """Answer the requests that arrived during the last turn. Later requests are answered at once."""
        requests = self.driver.requests
        with self.asking:
            self.has_ended = True
            requests.on_failed("its supervisor failed")
            for request in self.asked:
                if isinstance(request, Request):
                    requests.ask(request)
            self.story.answers = requests.all_answers()

    def _fail(self, error: Exception) -> None:
        """End the run as failed, with this error as its cause, unless another run has taken over the job."""
        if self.driver.ends_as_lost():
            return
        restored = self.driver.restored_from
        if isinstance(error, SnapshotCorruptError) and restored is not None:
            error = with_older_cut(error, restored, self.driver.supervisor.chain.cuts, self.store.manifest)
        elif isinstance(error, RescaleError) and restored is not None:
            error = with_divisible_cut(error, restored, self.driver.supervisor.chain.cuts, self.driver.placed)
        self.story.finish("failed", error)
        self.driver.end(RunEnding.FAILED, str(error))

    # -- the actors, a port of the driver ------------------------------------------------------------------------

    def place(self, cut: CutDescription | None, sizes: Sizes) -> Placed:
        """Keep the run's deployment as far as the cut allows. The flow may have changed since the cut."""
        deployment = self.driver.deployment
        if cut is not None:
            self._check_constants(cut)
        if sizes and dict(sizes) != deployment.parallelism:
            deployment = resized(deployment, dict(sizes))
        outline = None if cut is None else fitted(cut.outline, deployment.plan, self.spec.change)
        if outline is not None:
            deployment = fitting(outline, deployment)
        begins = dict.fromkeys(deployment.tasks)
        return Placed(deployment, begins if outline is None else plan_restore(outline, deployment))

    def _check_constants(self, cut: CutDescription) -> None:
        """Raise unless the run has the files that the cut names, which stay as long as some cut does.

        What was dropped may be gone, or have a file of this run.
        """
        for name, file in cut.constants.items():
            ours = self.spec.options.constants.get(name)
            is_new = ours is None or ours.name == path_of(constant_file(ours.digest, self.spec.id))
            if ours != file and not (is_new and name in self.spec.run.drop):
                raise GraphMismatchError(
                    f"epoch {cut.epoch} names another value of constant {name!r} than this run: another run has "
                    "changed the job meanwhile; start this one again"
                )

    def restore(self, attempt: Attempt, placed: Placed, cut: CutDescription | None) -> None:
        self.wait_told_at_s = WAIT_TOLD_S
        plan, common = placed.deployment.plan, self.common
        try:
            self.store.describe(plan)
            begin = Begin(
                attempt,
                "",
                placed.deployment,
                placed.restores,
                {},
                self.spec.options,
                {} if cut is None else cut.tasks,
                kills=tuple(self.kills.left),
                processed=self.story.by_task(),
                restored=NO_CUT if cut is None else cut.epoch,
                begun=placed.begun,
                leader=self._leader(),
                constants=common.constants.references(),
                versions=cluster.own_actor() if plan.versions else None,
                rates=dict(common.rates),
            )
            common.versions.begin(self.spec.pipeline.place, attempt, placed, cut)
            self.actors.begin(begin)
            self.silences.begin(self.actors.actors(), self.now_ms)
        except CancelledError:
            return  # the next turn ends the run
        except (CrewError, OSError) as error:
            self.actors.overs.append(("", attempt, Outcome("failed", str(error))))
        except cluster.RayError as error:  # the cluster does not answer, or its object store is full
            told = f"{type(error).__name__}: {cluster.first_line(error)}"
            self.actors.overs.append(("", attempt, Outcome("failed", told)))

    def _leader(self) -> Leader | None:
        """This supervisor, for the actors that watch it. One that may not be replaced is not watched."""
        actor = cluster.own_actor() if self.spec.takeovers_max else None
        return None if actor is None else Leader(actor, self.spec.silence_ms)

    def _on_wait(self, waited_s: float, lacking: str) -> None:
        """Report from time to time that an actor still has no room. Raises if the run is cancelled."""
        if self.is_cancelled:
            raise CancelledError
        if waited_s >= self.wait_told_at_s:
            self.wait_told_at_s = waited_s + WAIT_TOLD_AGAIN_S
            self.say(lacking)

    def start(self, order: StartTasks) -> None:
        """Start all tasks, now that every actor is connected to its peers."""
        self.actors.all_are_connected()
        for actor in self.actors.actors():
            self.actors.tell(actor, order)

    def tell(self, order: Trigger | Abort | TellToEnd | Complete | Compact) -> None:
        if isinstance(order, Trigger):
            self.figures.on_trigger(order, time.monotonic())
        self.actors.tell(self.driver.deployment.tasks[order.task].actor, order)

    def stop(self) -> None:
        """Have all actors leave the attempt. An actor busy in a user function gets the rest of its silence limit."""
        if self.driver.supervisor.is_over:
            self.actors.crew.is_superseded = self._has_successor()
        silent_ms = self.silences.longest_ms(self.now_ms)
        self.silences.begin((), self.now_ms)
        patience_s = max(STOP_TIMEOUT_S, (self.spec.silence_ms - silent_ms) / 1000)
        for actor, report in self.actors.stop_all(patience_s):
            self._hear_out(actor, report)

    # -- the user's condition, a port of the driver --------------------------------------------------------------

    def holds(self, manifest: Manifest) -> bool:
        plan = self.driver.deployment.plan
        if plan.stop_when is None or not self.driver.is_restorable:
            return False
        try:
            with reading_cut():
                cut = self.store.manifest(manifest.epoch)
                view = CutView(cut.outline, self.store.files(cut), plan, *self.output.transactions())
            return bool(plan.stop_when(view))
        except CutUnreadableError as error:
            self.say(
                f"stop_when could not read the cut of epoch {manifest.epoch} ({error}); it is asked at the next cut"
            )
            return False
        except USER_RAISED as error:
            self._fail(stop_when_error(plan.name, manifest.epoch, error))
            return False

    # -- the observer of the driver ------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self.story.say(line)

    def say_once(self, line: str) -> None:
        if line not in self.story.lines:
            self.story.say(line)

    def on_attempt(self, attempt: Attempt, cut: CutDescription | None) -> None:
        begun, now = self.spec.deployment.parallelism, self.driver.deployment.parallelism
        if self.story.attempt == 0 and now != begun:
            kept = ", ".join(f"{name} has {tasks}" for name, tasks in now.items() if tasks != begun[name])
            self.say(f"the run goes on with the tasks that a rescale has given it: {kept}")
        epoch, in_loops = (None, 0) if cut is None else (cut.epoch, cut.records_in_logs)
        self.story.on_attempt(attempt, epoch, in_loops)
        self.figures.on_attempt(attempt, self.driver.deployment, epoch, in_loops, time.monotonic())

    def on_running(self) -> None:
        """Record that all tasks have started; from now on strike planned faults."""
        self.silences.begin(self.actors.actors(), self.now_ms)
        self.actors.crew.fill_spares()
        self.kills.recurring.on_running(self.now_ms)
        was_down = self.story.down_s is not None and self.story.restores
        self.story.on_running({name: arrival.pid for name, arrival in self.actors.crew.arrivals.items()})
        self.figures.on_running(self.story.restores[-1]["seconds"] if was_down else None)
        self._keep_status()

    def on_cut(self, manifest: Manifest, files: Mapping[TaskId, TaskFiles | None]) -> None:
        """Record a complete cut, and strike the planned faults that wait for it."""
        self.story.on_cut(manifest, files)
        self.figures.on_cut(manifest, files, time.monotonic())
        if self.statuses.is_old(self.now_ms):
            self._keep_status()
        self.kills.recurring.on_cut()
        if self.driver.runs and self.kills.strike_loop(manifest.epoch, files, self.driver.deployment):
            # No later cut may complete before the death is noticed: it would be restored in place of this one.
            self.driver.abandon()

    def on_restart(self, reason: str) -> None:
        self.figures.on_failure(self.story.attempt, reason, time.monotonic())
        self.story.on_restart(reason)

    def on_takeover(self) -> None:
        self.story.on_takeover()
        if self.spec.pipeline.place == 0:
            self.figures.on_takeover(time.monotonic())

    def on_given_up(self, epoch: Epoch, reason: str) -> None:
        self.figures.on_given_up(epoch, reason)
        self.say(reason)

    def on_rescale(self, asked: Mapping[str, int]) -> None:
        before = self.driver.deployment.parallelism
        self.story.on_rescale({name: (before[name], tasks) for name, tasks in asked.items() if before[name] != tasks})

    def on_pause(self, pause_ms: int) -> None:
        self.say(f"the next attempt begins in {pause_ms / 1000:.1f} s")

    def on_end(self, ending: RunEnding, reason: str) -> None:
        match ending:
            case RunEnding.FAILED:
                self.story.finish("failed", RunFailedError(reason))
            case RunEnding.FENCED:
                job, root = self.spec.options.job, self.spec.options.root
                told = (
                    f"job {job!r} is lost: {reason} in {root}: let that run finish, or end it and start this one again "
                    'with resume="latest" (--resume latest); to run both, give each its own folders for its cuts and '
                    "output"
                )
                self.story.finish("failed", FencedError(told))
            case _:
                self.story.finish(ending.value)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
