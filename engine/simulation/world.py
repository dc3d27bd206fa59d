"""The simulated world: hosts, network, store, coordinator. What can happen next is an event.

`enabled()` lists the events, `apply` makes one happen. The world decides nothing: a schedule (seeded, or every one
there is) picks the events. Time passes only by the event `tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from engine.batch import encode
from engine.cut_view import CutView
from engine.memory import MemoryServices
from engine.simulation.host import Host
from engine.simulation.options import Parts, WorldOptions
from engine.simulation.placement import Placement
from engine.simulation.record import Aborted, Completed, Event, Record, Restored, Started
from engine.simulation.record import Finished as FinishedEvent
from engine.simulation.store import SimulatedStore
from graphs.deployment import Task
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from graphs.plan import Plan
from recovery.coordinator import Coordinator
from recovery.cut import TaskSnapshot
from recovery.effects import Acknowledge, AcknowledgeEnd, Committed, Decline, Effect
from recovery.messages import Item
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
from recovery.restored import TaskRestore
from recovery.supervisor import Supervisor

TICK_MS = 10

Happening = tuple[Any, ...]
"""What can happen: the name of the event, then what it happens to."""


class World:
    """One run, from its start until it is finished, failed or fenced."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Sequence[Any]], options: WorldOptions, parts: Parts) -> None:
        self.plan = plan
        self.options = options
        self.parts = parts
        self.traces = options.traces
        self.services = MemoryServices(inputs)
        self.store = SimulatedStore()
        self.placement = Placement(plan, options.actors, parts.plan_restore)
        self.deployment = self.placement.deployment(options.parallelism)
        self.wanted_parallelism: int | None = None
        self.supervisor = Supervisor(options.restarts_max)
        self.coordinator: Coordinator | None = None
        self.hosts: dict[TaskId, Host] = {}
        self.zombies: list[Host] = []
        self.dead: set[TaskId] = set()
        self.wires: dict[ChannelId, deque[tuple[Attempt, Item]]] = {}
        self.reports: list[tuple[Attempt, TaskId, Effect]] = []
        self.appends: deque[AppendEntry] = deque()
        self.unrestored: dict[TaskId, TaskRestore | None] = {}
        self.now_ms = 0
        self.stopped_at: Epoch | None = None
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
        )
        self.obey(self.supervisor.begin(self.store.chain))

    # -- surroundings of the hosts -------------------------------------------------------------------------------

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None:
        """Put something on the wire."""
        self.wires.setdefault(channel, deque()).append((attempt, item))

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None:
        """Put something on the way to the coordinator."""
        self.reports.append((attempt, task, effect))

    def store_file(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None:
        """Make a snapshot durable."""
        self.store.files[(attempt, epoch, snapshot.task)] = snapshot

    def drop_file(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the file of an aborted epoch."""
        self.store.files.pop((attempt, epoch, task), None)

    def note(self, event: Event) -> None:
        """Keep the trace of the live attempt."""
        if self.traces and event.attempt == self.supervisor.attempt:
            self.record.trace.append(event)

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
        return found

    def _enabled_at(self, task: TaskId, host: Host) -> list[Happening]:
        found: list[Happening] = [("take", task, channel) for channel in host.core.ready()]
        if host.aborts:
            found.append(("abort", task))
        if host.is_source and not host.core.is_ending and not host.core.ended:
            if not host.runtime.exhausted:
                found.append(("produce", task))
            elif not host.core.busy:
                found.append(("exhaust", task))
        for epoch in host.captures:
            if epoch not in host.encoded:
                found.append(("encode", task, epoch))
            elif epoch in host.writes:
                found.append(("write", task, epoch))
        if not host.core.ended:
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
        """Let it happen."""
        getattr(self, f"_do_{event[0]}")(*event[1:])

    def _do_receive(self, channel: ChannelId) -> None:
        attempt, item = self.wires[channel].popleft()
        self._at(channel.receiver).receive(channel, attempt, item, self)

    def _do_take(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).take(channel, self)

    def _do_produce(self, task: TaskId) -> None:
        self._at(task).produce(self)

    def _do_exhaust(self, task: TaskId) -> None:
        self._at(task).exhaust(self)

    def _do_timer(self, task: TaskId) -> None:
        self._at(task).fire_timers(self)

    def _do_answer(self, task: TaskId, call: int) -> None:
        self._at(task).answer(call, self)

    def _do_encode(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).encode_some(epoch, self.options.entries_max)

    def _do_write(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).write(epoch, self)

    def _do_fail_write(self, task: TaskId, epoch: Epoch | None) -> None:
        self._at(task).fail_write(epoch, self)

    def _do_order(self, task: TaskId) -> None:
        host = self._at(task)
        order = host.orders.popleft()
        if isinstance(order, StartTasks):
            host.start(self)
        else:
            host.obey(order, self)

    def _do_abort(self, task: TaskId) -> None:
        host = self._at(task)
        host.obey(host.aborts.popleft(), self)

    def _do_tick(self) -> None:
        self.now_ms += TICK_MS
        for host in self.hosts.values():
            host.offers = None
        if self.coordinator is not None:
            self.obey(self.coordinator.on_tick(self.now_ms))

    def _do_report(self, index: int) -> None:
        attempt, task, effect = self.reports.pop(index)
        coordinator = self.coordinator
        if coordinator is None:
            return
        match effect:
            case Acknowledge(epoch, report):
                self.obey(coordinator.on_acknowledge(task, attempt, epoch, report, self.now_ms))
            case AcknowledgeEnd():
                self.obey(coordinator.on_task_ended(task, attempt, effect, self.now_ms))
            case Decline(epoch, reason):
                self.obey(coordinator.on_decline(task, attempt, epoch, reason, self.now_ms))
            case Committed(epoch):
                if attempt == self.supervisor.attempt:
                    self.obey(coordinator.on_committed(task, epoch))
            case _:
                raise TypeError(f"{effect} is no report")

    def _do_lose_report(self, index: int) -> None:
        del self.reports[index]

    def _do_append(self) -> None:
        append = self.appends.popleft()
        if self.store.create(append.number, append.entry):
            self.obey(self.supervisor.on_appended(append.entry))
            if isinstance(append.entry, Manifest):
                self._complete(append.entry)
        else:
            self.obey(self.supervisor.on_taken(append.number, self.store.chain))

    def _do_fail_append(self) -> None:
        append = self.appends.popleft()
        if isinstance(append.entry, Manifest) and self.coordinator is not None:
            self.obey(self.coordinator.on_manifest_failed(append.entry.epoch, "the disk is full", self.now_ms))
        else:
            self.appends.append(append)

    def _do_restore(self, task: TaskId) -> None:
        restored = self.unrestored.pop(task)
        self.hosts[task] = self._new_host(self.deployment.tasks[task], restored)
        self.note(Restored(self.supervisor.attempt, task, restored))
        self.obey(self.supervisor.on_restored(task, self.supervisor.attempt))

    def _do_crash(self, tasks: tuple[TaskId, ...]) -> None:
        for task in tasks:
            self.hosts.pop(task, None)
            self.unrestored.pop(task, None)
            self.dead.add(task)

    def _do_notice(self) -> None:
        self.dead.clear()
        self._restart("a process died")

    def _do_kill_coordinator(self) -> None:
        self.reports.clear()
        self._begin_again(Supervisor(self.options.restarts_max))

    def _do_zombie(self, index: int, event: Happening) -> None:
        host = self.zombies[index]
        match event:
            case ("take", channel):
                host.take(channel, self)
            case ("produce",):
                host.produce(self)
            case ("write", epoch):
                host.write(epoch, self)
            case ("encode", epoch):
                host.encode_some(epoch, self.options.entries_max)
            case _:
                host.obey(host.orders.popleft(), self)

    # -- the coordinator's side ----------------------------------------------------------------------------------

    def obey(self, orders: Sequence[Order]) -> None:
        """Carry out what coordinator and supervisor say."""
        for order in orders:
            match order:
                case Abort(task, epoch, _):
                    self.note(Aborted(self.supervisor.attempt, epoch))
                    if task in self.hosts:
                        self._at(task).aborts.append(order)
                case Trigger(task) | TellToEnd(task) | Complete(task):
                    if task in self.hosts:
                        self.hosts[task].orders.append(order)
                case WriteManifest(manifest):
                    self.obey(self.supervisor.append(manifest))
                case AppendEntry():
                    self.appends.append(order)
                case RestoreTasks(attempt, epoch):
                    self._place(attempt, epoch)
                case StartTasks():
                    self._start(order)
                case DropCut(epoch):
                    self.store.drop(epoch)
                    self.supervisor.on_dropped(epoch)
                case FailAttempt(reason):
                    self._restart(reason)
                    return
                case FailRun(reason):
                    self.failure = reason
                case Fenced():
                    self.is_fenced = True
                case Finished():
                    self.is_finished = True
                    self.record.finished = True
                    self.supervisor.on_finished()
                    self.note(FinishedEvent(self.supervisor.attempt))

    def _complete(self, manifest: Manifest) -> None:
        cut = self.store.cut(manifest, self.plan.hash)
        self.record.cuts[manifest.epoch] = cut
        self.note(Completed(self.supervisor.attempt, manifest.epoch))
        coordinator = self.coordinator
        if coordinator is None:
            return
        self.obey(coordinator.on_manifest_written(manifest.epoch, self.now_ms))
        if self.plan.stop_when is not None and self.coordinator is coordinator:
            output = self.services.store
            if self.plan.stop_when(CutView(cut, self.plan, output.committed, output.prepared)):
                self.stopped_at = manifest.epoch
                self.obey(coordinator.on_stop(manifest.epoch))

    def _restart(self, reason: str) -> None:
        self.coordinator = None
        self.appends.clear()
        self.unrestored.clear()
        self.obey(self.supervisor.on_failure(reason, self.store.chain))

    def _begin_again(self, supervisor: Supervisor) -> None:
        self.coordinator = None
        self.appends.clear()
        self.unrestored.clear()
        self.supervisor = supervisor
        self.obey(supervisor.begin(self.store.chain))

    def _place(self, attempt: Attempt, epoch: Epoch | None) -> None:
        """Deploy the attempt, with another parallelism if one is wanted and the cut allows it."""
        cut = None if epoch is None else self.store.cut(self.store.manifest(epoch), self.plan.hash)
        wanted, self.wanted_parallelism = self.wanted_parallelism, None
        placed = self.placement.place(self.deployment, cut, wanted)
        self.deployment, self.unrestored = placed.deployment, placed.restores
        for task in self.hosts.keys() - self.deployment.tasks.keys():
            del self.hosts[task]
        self.store.note_parallelism(attempt, self.deployment)
        self.record.deployments[attempt] = self.deployment
        self.note(Started(attempt, epoch))
        self.dead.clear()
        self.supervisor.on_placed(self.deployment.tasks)

    def _new_host(self, task: Task, restored: TaskRestore | None) -> Host:
        attempt = self.supervisor.attempt
        core = self.parts.core(task, attempt, encode, restored)
        runtime = self.parts.runtime(
            task, self.deployment, self.services, seed=self.options.seed, keyed_state=self.parts.keyed_state
        )
        runtime.open(None if restored is None else restored.operators)
        if restored is not None:
            runtime.commit(restored.transactions)
        return self.parts.host(core, runtime, self.deployment, self.options.records_max)

    def _start(self, order: StartTasks) -> None:
        for host in self.hosts.values():
            host.orders.append(order)
        self.coordinator = self.parts.coordinator(
            self.deployment,
            order.attempt,
            self.options.snapshots,
            self.supervisor.next_epoch,
            self.supervisor.periodic_cuts(),
            self.now_ms,
        )
