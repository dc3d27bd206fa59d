"""A simulated job: its processes, network and store, and the ports through which tasks and the run's driver use them.

What tasks send, write and report waits here until the schedule lets it happen (`world.py`). The runs of the job follow
one another: a successor takes over from a supervisor that has died, and a user starts another run after a stop.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backedge.engine.batches.batch import encode
from backedge.engine.cut_view import CutView
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.run.driver import RunDriver
from backedge.engine.run.ports import Placed, RunEnding, RunObserver, RunPorts
from backedge.engine.simulation.checker.record import Aborted, Completed, Event, Record, Started
from backedge.engine.simulation.checker.record import Finished as FinishedEvent
from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.kept_calls import KeptCalls
from backedge.engine.simulation.world.placement import Placement
from backedge.engine.simulation.world.rehearsal import SimulatedServices
from backedge.engine.simulation.world.simulated_store import SimulatedCut
from backedge.engine.simulation.world.simulated_versions import Shelves, SimulatedVersions
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.engine.task.channel_ends import Arrivals
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.graphs.resource import close_opened
from backedge.graphs.versions import use_versions
from backedge.recovery.cut.cut import Cut, TaskSnapshot
from backedge.recovery.protocol.chain_view import claimant_of, run_of
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.messages import Item
from backedge.recovery.protocol.orders import (
    Abort,
    AppendEntry,
    AttemptStart,
    Compact,
    Complete,
    DropCut,
    Entry,
    FileId,
    Manifest,
    Numbered,
    Order,
    StartTasks,
    StateFile,
    Sweep,
    TellToEnd,
    Trigger,
)
from backedge.recovery.protocol.requests import Reply, Request, RequestKind, Sizes
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.supervisor import Beginning, Supervisor
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.restore.plan import RestorePlan, kept_states
from backedge.recovery.restore.restore_task import SnapshotsInMemory

BEGINNING_MS = 10**12
"""The clock when a job begins: as on Ray, it shows a time of these years, so a duration is no time."""


class Removal(NamedTuple):
    """A removal that an attempt has ordered, of files or of output. It may happen at any later time."""

    attempt: Attempt
    order: Sweep | DropCut
    is_of_output: bool = False


class WorldPorts(RunObserver[SimulatedCut]):
    """One job, or one pipeline of a job, from the start of its first run until a run is finished, failed or fenced.

    - counts: what the schedule has exercised.
    - claimants, runs: the number of supervisors and of runs so far.
    - hosts: the processes of the attempt. zombies: processes that were presumed dead and go on. dead: tasks whose death
      nobody has noticed yet. unrestored: tasks that are not restored yet.
    - begun: the numbers of tasks that the options of the run give it.
    - wires, reports, credits: items in transit, by channel, reports, and credit, if channels have bounds.
    - removals, compactions: those that are ordered and not carried out yet. compaction_reports: those that are carried
      out and not reported yet. compacted: the list in which each compacted file takes a place.
    - bases: the cut since which each file holds what changed; None if it holds everything.
    - unanswered: requests that their clients repeat.
    - claimed: the last attempt that the chain starts.
    - watched: the cuts that the user's predicate has seen.
    - dies_after_stop: whether the supervisor dies when it has answered a stop. answered_stops: the runs whose clients
      have the answer to a stop.
    - sleepers: supervisors that were taken for dead and have not noticed their successors yet.
    - opened: the runtimes in which users' classes may hold something open, of all attempts.
    - versions: those that the tasks of the attempt may read. shelves: what was published in each attempt.
    - siblings: the other pipelines of the job. They share its store and its supervisor's process.
    """

    def __init__(self, plan: Plan, inputs: Mapping[str, Sequence[Any]], options: WorldOptions, parts: Parts) -> None:
        self.plan = plan
        self.options = options
        self.parts = parts
        self.traces = options.traces
        self.services = SimulatedServices(inputs)
        self.counts: Counter[str] = Counter()
        self.store = parts.store(self.counts)
        self.placement = Placement(plan, options.actors, parts.plan_restore)
        self.wanted_parallelism: int | None = None
        self.replacing_fails = False
        self.claimants = 0
        self.runs = 1
        self.hosts: dict[TaskId, Host] = {}
        self.zombies: list[Host] = []
        self.dead: set[TaskId] = set()
        self.wires: dict[ChannelId, deque[tuple[Attempt, Item]]] = {}
        self.reports: list[tuple[Attempt, TaskId, Any]] = []
        self.credits: dict[ChannelId, list[Credit]] = {}
        self.removals: list[Removal] = []
        self.compactions: list[tuple[Attempt, Compact]] = []
        self.compaction_reports: list[tuple[Attempt, Compact, int | None]] = []
        self.compacted: dict[FileId, tuple[StateFile, ...]] = {}
        self.bases: dict[FileId, Epoch | None] = {}
        self.unrestored: dict[TaskId, RestorePlan | None] = {}
        self.restored_cut: Cut | None = None
        self.calls = KeptCalls(self.hosts, parts.segments(), self.counts)
        self.opened: list[TaskRuntime] = []
        self.versions = parts.versions()
        self.shelves: Shelves = {}
        self.unanswered: dict[str, Request] = {}
        self.rescales: dict[str, Request] = {}
        self.now_ms: int = BEGINNING_MS
        self.claimed = Attempt(0)
        self.watched: set[Epoch] = set()
        self.dies_after_stop = False
        self.answered_stops: set[str] = set()
        self.sleepers: list[SleepingSupervisor] = []
        self.siblings: list[WorldPorts] = []
        self.is_finished = False
        self.failure: str | None = None
        self.is_fenced = False
        self.why_ended = ""
        store = self.services.store
        self.record = Record(
            plan=plan,
            inputs=dict(inputs),
            policy=options.snapshots.mode.value,
            committed=store.committed,
            prepared=store.prepared,
            replaced=store.replaced,
            chain=self.store.history,
            pipeline=options.pipeline.name,
        )
        deployment = self.placement.deployment(options.parallelism)
        self.begun: Sizes = tuple(deployment.parallelism.items())
        self.driver = self._new_driver(deployment)
        self.driver.begin()
        self._settle()

    @property
    def supervisor(self) -> Supervisor:
        return self.driver.supervisor

    @property
    def coordinator(self) -> Coordinator | None:
        """That of the running attempt."""
        return self.driver.coordinator

    @property
    def deployment(self) -> Deployment:
        """The tasks of the current or the latest attempt."""
        return self.driver.deployment

    @property
    def pending(self) -> AppendEntry | None:
        """The entry of the chain that may be created now."""
        step = self.driver.step
        return step if isinstance(step, AppendEntry) and self.driver.is_due else None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self.is_finished or self.is_fenced or self.failure is not None

    # -- surroundings of the hosts -------------------------------------------------------------------------------------

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None:
        self.wires.setdefault(channel, deque()).append((attempt, item))

    def send_credit(self, attempt: Attempt, channel: ChannelId, credit: Credit) -> None:
        """Ignore it: channels have no bounds here."""

    def windows(self) -> dict[ChannelId, Arrivals]:
        """The receiving ends whose windows a schedule may change."""
        return {}

    def receiving_end(self, attempt: Attempt, channel: ChannelId) -> Arrivals | None:
        """The receiving end of a channel within an actor, if its receiver is there."""
        receiver = self.hosts.get(channel.receiver)
        return None if receiver is None or receiver.attempt != attempt else receiver.driver.arrivals[channel]

    def is_going_round(self, actor: str) -> bool:
        """Whether a batch waits in a loop within this actor."""
        return any(
            host.driver.arrivals[channel.id].batches_waiting()
            for host in self.hosts.values()
            if host.core.task.actor == actor
            for channel in host.core.task.inputs
            if channel.is_back and channel.within_actor
        )

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None:
        self.reports.append((attempt, task, effect))

    def store_file(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None:
        self.store.write(attempt, epoch, snapshot)
        if self.traces:
            self.bases[FileId(attempt, epoch, snapshot.task)] = snapshot.base

    def note(self, event: Event) -> None:
        """Keep the trace of an attempt until the chain starts the next one.

        Until then a supervisor that was taken for dead leads it, and may complete its cuts.
        """
        if event.attempt >= self.claimed:
            self._note_always(event)

    def _note_always(self, event: Event) -> None:
        if self.traces:
            self.record.trace.append(event)

    def close(self) -> None:
        """End the calls that go on, and let users' classes release what they have opened."""
        self.calls.close()
        for runtime in self.opened:
            runtime.close()
        close_opened()
        self.services.close()
        self.store.close()

    # -- ports of the run's driver -------------------------------------------------------------------------------------

    def chain(self) -> list[Numbered]:
        return self.store.read_chain()

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        known = len(self.store.history)
        try:
            return self.store.try_to_create(AppendEntry(number, entry), deployment)
        finally:
            self._note_new(known)

    def _note_new(self, known: int) -> None:
        """Note new entries: a cut is complete as soon as its manifest is in the chain, whether the run knows or not."""
        for _, entry in self.store.history[known:]:
            if not self.is_own(entry):
                continue
            if isinstance(entry, AttemptStart):
                self.claimed = entry.attempt
            elif run_of(entry.claimant) in self.answered_stops:
                raise RuntimeError(f"the run has taken cut {entry.epoch} although its stop was answered")
            else:
                self.record.cuts[entry.epoch] = self.store.cut(entry)
                self.counts["cuts_with_compactions"] += self._names_compaction(entry)
                note = self.note if entry.attempt >= self.claimed else self._note_always
                note(Completed(entry.attempt, entry.epoch))

    def is_own(self, entry: Entry) -> bool:
        return entry.pipeline == self.options.pipeline.name

    def manifest(self, epoch: Epoch) -> SimulatedCut:
        return self.store.read_cut(epoch)

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut when the schedule says so."""
        self.removals.append(Removal(self.supervisor.attempt, DropCut(epoch)))

    def sweep(self, sweep: Sweep) -> None:
        """Remove files when the schedule says so."""
        self.removals.append(Removal(self.supervisor.attempt, sweep))

    def roll_back(self, sweep: Sweep) -> None:
        """Remove output when the schedule says so."""
        self.removals.append(Removal(self.supervisor.attempt, sweep, is_of_output=True))

    def replace(self, later: LaterOutput) -> None:
        """Remove output that was published after a cut. It may fail in the middle."""
        fails, self.replacing_fails = self.replacing_fails, False
        self.counts["replaced_transactions"] += self.services.store.replace(later, 1 if fails else None)
        if fails:
            self.counts["replacing_failed"] += 1
            raise OSError(errno.EIO, "the disk has failed")

    def place(self, cut: SimulatedCut | None, sizes: Sizes) -> Placed:
        """Deploy the attempt, as a rescale asks for, or with another parallelism if one is wanted and possible."""
        if sizes and cut is not None:
            self._check_asked(sizes, cut.outline.parallelism)
            return self.placement.place_rescaled(cut.outline, sizes)
        wanted, self.wanted_parallelism = self.wanted_parallelism, None
        placed = self.placement.place(self.deployment, None if cut is None else cut.outline, wanted)
        # On a cluster, only the options of a run change its numbers of tasks between two attempts.
        self.begun = self.supervisor.chain.begun = tuple(placed.deployment.parallelism.items())
        return placed

    def _check_asked(self, sizes: Sizes, before: Mapping[str, int]) -> None:
        """Check that a rescale changes what it asks for, and nothing else, and that a refused one changes nothing."""
        answers = self.supervisor.requests.answers
        refused = {id for id, answer in answers.items() if answer.error is not None}
        asked = {pair for id, request in self.rescales.items() if id not in refused for pair in request.asked}
        others = {name: (before[name], tasks) for name, tasks in sizes if before[name] != tasks}
        others = {name: change for name, change in others.items() if (name, change[1]) not in asked}
        if others:
            raise RuntimeError(f"a rescale has changed operators that it does not name: {others}")

    def restore(self, attempt: Attempt, placed: Placed, cut: SimulatedCut | None) -> None:
        """Restore each task when the schedule says so."""
        if attempt in self.record.deployments:
            raise RuntimeError(f"attempt {attempt} is restored a second time: its number no longer fences the first")
        close_opened()
        self.restored_cut = None if cut is None else cut.cut
        self.calls.begin_attempt(self.supervisor.attempt, placed, Epoch(0) if cut is None else cut.cut.epoch)
        self._begin_versions(attempt, placed, self.restored_cut)
        if cut is not None:
            self._count_restore(self.store.manifest(cut.cut.epoch))
        self.unrestored = dict(placed.restores)
        for task in self.hosts.keys() - placed.deployment.tasks.keys():
            del self.hosts[task]
        self.store.deployments[attempt] = placed.deployment
        self.record.deployments[attempt] = placed.deployment
        if self.restored_cut is not None and self.restored_cut.epoch not in self.watched:
            # The reply was lost, and only the chain shows that it is complete. The next cut may stop the run.
            self._is_to_stop_at(self.restored_cut)
        self.note(Started(attempt, None if cut is None else cut.cut.epoch))
        self.dead.clear()

    def _begin_versions(self, attempt: Attempt, placed: Placed, cut: Cut | None) -> None:
        """Let the tasks of an attempt read the versions that it restores."""
        found: dict[tuple[str, int], bytes] = {}
        if cut is not None:
            for task, operator in kept_states(placed.restores.values()):
                found |= self.store.versions_of(cut, task, operator)
        self.versions.begin(attempt, found)
        published = {} if cut is None else self.record.versions[cut.attempt]
        self.record.versions[attempt] = {name: published[name] for name in found}

    def use_versions(self, attempt: Attempt) -> None:
        """Have the user's functions see the versions that a task of this attempt may read."""
        if self.plan.versions:
            use_versions(
                self.plan.name, SimulatedVersions(self.versions, self.shelves, self.parts.shelf, attempt, self.record)
            )

    def _count_restore(self, manifest: Manifest) -> None:
        lists = manifest.states.values()
        self.counts["restored_from_deltas"] += any(len(files) > 1 for files in lists)
        self.counts["restored_from_earlier_attempts"] += any(f[0].attempt < f[-1].attempt for f in lists)
        self.counts["restored_from_compactions"] += self._names_compaction(manifest)

    def _names_compaction(self, manifest: Manifest) -> bool:
        lists = manifest.states.items()
        return any(FileId(file.attempt, file.epoch, task) in self.compacted for task, files in lists for file in files)

    def start(self, order: StartTasks) -> None:
        for host in self.hosts.values():
            self.give(host, order)

    def tell(self, order: Trigger | Abort | TellToEnd | Complete | Compact) -> None:
        """Send an order to its task, if its process is there. It compacts when the schedule says so."""
        if isinstance(order, Compact):
            self.compactions.append((self.supervisor.attempt, order))
        elif isinstance(order, Abort):
            self.note(Aborted(self.supervisor.attempt, order.epoch))
            if order.task in self.hosts:
                self.give(self.hosts[order.task], order, is_abort=True)
        elif order.task in self.hosts:
            self.give(self.hosts[order.task], order)

    def _at(self, task: TaskId) -> Host:
        """The host at which an event happens; what it offers is listed again after that."""
        host = self.hosts[task]
        host.offers = None
        self.use_versions(host.attempt)
        return host

    def give(self, host: Host, order: Order, *, is_abort: bool = False) -> None:
        host.offers = None
        (host.aborts if is_abort else host.orders).append(order)

    def stop(self) -> None:
        """Restore no more tasks. Processes that run go on until the next attempt replaces them."""
        self.unrestored.clear()

    def holds(self, manifest: Manifest) -> bool:
        """Ask the user's predicate about a complete cut."""
        return self._is_to_stop_at(self.record.cuts[manifest.epoch])

    # -- what the run's driver tells -----------------------------------------------------------------------------------

    def on_cut(self, manifest: Manifest, files: Mapping[TaskId, Any]) -> None:
        """Show every cut to the user's predicate, the final one included: it may check an invariant."""
        if manifest.epoch not in self.watched:
            self._is_to_stop_at(self.record.cuts[manifest.epoch])

    def on_rescale(self, asked: Mapping[str, int]) -> None:
        self.counts["rescaled_live"] += 1

    def on_pause(self, pause_ms: int) -> None:
        self.counts["restarts_put_off"] += 1

    def on_end(self, ending: RunEnding, reason: str) -> None:
        """Keep the reason; `_settle` does the rest."""
        self.why_ended = reason

    # -- clients of the run --------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """Make a request. Its client repeats it with every tick until it has an answer."""
        self.unanswered[request.id] = request
        if request.kind is RequestKind.RESCALE:
            self.rescales[request.id] = request
        self.counts["requests"] += 1
        self.counts["requests_without_coordinator"] += self.coordinator is None
        self.driver.ask(request)
        self._settle()

    def _repeat_requests(self) -> None:
        requests = self.supervisor.requests
        for request in list(self.unanswered.values()):
            tries = requests.failed_tries.get(request.id, 0)
            answer = requests.ask(request)
            if answer is not None:
                del self.unanswered[request.id]
                self._check_rescaled(request, answer)
                self.counts["answers" if answer.error is None else "refusals"] += 1
                self.counts["answers_after_failed_tries"] += tries > 0

    def _check_rescaled(self, request: Request, answer: Reply) -> None:
        """Check that an attempt had the numbers of tasks that a rescale asked for."""
        if request.kind is RequestKind.RESCALE and answer.error is None:
            self.counts["rescales_answered"] += 1
            if not any(request.is_met_by(deployment.parallelism) for deployment in self.record.deployments.values()):
                raise RuntimeError(f"the rescale to {dict(request.asked)} was answered, and no attempt had these tasks")

    # -- runs of the job -----------------------------------------------------------------------------------------------

    def _is_to_stop_at(self, cut: Cut) -> bool:
        if self.plan.stop_when is None:
            return False
        self.watched.add(cut.epoch)
        output = self.services.store
        files = SnapshotsInMemory(cut.snapshots)
        return self.plan.stop_when(CutView(outline_of(cut), files, self.plan, output.committed, output.prepared))

    def _settle(self) -> None:
        """Check the cores that lead. If a run has ended, do what its user does then."""
        for driver in (self.driver, *(sleeper.driver for sleeper in self.sleepers if sleeper.is_awake)):
            driver.supervisor.check()
        while (ending := self.driver.ending) is not None and not self.is_over:
            match ending:
                case RunEnding.FINISHED:
                    self._repeat_requests()
                    self.is_finished = True
                    self.record.finished = True
                    self.driver.clean_up()
                    self.note(FinishedEvent(self.supervisor.attempt))
                case RunEnding.STOPPED:
                    self._repeat_requests()
                    self.answered_stops.add(run_of(self.supervisor.chain.claimant))
                    if self.dies_after_stop:
                        self.dies_after_stop = False
                        self.counts["deaths_after_stops"] += 1
                        self.take_over()
                        continue
                    self.driver.clean_up()
                    # Every process has ended, and another run continues from the last cut.
                    self.counts["stops"] += 1
                    self._begin_after_all_ended()
                case RunEnding.FENCED:
                    self.is_fenced = True
                case _:
                    self._on_failed()

    def _on_failed(self) -> None:
        """The run has failed. If the cut that it was asked for is gone, its user asks for the latest instead."""
        claimant = self.supervisor.chain.claimant
        if claimant in self.record.in_vain:
            self.driver.clean_up()
            self._begin_after_all_ended()
        elif claimant in self.record.asked and all(entry.claimant != claimant for _, entry in self.store.history):
            del self.record.asked[claimant]
            self._begin_again()
        else:
            self.failure = self.why_ended

    def _begin_after_all_ended(self) -> None:
        self.hosts.clear()
        self.reports.clear()
        self._begin_again()

    def _begin_again(self, epoch: Epoch | None = None, *, replaces_output: bool = False) -> None:
        self.runs += 1
        self._hand_over(epoch, replaces_output=replaces_output)

    def _hand_over(self, epoch: Epoch | None = None, *, replaces_output: bool = False) -> None:
        """Another supervisor takes over. It has no tasks yet, so deaths of earlier ones are not its failures."""
        self.dead.clear()
        self.unrestored.clear()
        self.store.reopen()
        self.driver = self._new_driver(self.deployment)
        if epoch is not None:
            self.record.asked[self.supervisor.chain.claimant] = epoch
        self.driver.begin(Beginning(epoch, replaces_output=replaces_output))

    def take_over(self, *, is_asleep: bool = False) -> None:
        """The supervisor has died, or is taken for dead, and a successor of the same run takes over."""
        if is_asleep:
            self.sleepers.append(SleepingSupervisor(self, self.driver))
        else:
            self.reports.clear()
        self.counts["takeovers"] += 1
        self._hand_over()

    def forget_fenced(self) -> None:
        """A supervisor that has woken up and found itself fenced ends, and removes what it believes to be its own."""
        for sleeper in [sleeper for sleeper in self.sleepers if sleeper.driver.is_over]:
            self.sleepers.remove(sleeper)
            sleeper.driver.clean_up()
            self.counts["woken_and_fenced"] += sleeper.driver.ending is RunEnding.FENCED

    def leader(self, attempt: Attempt) -> RunDriver | None:
        """The driver that leads an attempt, unless its supervisor is dead or asleep."""
        if attempt == self.supervisor.attempt:
            return self.driver
        return next((one.driver for one in self.sleepers if one.is_awake and one.attempt == attempt), None)

    def _new_driver(self, deployment: Deployment) -> RunDriver:
        self.claimants += 1
        options = self.options
        claimant = claimant_of(f"run {self.runs}", f"claimant {self.claimants} of {options.seed}")
        supervisor = self.parts.supervisor(
            claimant, options.restarts, options.pipeline, self.begun, snapshots=options.snapshots
        )
        supervisor.coordinator_class = self.parts.coordinator
        ports = RunPorts(self, self, self, self, self, self)
        return self.parts.run_driver(supervisor, ports, deployment, options.retries)

    def _new_host(self, task: Task, restored: TaskRestore | None) -> Host:
        attempt = self.supervisor.attempt
        core = self.parts.core(task, attempt, encode, restored)
        self.services.attempt = attempt
        self.use_versions(attempt)
        runtime = self.parts.runtime(
            task, self.deployment, self.services, seed=self.options.seed, keyed_state=self.parts.keyed_state
        )
        if restored is None:
            runtime.open(None)
        else:
            runtime.open(restored.operators, restored.base)
            runtime.commit(restored.transactions)
        host = Host(core, runtime, self.deployment, self, self.options.flow, self.parts.driver)
        if runtime.waits:
            self.opened.append(runtime)
            self.calls.read_journal(host)
        return host


