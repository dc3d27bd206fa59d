"""The simulated world: hosts, network, store, coordinator. What can happen next is an event.

`enabled()` lists the events, `apply` makes one happen. The world decides nothing: a schedule (seeded, or every one
there is) picks the events. Time passes only by the event `tick`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from engine.answering import Answer, Call
from engine.batch import encode
from engine.channel_ends import Arrivals
from engine.compaction import put_together
from engine.cut_view import CutView
from engine.moving import move_whole
from engine.rerouting import reroute
from engine.simulation.calling import Calls
from engine.simulation.host import Host
from engine.simulation.placement import Placement
from engine.simulation.record import Aborted, Completed, Event, Record, Restored, Started
from engine.simulation.record import Finished as FinishedEvent
from engine.simulation.rehearsal import SimulatedServices
from engine.simulation.simulated_store import SimulatedStore
from engine.simulation.world_options import Parts, WorldOptions
from engine.slices import SLICE_NS
from graphs.deployment import Task
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from graphs.plan import Plan
from recovery.coordinator import Coordinator
from recovery.credit import Credit
from recovery.cut import Cut, TaskSnapshot
from recovery.effects import Acknowledge, AcknowledgeEnd, Committed, Decline, Effect, Report
from recovery.messages import Item
from recovery.orders import (
    Abort,
    AppendEntry,
    Compact,
    Complete,
    DropCut,
    FailAttempt,
    FailRun,
    Fenced,
    FileId,
    Finished,
    GivenUp,
    Manifest,
    Order,
    PauseRestart,
    RestoreTasks,
    StartTasks,
    Sweep,
    TellToEnd,
    Trigger,
    WriteManifest,
)
from recovery.outline import outline_of
from recovery.protocol_errors import FencedError
from recovery.requests import Request
from recovery.rescale import RestorePlan
from recovery.restored import TaskRestore
from recovery.supervisor import Stage, Supervisor
from recovery.taking_back import SnapshotsInMemory
from recovery.unpublished import with_unpublished

TICK_MS = 10
TOGETHER_RECORDS = 6
TURN_COSTS_NS = (0, 3_000_000)
"""What a look at the clock may cost in a turn: nothing, so that records are cheap, or more than a chunk should take."""

Happening = tuple[Any, ...]
"""What can happen: the name of the event, then what it happens to."""


class World:
    """One run, from its start until it is finished, failed or fenced."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Sequence[Any]], options: WorldOptions, parts: Parts) -> None:
        self.plan = plan
        self.options = options
        self.parts = parts
        self.traces = options.traces
        self.services = SimulatedServices(inputs)
        self.store = SimulatedStore()
        self.placement = Placement(plan, options.actors, parts.plan_restore)
        self.deployment = self.placement.deployment(options.parallelism)
        self.wanted_parallelism: int | None = None
        self.claimants = 0
        self.supervisor = self._new_supervisor()
        self.coordinator: Coordinator | None = None
        self.hosts: dict[TaskId, Host] = {}
        self.zombies: list[Host] = []
        self.dead: set[TaskId] = set()
        self.wires: dict[ChannelId, deque[tuple[Attempt, Item]]] = {}
        self.reports: list[tuple[Attempt, TaskId, Any]] = []
        self.appends: deque[AppendEntry] = deque()
        self.unknown: set[int] = set()
        self.hanging: list[AppendEntry] = []
        self.removals: list[tuple[Attempt, Sweep | DropCut]] = []
        self.compactions: list[tuple[Attempt, Compact]] = []
        self.compaction_reports: list[tuple[Attempt, Compact, int | None]] = []
        self.compacted: set[FileId] = set()
        self.unrestored: dict[TaskId, RestorePlan | None] = {}
        self.restored_cut: Cut | None = None
        self.calls = Calls()
        self.unanswered: dict[str, Request] = {}
        self.counts: Counter[str] = Counter()
        self.now_ms = 0
        self.stopped_at: Epoch | None = None
        # The cuts that the user's predicate has seen.
        self.watched: set[Epoch] = set()
        self.is_finished = False
        self.failure: str | None = None
        self.is_fenced = False
        store = self.services.store
        self.record = Record(
            plan=plan,
            inputs=dict(inputs),
            policy=options.snapshots.mode.value,
            committed=store.committed,
            prepared=store.prepared,
            chain=self.store.history,
        )
        self.obey(self.supervisor.begin(self.store.chain))

    # -- surroundings of the hosts -------------------------------------------------------------------------------

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None:
        """Put something on the wire."""
        self.wires.setdefault(channel, deque()).append((attempt, item))

    def send_credit(self, attempt: Attempt, channel: ChannelId, credit: Credit) -> None:
        """Here channels have no bounds, so nobody needs it."""

    def receiving_end(self, attempt: Attempt, channel: ChannelId) -> Arrivals | None:
        """That of a channel within an actor, if its receiver is there."""
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

    def count(self, what: str) -> None:
        """Count what a schedule has exercised."""
        self.counts[what] += 1

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None:
        """Put something on the way to the coordinator."""
        self.reports.append((attempt, task, effect))

    def store_file(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None:
        """Make a snapshot durable."""
        self.store.files[FileId(attempt, epoch, snapshot.task)] = snapshot

    def drop_file(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the file of an aborted epoch."""
        self.store.files.pop(FileId(attempt, epoch, task), None)

    def note(self, event: Event) -> None:
        """Keep the trace of the live attempt."""
        if event.attempt == self.supervisor.attempt:
            self._note_always(event)

    def _note_always(self, event: Event) -> None:
        if self.traces:
            self.record.trace.append(event)

    def answer(self, call: Call) -> Answer:
        """Make a call outside."""
        return self.calls.answer(call)

    # -- clients of the run --------------------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """A client asks for something. It repeats that with every tick until it has an answer."""
        self.unanswered[request.id] = request
        self.counts["requests"] += 1
        self.counts["requests_without_coordinator"] += self.coordinator is None
        self.supervisor.requests.ask(request)
        if self.coordinator is not None:
            self.obey(self.coordinator.serve_requests(self.now_ms))

    def _repeat_requests(self) -> None:
        requests = self.supervisor.requests
        for request in list(self.unanswered.values()):
            tries = requests.failed_tries.get(request.id, 0)
            answer = requests.ask(request)
            if answer is not None:
                del self.unanswered[request.id]
                self.counts["answers" if answer.error is None else "refusals"] += 1
                self.counts["answers_after_failed_tries"] += tries > 0

    # -- what can happen -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has come to an end, good or bad."""
        return self.is_finished or self.is_fenced or self.failure is not None

    def enabled(self) -> list[Happening]:
        """Everything that can happen next, faults and the passing of time aside."""
        found: list[Happening] = [("append",)] if self.appends else []
        found += [("restore", task) for task in self.unrestored]
        hosts = self.hosts
        for channel, wire in self.wires.items():
            if wire and (receiver := hosts.get(channel.receiver)) is not None and receiver.is_started:
                found.append(("receive", channel))
        for task, host in hosts.items():
            if host.orders:
                found.append(("order", task))
            if host.is_started:
                if host.offers is None:
                    host.offers = self._enabled_at(task, host)
                found += host.offers
        found += [("report", index) for index in self._first_reports()]
        found += [("remove", index) for index in range(len(self.removals))]
        found += [("compact", index) for index in range(len(self.compactions))]
        found += [("compacted", index) for index in range(len(self.compaction_reports))]
        found += [("land", index) for index in range(len(self.hanging))]
        return found

    def _enabled_at(self, task: TaskId, host: Host) -> list[Happening]:
        driver, core = host.driver, host.core
        ready = core.ready()
        if ready and driver.has_no_room():
            self.counts["full_channels"] += driver.room.is_full()
            ready = []
        found: list[Happening] = [("take", task, channel) for channel in ready]
        if self.options.slices:
            found += [("part", task, channel) for channel in ready if driver.may_take_part(channel)]
        if self.options.together:
            found += [("together", task, channel) for channel in ready if core.has_several(channel)]
        if self.options.turns:
            found += [("turn", task, cost_ns) for cost_ns in TURN_COSTS_NS if ready]
        if core.alignment.overdue(self.now_ms):
            found.append(("patience", task))
        if host.aborts:
            found.append(("abort", task))
        if host.is_source and core.life.takes:
            if host.runtime.exhausted:
                found += [("exhaust", task)] if not core.busy else []
            elif driver.may_read():
                found.append(("produce", task))
        found += [("encode", task, epoch) for epoch in driver.snapshots.to_encode()]
        found += [("write", task, epoch) for epoch in host.writes]
        if not core.ended:
            found += [("answer", task, call) for call in host.runtime.unanswered]
            due_ms = host.runtime.next_timer_ms
            if due_ms is not None and due_ms <= self.now_ms:
                found.append(("timer", task))
        return found

    def _at(self, task: TaskId) -> Host:
        """The host at which something happens now."""
        host = self.hosts[task]
        host.offers = None
        return host

    def _first_reports(self) -> list[int]:
        seen: set[tuple[Attempt, TaskId]] = set()
        first: list[int] = []
        for index, (attempt, task, _) in enumerate(self.reports):
            if (attempt, task) not in seen:
                seen.add((attempt, task))
                first.append(index)
        return first

    def apply(self, event: Happening) -> None:
        """Let it happen. A task whose attempt is over dies of what a sink refuses it."""
        try:
            getattr(self, f"_do_{event[0]}")(*event[1:])
        except (FencedError, OSError):
            if not self._loses_stale(event):
                raise

    def _loses_stale(self, event: Happening) -> bool:
        """Whether a task of an attempt that is over was at work; it is gone then."""
        match event:
            case ("zombie", index, _):
                del self.zombies[index]
                return True
            case (_, (TaskId() | ChannelId()) as found, *_):
                task = found.receiver if isinstance(found, ChannelId) else found
                if task in self.hosts and self.hosts[task].attempt < self.supervisor.attempt:
                    del self.hosts[task]
                    return True
            case _:
                pass
        return False

    def _do_receive(self, channel: ChannelId) -> None:
        attempt, item = self.wires[channel].popleft()
        self._at(channel.receiver).driver.receive(channel, attempt, item)

    def _do_take(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take(channel, 1)

    def _do_together(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take(channel, TOGETHER_RECORDS)

    def _do_part(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take_part(channel, 1)

    def _do_turn(self, task: TaskId, cost_ns: int) -> None:
        """Whatever the driver finds to do in a turn; each look at its clock costs that much."""
        host = self._at(task)
        host.cost_ns = cost_ns
        host.driver.turn(TOGETHER_RECORDS, self.options.records_max, host.turn_ns + SLICE_NS)
        host.cost_ns = 0

    def _do_patience(self, task: TaskId) -> None:
        self._at(task).driver.lose_patience()

    def _do_produce(self, task: TaskId) -> None:
        driver = self._at(task).driver
        driver.read(min(self.options.records_max, driver.readable()))

    def _do_exhaust(self, task: TaskId) -> None:
        self._at(task).driver.exhaust()

    def _do_timer(self, task: TaskId) -> None:
        self._at(task).driver.fire_timers()

    def _do_answer(self, task: TaskId, call: int) -> None:
        self._at(task).answer(call)

    def _do_encode(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).driver.snapshots.encode_piece(epoch, self.options.entries_max)

    def _do_write(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).store_snapshot(epoch)

    def _do_fail_write(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).fail_write(epoch)

    def _do_order(self, task: TaskId) -> None:
        host = self._at(task)
        order = self._opened_order(host, host.orders.popleft())
        if isinstance(order, StartTasks):
            host.start()
        elif order is not None:
            host.driver.obey(order)

    def _do_abort(self, task: TaskId) -> None:
        host = self._at(task)
        order = self._opened_order(host, host.aborts.popleft(), is_abort=True)
        if order is not None:
            host.driver.obey(order)

    def _give(self, host: Host, order: Order, *, is_abort: bool = False) -> None:
        """Put an order on its way."""
        (host.aborts if is_abort else host.orders).append(order)

    def _opened_order(self, host: Host, message: Any, *, is_abort: bool = False) -> Order | None:
        """The order that has arrived at this process; None if it is not to be obeyed."""
        return message

    def _opened_report(self, attempt: Attempt, task: TaskId, message: Any) -> Effect | None:
        """The report that has arrived; None if it does not count."""
        return message

    def _do_tick(self) -> None:
        self.now_ms += TICK_MS
        for host in self.hosts.values():
            host.offers = None
        self._repeat_requests()
        if self.coordinator is not None:
            self.obey(self.coordinator.on_tick(self.now_ms))
        elif self.supervisor.is_due(self.now_ms):
            self.obey(self.supervisor.resume(self.store.chain))

    def _do_report(self, index: int) -> None:
        attempt, task, message = self.reports.pop(index)
        effect = self._opened_report(attempt, task, message)
        coordinator = self.coordinator
        if coordinator is None or effect is None:
            return
        match effect:
            case Acknowledge(epoch, report):
                self._count_delta(coordinator, epoch, report)
                self.obey(coordinator.on_acknowledge(task, attempt, epoch, report, self.now_ms))
            case AcknowledgeEnd():
                self.obey(coordinator.on_task_ended(task, attempt, effect, self.now_ms))
            case Decline(epoch, reason, is_expected):
                self.counts["over_budget"] += is_expected
                self.obey(coordinator.on_decline(task, attempt, epoch, reason, self.now_ms, is_expected=is_expected))
            case Committed(epoch):
                if attempt == self.supervisor.attempt:
                    self.obey(coordinator.on_committed(task, epoch))
            case _:
                raise TypeError(f"{effect} is no report")

    def _do_lose_report(self, index: int) -> None:
        del self.reports[index]

    def _do_append(self) -> None:
        append = self.appends.popleft()
        self.unknown.discard(append.number)
        if self._create(append):
            outputs = frozenset[FileId]() if self.coordinator is None else self.coordinator.state_files.outputs
            self.obey(self.supervisor.on_appended(append.entry, outputs))
            if isinstance(append.entry, Manifest):
                self._complete(append.entry)
        else:
            self.obey(self.supervisor.on_taken(append.number, self.store.chain))

    def _do_lose_append_reply(self) -> None:
        """The entry is created, and nobody is told."""
        append = self.appends.popleft()
        self._create(append)
        self._ask_again(append)

    def _do_hang_append(self) -> None:
        """The entry will be created at any later time, or never if its number is taken by then."""
        append = self.appends.popleft()
        self.hanging.append(append)
        self._ask_again(append)

    def _ask_again(self, append: AppendEntry) -> None:
        self.unknown.add(append.number)
        self.obey(self.supervisor.on_unknown(append))

    def _do_land(self, index: int) -> None:
        self._create(self.hanging.pop(index))

    def _create(self, append: AppendEntry) -> bool:
        """A cut is complete when its manifest is in the chain, whether anybody is told or not."""
        entry, entries = append.entry, len(self.store.history)
        is_there = self.store.create(append.number, entry)
        if isinstance(entry, Manifest) and len(self.store.history) > entries:
            self.record.cuts[entry.epoch] = self.store.cut(entry, self.plan.hash)
            self.counts["cuts_with_compactions"] += self._names_compaction(entry)
            note = self.note if entry.attempt == self.supervisor.attempt else self._note_always
            note(Completed(entry.attempt, entry.epoch))
        return is_there

    def _do_remove(self, index: int) -> None:
        """At any time: whoever removes may have stalled, and others may have taken over since."""
        _, order = self.removals.pop(index)
        if isinstance(order, DropCut):
            self.store.drop(order.epoch)
        else:
            self.store.sweep(order)
            self.services.sweep(order)

    def _do_compact(self, index: int) -> None:
        """At any time: the attempt may be over, or the files may be gone."""
        attempt, order = self.compactions.pop(index)
        keys = self._compact(attempt, order)
        self.count("compactions" if keys is not None else "compactions_failed")
        self.compaction_reports.append((attempt, order, keys))

    def _do_compacted(self, index: int) -> None:
        attempt, order, keys = self.compaction_reports.pop(index)
        if self.coordinator is not None:
            self.coordinator.on_compacted(order.task, attempt, order.epoch, keys)

    def _do_fail_compaction(self, index: int) -> None:
        self.count("compactions_failed")
        self.compaction_reports.append((*self.compactions.pop(index), None))

    def _do_lose_compaction(self, index: int) -> None:
        """The process dies when the file is durable, and nobody is told."""
        self._compact(*self.compactions.pop(index))

    def _compact(self, attempt: Attempt, order: Compact) -> int | None:
        """Put files into one; returns how many entries it has, or None if some of them have been dropped meanwhile."""
        task, epoch, files = order
        if any(FileId(file.attempt, file.epoch, task) not in self.store.files for file in files):
            return None
        states, keys = put_together(self.store.snapshot(task, files).operators)
        self.store_file(attempt, epoch, TaskSnapshot(task, epoch, attempt, states, (), ()))
        self.compacted.add(FileId(attempt, epoch, task))
        return keys

    def _count_delta(self, coordinator: Coordinator, epoch: Epoch, report: Report) -> None:
        cut = coordinator.open.get(epoch)
        if report.base is not None:
            self.count("deltas")
        elif cut is not None and cut.base is not None and report.keys:
            self.count("full_again")

    def _do_go_back(self, epoch: Epoch) -> None:
        """Another run takes over, and is asked to go on from an older cut."""
        self.reports.clear()
        self._begin_again(epoch)

    def _do_fail_append(self) -> None:
        append = self.appends.popleft()
        if append.number in self.unknown:
            self._ask_again(append)
        elif isinstance(append.entry, Manifest) and self.coordinator is not None:
            self.obey(self.coordinator.on_manifest_failed(append.entry.epoch, "the disk is full", self.now_ms))
        else:
            self.appends.append(append)

    def _do_restore(self, task: TaskId) -> None:
        plan = self.unrestored.pop(task)
        restored = None if plan is None else self._take_back(plan)
        self.hosts[task] = self._new_host(self.deployment.tasks[task], restored)
        self.note(Restored(self.supervisor.attempt, task, restored))
        self.obey(self.supervisor.on_restored(task, self.supervisor.attempt))

    def _take_back(self, plan: RestorePlan) -> TaskRestore:
        cut = self.restored_cut
        # Only what the plan names: a plan that forgets a file cannot be carried out.
        files = SnapshotsInMemory({} if cut is None else {task: cut.snapshots[task] for task in plan.tasks})
        return self.parts.take_back(plan, files, self.deployment, reroute, move_whole)

    def _do_crash(self, tasks: tuple[TaskId, ...]) -> None:
        for task in tasks:
            self.hosts.pop(task, None)
            self.unrestored.pop(task, None)
            self.dead.add(task)

    def _do_notice(self) -> None:
        self.dead.clear()
        stage = self.supervisor.stage
        if stage is Stage.PAUSING or (stage is Stage.CLAIMING and not self.supervisor.restarts):
            return  # The attempt has failed already, or there was none yet: what has died is an earlier run's.
        self._restart("a process died")

    def _do_kill_coordinator(self) -> None:
        self.reports.clear()
        self._begin_again()

    def _do_zombie(self, index: int, event: Happening) -> None:
        host = self.zombies[index]
        match event:
            case ("take", channel):
                host.driver.take(channel, 1)
            case ("produce",):
                host.driver.read(self.options.records_max)
            case ("write", epoch):
                host.store_snapshot(epoch)
            case ("encode", epoch):
                host.driver.snapshots.encode_piece(epoch, self.options.entries_max)
            case _:
                order = self._opened_order(host, host.orders.popleft())
                if order is not None:
                    host.driver.obey(order)

    # -- the coordinator's side ----------------------------------------------------------------------------------

    def obey(self, orders: Sequence[Order]) -> None:
        """Carry out what coordinator and supervisor say."""
        for order in orders:
            match order:
                case Abort(task, epoch, _):
                    self.note(Aborted(self.supervisor.attempt, epoch))
                    if task in self.hosts:
                        self._give(self._at(task), order, is_abort=True)
                case Trigger(task) | TellToEnd(task) | Complete(task):
                    if task in self.hosts:
                        self._give(self.hosts[task], order)
                case WriteManifest(manifest):
                    self.obey(self.supervisor.append(manifest))
                case AppendEntry():
                    self.appends.append(order)
                case RestoreTasks(attempt, epoch, unpublished):
                    self._place(attempt, epoch, unpublished)
                case StartTasks():
                    self._start(order)
                case Compact():
                    self.compactions.append((self.supervisor.attempt, order))
                case DropCut() | Sweep():
                    self.removals.append((self.supervisor.attempt, order))
                case FailAttempt(reason):
                    self._restart(reason)
                    return
                case GivenUp():
                    continue
                case FailRun(reason):
                    self._on_failed(reason)
                case Fenced():
                    self.is_fenced = True
                case PauseRestart():
                    self.counts["restarts_put_off"] += 1
                case Finished():
                    self._repeat_requests()
                    if self.coordinator is not None and self.coordinator.is_stopping:
                        self._go_on_after_stop()
                        return
                    self.is_finished = True
                    self.record.finished = True
                    self.obey(self.supervisor.on_finished())
                    self.note(FinishedEvent(self.supervisor.attempt))

    def _complete(self, manifest: Manifest) -> None:
        cut = self.record.cuts[manifest.epoch]
        coordinator = self.coordinator
        if coordinator is None:
            return
        self.obey(coordinator.on_manifest_written(manifest.epoch, self.now_ms))
        if self.coordinator is coordinator and self._is_to_stop_at(cut):
            self.stopped_at = manifest.epoch
            self.obey(coordinator.on_stop(manifest.epoch))

    def _is_to_stop_at(self, cut: Cut) -> bool:
        """What the user's predicate says of a complete cut."""
        if self.plan.stop_when is None:
            return False
        self.watched.add(cut.epoch)
        output = self.services.store
        files = SnapshotsInMemory(cut.snapshots)
        return self.plan.stop_when(CutView(outline_of(cut), files, self.plan, output.committed, output.prepared))

    def _on_failed(self, reason: str) -> None:
        """The run has failed. If the cut that it was asked for is gone, its user asks for the latest instead."""
        claimant = self.supervisor.claimant
        if claimant in self.record.asked and all(entry.claimant != claimant for _, entry in self.store.history):
            del self.record.asked[claimant]
            self._begin_again()
        else:
            self.failure = reason

    def _restart(self, reason: str) -> None:
        self.coordinator = None
        self.appends.clear()
        self.unrestored.clear()
        self.obey(self.supervisor.on_failure(reason, self.store.chain, self.now_ms))

    def _new_supervisor(self) -> Supervisor:
        self.claimants += 1
        return self.parts.supervisor(f"claimant {self.claimants} of {self.options.seed}", self.options.restarts)

    def _go_on_after_stop(self) -> None:
        """The run was stopped and every process has ended: another run goes on from its last cut."""
        self.counts["stops"] += 1
        self.hosts.clear()
        self.reports.clear()
        self._begin_again()

    def _begin_again(self, epoch: Epoch | None = None) -> None:
        """Another run takes over. It has no tasks yet, so the deaths of earlier ones are none of its failures."""
        self.coordinator = None
        self.dead.clear()
        self.appends.clear()
        self.unrestored.clear()
        self.supervisor = self._new_supervisor()
        if epoch is not None:
            self.record.asked[self.supervisor.claimant] = epoch
        self.obey(self.supervisor.begin(self.store.chain, epoch))

    def _place(self, attempt: Attempt, epoch: Epoch | None, unpublished: tuple[str, ...]) -> None:
        """Deploy the attempt, with another parallelism if one is wanted and the cut allows it."""
        cut = None if epoch is None else self.store.cut(self.store.manifest(epoch), self.plan.hash)
        if epoch is not None:
            self._count_restore(self.store.manifest(epoch))
        wanted, self.wanted_parallelism = self.wanted_parallelism, None
        placed = self.placement.place(self.deployment, None if cut is None else outline_of(cut), wanted)
        self.restored_cut = cut
        self.deployment = placed.deployment
        self.unrestored = with_unpublished(placed.restores, unpublished, placed.deployment)
        for task in self.hosts.keys() - self.deployment.tasks.keys():
            del self.hosts[task]
        self.store.note_parallelism(attempt, self.deployment)
        self.record.deployments[attempt] = self.deployment
        if cut is not None and epoch not in self.watched:
            # The reply was lost, and only the chain shows that it is complete. The next cut may stop the run.
            self._is_to_stop_at(cut)
        self.note(Started(attempt, epoch))
        self.dead.clear()
        self.supervisor.on_placed(self.deployment.tasks)

    def _count_restore(self, manifest: Manifest) -> None:
        lists = manifest.states.values()
        self.counts["restored_from_deltas"] += any(len(files) > 1 for files in lists)
        self.counts["restored_from_earlier_attempts"] += any(f[0].attempt < f[-1].attempt for f in lists)
        self.counts["restored_from_compactions"] += self._names_compaction(manifest)

    def _names_compaction(self, manifest: Manifest) -> bool:
        first = (FileId(files[0].attempt, files[0].epoch, task) for task, files in manifest.states.items())
        return any(name in self.compacted for name in first)

    def _new_host(self, task: Task, restored: TaskRestore | None) -> Host:
        attempt = self.supervisor.attempt
        core = self.parts.core(task, attempt, encode, restored)
        self.services.attempt = attempt
        runtime = self.parts.runtime(
            task, self.deployment, self.services, seed=self.options.seed, keyed_state=self.parts.keyed_state
        )
        if restored is None:
            runtime.open(None)
        else:
            runtime.open(restored.operators, restored.base)
        if restored is not None:
            runtime.commit(restored.transactions)
        return Host(core, runtime, self.deployment, self, self.options.flow, self.parts.driver)

    def _start(self, order: StartTasks) -> None:
        for host in self.hosts.values():
            self._give(host, order)
        self.coordinator = self.parts.coordinator(
            self.deployment,
            order.attempt,
            self.options.snapshots,
            self.supervisor.next_epoch,
            self.supervisor.periodic_cuts(),
            self.now_ms,
            self.supervisor.requests,
            self.supervisor.restored_from,
            self.supervisor.restored_states,
        )
