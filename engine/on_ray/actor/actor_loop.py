"""The loop of one actor in one attempt: one mailbox for data, barriers and control, and the tasks in turn.

Each turn serves the mailbox, then every task once. Messages between tasks of this actor are delivered immediately, so a
record can pass through a whole slice of the graph in one turn. If there is nothing to do, the loop sleeps until a
message arrives, a thread is done, a timer is due, or a source may read on.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from backedge.engine.batch import encode
from backedge.engine.channel_ends import Arrivals, SendCredit, SendItem
from backedge.engine.driver_ports import FlowLimits, Observer, Ports
from backedge.engine.kept_inputs import Journal, KeepingRuntime, KeepingServices
from backedge.engine.on_ray.actor.background import Answered, Background, TaskFilesStore
from backedge.engine.on_ray.actor.broken_rule import core_of
from backedge.engine.on_ray.actor.labelled_output import label_of, printing_as
from backedge.engine.on_ray.actor.run_clock import RunClock
from backedge.engine.on_ray.actor.supervisor_watch import replace_silent
from backedge.engine.on_ray.planned_faults import CountdownRuntime, RecordsDue, records_left
from backedge.engine.on_ray.tracing import call_spans
from backedge.engine.on_ray.transport.control_messages import (
    CONNECT_TIMEOUT_S,
    SUPERVISOR,
    Begin,
    Compacted,
    Counts,
    Die,
    EpochTimes,
    FaultReached,
    Leader,
    Outcome,
    Progress,
    Published,
    Report,
    Restored,
    Stop,
    TaskRemaining,
    TaskReport,
)
from backedge.engine.on_ray.transport.frames import (
    Kind,
    pack_credit,
    pack_item,
    pack_note,
    unpack_credit,
    unpack_header,
    unpack_item,
)
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.on_ray.transport.spill_space import SpillSpace
from backedge.engine.runtime import TaskRuntime
from backedge.engine.services import Services
from backedge.engine.slices import SLICE_NS
from backedge.engine.state import KeyedState, WholeState
from backedge.engine.task_driver import TaskDriver
from backedge.engine.task_errors import TaskError, describe
from backedge.engine.task_load import TaskLoad, WorkTimes, load_of
from backedge.graphs.deployment import Channel, Task
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.effects import Acknowledge, Effect
from backedge.recovery.lines import LineEnd, Said
from backedge.recovery.messages import Item
from backedge.recovery.orders import Compact, Complete, StartTasks
from backedge.recovery.protocol_errors import ProtocolError, RescaleError
from backedge.recovery.rescale import RestorePlan
from backedge.recovery.restored import TaskRestore
from backedge.recovery.stores.store_errors import StoreError

MESSAGES_MAX = 512
IDLE_MS = 200
PROGRESS_MS = 250
LOAD_MS = 1_000
LOST_GRACE_S = 1.0
READ_PAUSE_MS = 5
LAST_OF_CHANNEL = int(Kind.END)
GOING_ROUND_BATCHES = 2
GOING_ROUND_RECORDS = 1_024

MakeServices = Callable[[Callable[[str, str, list[Any]], None]], Services]
TakeBack = Callable[[RestorePlan], TaskRestore]
Receive = Callable[[Item], None]
NO_JOURNALS: Mapping[TaskId, Journal] = {}


class _EpochObserver(Observer):
    """Notes when an epoch reaches a task and when the task captures. Reports captures to the actor."""

    __slots__ = ("_begun_ns", "_captured_ns", "_on_captured")

    def __init__(self, on_captured: Callable[[TaskId, Epoch | None], None]) -> None:
        self._on_captured = on_captured
        self._begun_ns: dict[Epoch, int] = {}
        self._captured_ns: dict[Epoch, int] = {}

    def on_epoch(self, task: TaskId, epoch: Epoch) -> None:
        self._begun_ns.setdefault(epoch, time.monotonic_ns())

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        if epoch is not None:
            self._captured_ns[epoch] = time.monotonic_ns()
        self._on_captured(task, epoch)

    def times(self, epoch: Epoch) -> EpochTimes | None:
        """How long the task took for an epoch that it acknowledges now. Earlier epochs are forgotten."""
        begun_ns, captured_ns = self._begun_ns.get(epoch), self._captured_ns.get(epoch)
        for noted in (self._begun_ns, self._captured_ns):
            for earlier in [each for each in noted if each <= epoch]:
                del noted[earlier]
        if begun_ns is None or captured_ns is None:
            return None
        now_ns = time.monotonic_ns()
        return EpochTimes((captured_ns - begun_ns) // 1_000_000, (now_ns - captured_ns) // 1_000_000)


class _KeepingCountdown(KeepingRuntime, CountdownRuntime):
    """Keeps the inputs of a task in which a fault is due."""

    def __init__(self, journal: Journal, *arguments: Any, left: int, **options: Any) -> None:
        super().__init__(journal, left, *arguments, **options)


class ActorLoop:
    """One actor's part in one attempt: the ports of its tasks' drivers, and their turns.

    - clock, now_ms: the run's clock, and its time at the beginning of this turn. turn_ns, steady_ms: the same for a
      clock that never steps.
    - counts: as last reported. outcome: the reason why the loop ends, once it does.
    - has_left: it ends because the supervisor has died.
    - is_started: the tasks run. early: messages for them that arrived before. has_cut: there is a cut to restore.
    - is_waiting_to_die: a planned fault is due here, and nothing is done any more.
    - receiving: what receives the items of a channel, by its index; deliveries: items between tasks of this actor that
      are not yet received.
    - journals: those of the tasks whose inputs are kept.
    - links: the links to the other actors and to the supervisor. line: numbers the reports, and accepts the orders.
    - missing: the peers that have not been heard from; connected_by_s: the deadline for that. lost_at_s: when a broken
      link was found.
    - take_max, read_max: how many records a task takes from a channel, or reads, in a turn.
    - turns, first_turn: the drivers in their order, and the index of the next one. seats: each with the name of its
      output, and how it spends its time. observers: those of the tasks. reading, waiting: the drivers of sources,
      and those with timers or calls. going_round: the receiving ends of the loops within this actor.
    """

    def __init__(
        self,
        begin: Begin,
        mailbox: Mailbox,
        store: TaskFilesStore | None,
        make_services: MakeServices,
        take_back: TakeBack,
        journals: Mapping[TaskId, Journal] = NO_JOURNALS,
    ) -> None:
        self.begin = begin
        self.mailbox = mailbox
        self.attempt = begin.attempt
        self.clock = RunClock()
        self.now_ms = self.clock.now_ms()
        self.clock_ns = time.monotonic_ns
        self.turn_ns = self.clock_ns()
        self.steady_ms = self.turn_ns // 1_000_000
        self.counts = Counts()
        self.outcome: Outcome | None = None
        self.is_started = False
        self.has_left = False
        self.has_cut = any(begin.restores.values())
        self.is_waiting_to_die = False
        self.early: list[tuple[bytes, bytes]] = []
        self.receiving: dict[int, Receive] = {}
        self.deliveries: deque[tuple[Receive, Item]] = deque()
        self.background = Background(store, mailbox.wake, call_spans(begin.options.job))
        self.services = make_services(self._publish)
        self.take_back = take_back
        self.journals = journals
        self.make_core = core_of(begin.options.broken_rule)
        self.names = sorted({task.actor for task in begin.deployment.tasks.values()})
        peers = {name: address for name, address in begin.addresses.items() if name != SUPERVISOR}
        self.links = mailbox.links(peers, sender=1 + self.names.index(begin.actor))
        silence_ms = None if begin.leader is None else begin.leader.silence_ms
        self.links |= mailbox.links({SUPERVISOR: begin.addresses[SUPERVISOR]}, silence_ms=silence_ms)
        self.line = LineEnd()
        self.lost_at_s: float | None = None
        self.missing = set(peers)
        self.connected_by_s = time.monotonic() + CONNECT_TIMEOUT_S
        self.told_at_ms = 0
        self.load_told_at_ms = 0
        self.take_max, self.read_max = begin.options.take_records_max, begin.options.read_records_max
        self.space = SpillSpace(begin.options.limits.spill_bytes_max)
        self.channels: list[Channel] = list(begin.deployment.channels.values())
        self.index_of = {channel.id: index for index, channel in enumerate(self.channels)}
        limits = begin.options.limits
        self.limits = FlowLimits(
            limits.credit_bytes, loop_bytes_max=limits.loop_bytes_max, log_budget_bytes=limits.log_budget_bytes
        )
        self.drivers: dict[TaskId, TaskDriver] = {}
        self.turns: list[TaskDriver] = []
        self.seats: list[tuple[TaskDriver, str, WorkTimes]] = []
        self.observers: dict[TaskId, _EpochObserver] = {}
        self.first_turn = 0
        self.reading: list[TaskDriver] = []
        self.waiting: list[TaskDriver] = []
        self.going_round: list[Arrivals] = []

    # -- setting up ----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Create the tasks of this actor with their restored state."""
        for task in self.begin.deployment.tasks.values():
            if task.actor == self.begin.actor:
                printing_as.set(label_of(self.begin.options.job, task))
                plan = self.begin.restores.get(task.id)
                restored = None if plan is None else self.take_back(plan)
                driver = self.drivers[task.id] = self._driver(task, restored)
                self.clock.at_least(driver.runtime.restored_ms)
                # The restore of many tasks may take long, and is no silence.
                self._tell_progress()
                self.links[SUPERVISOR].flush()
        self.receiving = {
            index: partial(self.drivers[channel.id.receiver].receive, channel.id, self.attempt)
            for index, channel in enumerate(self.channels)
            if channel.id.receiver in self.drivers
        }
        self.turns = list(self.drivers.values())
        self.reading = [driver for driver in self.turns if driver.is_source]
        self.waiting = [driver for driver in self.turns if driver.waits]
        self.going_round = [
            driver.arrivals[channel.id]
            for driver in self.turns
            for channel in driver.core.task.inputs
            if channel.is_back and channel.within_actor
        ]
        if self.going_round:
            # Records taken together travel on as objects, and should still be in the cache.
            self.take_max = min(self.take_max, GOING_ROUND_RECORDS)
        for driver in self.turns:
            driver.connect()

    def _driver(self, task: Task, restored: TaskRestore | None) -> TaskDriver:
        deployment = self.begin.deployment
        core = self.make_core(task, self.attempt, encode, restored)
        runtime = self._runtime(task)
        if restored is None:
            runtime.open(None)
        else:
            runtime.open(restored.operators, restored.base)
        try:
            if restored is not None:
                runtime.commit(restored.transactions)
        except BaseException:
            runtime.close()
            raise
        observer = self.observers[task.id] = _EpochObserver(self._on_captured)
        ports = Ports(self, self.background, self, self, self.background, self.space, observer)
        return TaskDriver(core, runtime, ports, self.limits, deployment.plan)

    def _runtime(self, task: Task) -> TaskRuntime:
        left = records_left(self.begin.kills, task, self.begin.processed.get(task.id, 0))
        make = TaskRuntime if left is None else partial(CountdownRuntime, left)
        services, journal = self.services, self.journals.get(task.id)
        if journal is not None:
            services = KeepingServices(services, journal)
            make = KeepingRuntime if left is None else partial(_KeepingCountdown, left=left)
            make = partial(make, journal)
        options = self.begin.options
        # Where no snapshots are kept, no key need be noted.
        keyed_state = WholeState if options.root is None else KeyedState
        return make(task, self.begin.deployment, services, seed=options.seed, keyed_state=keyed_state)

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Take part until told to stop, or until something fails."""
        try:
            self._greet()
            self._set_up()
            self._say_restored()
            has_more = True
            while self.outcome is None:
                has_more = self._turn(0 if has_more else self._idle_ms())
            return self.outcome
        except (TaskError, StoreError, RescaleError) as error:
            return Outcome("broken", str(error), self._counted(), _picklable(error))
        except ImportError as error:
            # Of pyarrow, for the first cut, or of a class of a record that has come. Those of functions are TaskErrors.
            reason = f"actor {self.begin.actor} cannot import what it needs: {describe(error)}"
            return Outcome("broken", f"{reason}: repair the installation on {platform.node()}", self._counted())
        except ProtocolError as error:
            return Outcome("failed", f"{type(error).__name__} in actor {self.begin.actor}: {error}", self._counted())
        finally:
            self.background.close()
            for driver in self.drivers.values():
                driver.runtime.close()
            self.links[SUPERVISOR].flush()
            self.mailbox.close(last=None if self.has_left else self.links[SUPERVISOR])

    def leave(self) -> None:
        """Have the loop end, from any thread: its supervisor has died."""
        self.has_left = True
        self.outcome = Outcome("stopped")
        self.mailbox.wake()

    def _greet(self) -> None:
        """Announce this actor to everyone before it restores its state, which may take long."""
        self._tell_progress()
        tasks = self.begin.deployment.tasks
        receivers = {
            tasks[channel.id.receiver].actor
            for channel in self.channels
            if tasks[channel.id.sender].actor == self.begin.actor
        }
        for name in self.missing:
            if name in receivers:
                # Not with the first large batch: its receiver may be busy, and the batches behind it would take long.
                self.links[name].offer_memory()
            self.links[name].send(pack_note(Kind.HELLO, self.attempt, self.begin.actor))
        self.mailbox.flush()

    def _turn(self, wait_ms: int) -> bool:
        """Serve everything once; return whether there may be more to do before anything arrives."""
        messages = self.mailbox.receive(MESSAGES_MAX, wait_ms)
        self.turn_ns = began_ns = self.clock_ns()
        self.steady_ms = began_ns // 1_000_000
        self.now_ms = self.steady_ms + self.clock.ahead_ms
        for header, payload in messages:
            self._on_message(header, payload)
        if self.is_waiting_to_die:
            return False
        while self.background.done:
            self._on_done()
        if self.mailbox.posted:
            # The functions of the tasks may take long: what is said before does not wait for them.
            self.links[SUPERVISOR].flush()
        if self.deliveries:
            self._deliver()
        has_more = False
        if self.is_started:
            try:
                has_more = self._take_turns(began_ns + SLICE_NS)
            except RecordsDue as due:
                self._on_records_due(due)
        elif self.missing and time.monotonic() > self.connected_by_s:
            silent = ", ".join(sorted(self.missing))
            self.outcome = Outcome("failed", f"actor {self.begin.actor} has not heard from {silent}", self._counted())
        if self.mailbox.posted:
            self.mailbox.flush()
        if self.is_waiting_to_die:
            return False
        self.background.write_due()
        if self.now_ms - self.told_at_ms >= PROGRESS_MS:
            self.told_at_ms = self.now_ms
            self._tell_progress()
            for driver in self.turns:
                driver.repeat_credit(self.steady_ms)
            for said in self.line.due(_monotonic_ms()):
                self._send_report(said)
            # The loop may sleep now.
            self.mailbox.flush()
            self.mailbox.look_after_links(self.attempt)
            if self.begin.leader is not None and self.links[SUPERVISOR].is_silent() and self.outcome is None:
                self._replace(self.begin.leader)
        if self.mailbox.lost:
            self._on_lost_link()
        if has_more or self.background.done:
            return True
        # Usually a single task or two: a loop is faster than `any`.
        for driver in self.turns:  # noqa: SIM110
            if driver.can_go_on():
                return True
        return False

    def _on_lost_link(self) -> None:
        """Messages on the link are lost and cannot be sent again: fail the attempt.

        Wait a moment first: if the process at the other end has died, its death is the better reason.
        """
        if self.lost_at_s is None:
            self.lost_at_s = time.monotonic()
        elif time.monotonic() - self.lost_at_s >= LOST_GRACE_S and self.outcome is None:
            story = f"actor {self.begin.actor} has lost messages: {self.mailbox.lost[0]}"
            self.outcome = Outcome("failed", story, self._counted())

    def _replace(self, leader: Leader) -> None:
        """Have Ray end the supervisor's process, which leads nothing, and start a successor.

        The process may wake up at any moment until then, and where its whole host hangs even much later. That does no
        harm, because its successor has claimed the job in the chain.
        """
        replace_silent(leader)
        self.outcome = Outcome("failed", f"actor {self.begin.actor} misses its supervisor", self._counted())

    def _take_turns(self, until_ns: int) -> bool:
        """Give every task a turn until time is up. Then the mailbox comes first, and the next task after it."""
        has_more = False
        seats, first = self.seats, self.first_turn
        now_ns = self.clock_ns()
        for seat in seats[first:] + seats[:first] if first else seats:
            driver, label, times = seat
            if not driver.has_work():
                continue
            began_ns = now_ns
            if printing_as.get() is not label:
                printing_as.set(label)
            has_more |= driver.turn(self.take_max, self.read_max, until_ns)
            if self.deliveries:
                self._deliver()
            if self.mailbox.posted:
                # Receivers of this output need not wait for the other tasks of this actor.
                self.mailbox.flush()
            now_ns = self.clock_ns()
            times.on_turn(began_ns, now_ns, driver.is_held)
            if now_ns >= until_ns:
                self.first_turn = (seats.index(seat) + 1) % len(seats)
                return True
        self.first_turn = 0
        return has_more

    def _idle_ms(self) -> int:
        if self.is_waiting_to_die or not self.is_started:
            return IDLE_MS
        for driver in self.reading:
            if not driver.core.ended:
                return READ_PAUSE_MS
        idle_ms = IDLE_MS
        for driver in self.turns:
            if driver.core.awaits_time:
                idle_ms = min(idle_ms, driver.core.patience_until_ms - self.steady_ms)
        for driver in self.waiting:
            timer_ms = driver.runtime.next_timer_ms
            if timer_ms is not None:
                idle_ms = min(idle_ms, timer_ms - self.now_ms)
        return max(0, idle_ms)

    def _deliver(self) -> None:
        """Let the tasks of this actor receive each other's messages."""
        deliveries = self.deliveries
        while deliveries:
            receive, item = deliveries.popleft()
            receive(item)

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_message(self, header: bytes, payload: bytes) -> None:
        kind, attempt, index, number = unpack_header(header)
        if attempt != self.attempt:
            self.counts.stale += kind != Kind.WAKE
        elif kind <= LAST_OF_CHANNEL:
            if not self.is_started:
                self.early.append((header, payload))
                return
            self.receiving[index](unpack_item(kind, number, payload))
        elif kind == Kind.CREDIT:
            channel = self.channels[index].id
            self.drivers[channel.sender].on_credit(channel, unpack_credit(number, payload))
        elif kind == Kind.HELLO:
            self.missing.discard(pickle.loads(payload))
            self._say_restored()
        elif kind == Kind.ORDERS:
            confirmed, orders = pickle.loads(payload)
            self.line.on_confirmed(confirmed, _monotonic_ms())
            for said in orders:
                if self.line.accepts(said):
                    self._obey(said.what)

    def _obey(self, order: Any) -> None:
        match order:
            case Stop():
                # The last figures of the attempt: many runs are over within a second.
                self.load_told_at_ms = 0
                self._tell_progress()
                self.outcome = Outcome("stopped", counts=self._counted())
            case Die():
                os.kill(os.getpid(), signal.SIGKILL)
            case StartTasks():
                self._start()
            case Compact():
                self.background.compact(self.attempt, order)
            case _:
                self.has_cut |= isinstance(order, Complete)
                if not self.is_waiting_to_die:
                    self.drivers[order.task].obey(order)

    def _start(self) -> None:
        self.is_started = True
        job, now_ns = self.begin.options.job, self.clock_ns()
        self.seats = [(driver, label_of(job, driver.core.task), WorkTimes(now_ns)) for driver in self.turns]
        self.mailbox.all_are_connected()
        for driver in self.turns:
            driver.start()
        early, self.early = self.early, []
        for header, payload in early:
            self._on_message(header, payload)

    def _on_done(self) -> None:
        done = self.background.done.popleft()
        if isinstance(done, Compacted):
            self.tell(done)
            return
        driver = self.drivers[done.task]
        if isinstance(done, Answered):
            driver.on_answer(done.call_id, done.result, done.error)
        elif isinstance(done.failure, ImportError):
            raise done.failure
        else:
            size = 0 if done.files is None else done.files.layer.size
            driver.on_written(done.epoch, done.files, done.failure, size)

    # -- ports of the drivers ------------------------------------------------------------------------------------

    def way(self, channel: Channel) -> SendItem:
        """The way into the queue of this actor, or over the network to another one."""
        index, attempt = self.index_of[channel.id], self.attempt
        if channel.within_actor:
            deliver, receive = self.deliveries.append, self.receiving[index]
            return lambda item: deliver((receive, item))
        post = self.links[self.begin.deployment.tasks[channel.id.receiver].actor].post
        return lambda item: post(pack_item(attempt, index, item))

    def credit_way(self, channel: Channel) -> SendCredit | None:
        """The way over the network to the sender's actor."""
        if channel.within_actor:
            return None
        index, attempt = self.index_of[channel.id], self.attempt
        post = self.links[self.begin.deployment.tasks[channel.id.sender].actor].post
        return lambda credit: post(pack_credit(attempt, index, credit))

    def receiving_end(self, channel: Channel) -> Arrivals:
        """The receiving end of a channel within this actor."""
        return self.drivers[channel.id.receiver].arrivals[channel.id]

    def flush(self) -> None:
        """Send what was posted."""
        self.mailbox.flush()

    def is_going_round(self) -> bool:
        """Whether loops within this actor have enough to do for a turn."""
        # Most actors have no loop of their own: a loop is faster than a generator.
        for arrivals in self.going_round:  # noqa: SIM110
            if arrivals.batches_waiting() >= GOING_ROUND_BATCHES:
                return True
        return False

    def tell(self, report: Report) -> None:
        """Send a report to the supervisor."""
        self._send_report(self.line.say(report, _monotonic_ms()))

    def _send_report(self, said: Said) -> None:
        note = (self.begin.actor, self.line.confirm(), said)
        # Those of a turn leave together: each message wakes the supervisor, which takes a core from a task.
        self.links[SUPERVISOR].post(pack_note(Kind.REPORT, self.attempt, note))

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        """Report an effect of a task's core to the coordinator."""
        times = self.observers[task].times(effect.epoch) if isinstance(effect, Acknowledge) else None
        self.tell(TaskReport(task, effect, files, times))

    # -- faults and output ---------------------------------------------------------------------------------------

    def _on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        """Check whether a planned fault is due."""
        for kill in self.begin.kills:
            is_due = kill.when == "epoch" and epoch is not None and epoch >= kill.amount
            # Probes use up numbers: for an epoch from 2 on there must be a cut to restore.
            if is_due and (self.has_cut or kill.amount == 1) and kill.concerns(self.drivers[task].core.task):
                self._wait_to_die(kill, task)

    def _on_records_due(self, due: RecordsDue) -> None:
        """The fault that counts the records of this task is due."""
        driver = self.drivers[due.task]
        # Not added: what the same turn has processed before is not counted yet.
        driver.records = due.records
        kills = [k for k in self.begin.kills if k.when == "records" and k.concerns(driver.core.task)]
        self._wait_to_die(min(kills, key=lambda kill: kill.amount), due.task)

    def _wait_to_die(self, kill: Any, task: TaskId) -> None:
        if not self.is_waiting_to_die:
            self.is_waiting_to_die = True
            self._tell_progress()
            self.tell(FaultReached(os.getpid(), kill, task))
            self.links[SUPERVISOR].flush()

    def _publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        is_kept = self.begin.deployment.plan.operators[sink].function.keeps
        if not (is_kept and self.begin.options.root is not None):  # otherwise it is read from its folder at the end
            self.tell(Published(sink, transaction, records))

    def _say_restored(self) -> None:
        if not self.missing:
            self.tell(Restored(tuple(self.drivers)))

    def _counted(self) -> Counts:
        """What the tasks of this actor have done so far."""
        counts, drivers = self.counts, self.turns
        counts.spilled_bytes = self.space.bytes_ever
        counts.records = sum(driver.records for driver in drivers)
        counts.hops = sum(driver.hops for driver in drivers)
        counts.by_task = {driver.id: driver.records for driver in drivers}
        counts.in_loops = sum(arrivals.bytes_waiting for driver in drivers for arrivals in driver.looping)
        return counts

    def _tell_progress(self) -> None:
        remaining = tuple(
            TaskRemaining(driver.id, epoch, left) for driver in self.turns for epoch, left in driver.remaining().items()
        )
        # Not numbered, because the next report supersedes it.
        self._send_report(Said(0, Progress(self._counted(), remaining, self._loads())))

    def _loads(self) -> tuple[TaskLoad, ...]:
        if not self.is_started or self.now_ms - self.load_told_at_ms < LOAD_MS:
            return ()
        self.load_told_at_ms = self.now_ms
        now_ns = self.clock_ns()
        return tuple(load_of(driver, times, self.index_of, now_ns) for driver, _, times in self.seats)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _picklable(error: Exception) -> Exception | None:
    """The error in a form that can be sent to the driver: without its cause, which may be anything."""
    error.__cause__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - then its message must do
        return None
    return error