class SleepingSupervisor(RunObserver[SimulatedCut]):
    """A supervisor that is taken for dead and only sleeps, as one whose process is stopped or whose host hangs.

    Its successor begins meanwhile. When it wakes up it goes on with what it knew: it takes the step in the store that
    was due, hears what its tasks had reported, gives them orders, and removes what it believes to be dead. It shares
    only the store with its successor, so the chain alone can fence it. This is its driver, and the actors of its
    attempt that are still there.

    - is_awake: whether it has woken up.
    """

    def __init__(self, world: WorldPorts, driver: RunDriver) -> None:
        self.world = world
        self.driver = driver
        self.is_awake = False
        driver.ports = RunPorts(world, world, self, world, world, self)

    @property
    def attempt(self) -> Attempt | None:
        return None if self.driver.coordinator is None else self.driver.coordinator.attempt

    def wake(self, *, has_lost_tasks: bool) -> None:
        """Go on. It may find that processes of its tasks have died meanwhile."""
        self.is_awake = True
        if has_lost_tasks:
            self.driver.on_failure(self.driver.supervisor.attempt, "a process died")

    def place(self, cut: SimulatedCut | None, sizes: Sizes) -> Placed:
        """Place the tasks of an attempt that it has claimed before its successor."""
        return self.world.place(cut, sizes)

    def restore(self, attempt: Attempt, placed: Placed, cut: SimulatedCut | None) -> None:
        """Its processes take so long to start that none is there before it is fenced."""

    def start(self, order: StartTasks) -> None:
        """No task of its attempt starts: the processes are not there."""

    def tell(self, order: Trigger | Abort | TellToEnd | Complete | Compact) -> None:
        """Send an order to its task, if that is still of its attempt."""
        if isinstance(order, Compact):
            self.world.compactions.append((self.driver.supervisor.attempt, order))
            return
        is_abort = isinstance(order, Abort)
        if is_abort:
            self.world.note(Aborted(self.driver.supervisor.attempt, order.epoch))
        host = self.world.hosts.get(order.task)
        if host is not None and host.attempt == self.attempt:
            self.world.give(host, order, is_abort=is_abort)

    def stop(self) -> None:
        """Its tasks may go on, as zombies do."""
