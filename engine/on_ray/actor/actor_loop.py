"""The loop of one actor in one attempt: one mailbox for data, barriers and control, and the tasks in turn.

Each turn serves what has arrived, then every task once; what the tasks of this actor send each other is delivered as
it comes, so that it passes a slice of the graph in one turn. With nothing to do, the loop sleeps until a message comes,
a thread is done, a timer is due or a source may read on.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from engine.answering import Call
from engine.batch import encode
from engine.on_ray.actor.background import Answered, Background, TaskFilesStore
from engine.on_ray.actor.broken_rule import core_of
from engine.on_ray.actor.host import Host
from engine.on_ray.actor.run_clock import RunClock
from engine.on_ray.actor.slices import SLICE_NS, unit_of
from engine.on_ray.planned_faults import records_left
from engine.on_ray.transport.channel_ends import (
    Arrivals,
    Delivery,
    LocalChannel,
    OutChannel,
    RemoteBackEdge,
    RemoteChannel,
)
from engine.on_ray.transport.control_messages import (
    CONNECT_TIMEOUT_S,
    SUPERVISOR,
    Begin,
    Counts,
    Die,
    FaultReached,
    Outcome,
    Progress,
    Published,
    Report,
    Restored,
    Stop,
    TaskReport,
)
from engine.on_ray.transport.frames import Kind, pack_note, unpack_credit, unpack_header, unpack_item
from engine.on_ray.transport.mailbox import Mailbox
from engine.on_ray.transport.spill_space import SpillSpace
from engine.runtime import TaskRuntime
from engine.services import Services
from engine.task_errors import TaskError
from graphs.deployment import Channel, Task
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from graphs.io import Collect
from recovery.channels import Inbox
from recovery.cut import TaskSnapshot
from recovery.effects import Effect
from recovery.lines import LineEnd, Said
from recovery.messages import Data
from recovery.orders import Complete, StartTasks
from recovery.protocol_errors import ProtocolError
from recovery.restored import TaskRestore

MESSAGES_MAX = 512
IDLE_MS = 200
PROGRESS_MS = 250
LOST_GRACE_S = 1.0
READ_PAUSE_MS = 5
LAST_OF_CHANNEL, LAST_OF_DATA = int(Kind.END), int(Kind.MARKER)
BACK_EDGE_BYTES_MIN = 1_000_000
GOING_ROUND_BATCHES = 2
GOING_ROUND_RECORDS = 1_024

MakeServices = Callable[[Callable[[str, str, list[Any]], None]], Services]


class ActorLoop:
    """One actor's part in one attempt."""

    def __init__(
        self, begin: Begin, mailbox: Mailbox, store: TaskFilesStore | None, make_services: MakeServices
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
        self.has_cut = any(begin.restores.values())
        self.is_waiting_to_die = False
        self.early: list[tuple[bytes, bytes]] = []
        self.deliveries: deque[Delivery] = deque()
        self.background = Background(store, mailbox.wake)
        self.services = make_services(self._publish)
        self.make_core = core_of(begin.options.broken_rule)
        self.names = sorted({task.actor for task in begin.deployment.tasks.values()})
        peers = {name: address for name, address in begin.addresses.items() if name != SUPERVISOR}
        self.links = mailbox.links(peers, sender=1 + self.names.index(begin.actor))
        self.links |= mailbox.links({SUPERVISOR: begin.addresses[SUPERVISOR]})
        self.line = LineEnd()
        self.lost_at_s: float | None = None
        self.missing = set(peers)
        self.connected_by_s = time.monotonic() + CONNECT_TIMEOUT_S
        self.told_at_ms = 0
        self.take_max, self.read_max = begin.options.take_records_max, begin.options.read_records_max
        self.space = SpillSpace(begin.options.limits.spill_bytes_max)
        self.channels: list[Channel] = list(begin.deployment.channels.values())
        self.hosts: dict[TaskId, Host] = {}
        self.turns: list[Host] = []
        self.first_turn = 0
        self.reading: list[Host] = []
        self.waiting: list[Host] = []
        self.going_round: list[Inbox] = []

    # -- setting up ----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Make the tasks of this actor, with the state they take back."""
        for task in self.begin.deployment.tasks.values():
            if task.actor == self.begin.actor:
                host = self.hosts[task.id] = self._host(task, self.begin.restores.get(task.id))
                self.clock.at_least(host.runtime.restored_ms)
        self.turns = list(self.hosts.values())
        self.reading = [host for host in self.turns if host.is_source]
        self.waiting = [host for host in self.turns if host.waits]
        self.going_round = [
            host.core.inboxes[channel.id]
            for host in self.turns
            for channel in host.core.task.inputs
            if channel.is_back and channel.within_actor
        ]
        if self.going_round:
            # What is taken at a time goes on as objects, and is to be in the cache still.
            self.take_max = min(self.take_max, GOING_ROUND_RECORDS)
        self._connect()

    def _host(self, task: Task, restored: TaskRestore | None) -> Host:
        core = self.make_core(task, self.attempt, encode, restored)
        runtime = TaskRuntime(task, self.begin.deployment, self.services, seed=self.begin.options.seed)
        runtime.open(None if restored is None else restored.operators)
        try:
            if restored is not None:
                runtime.commit(restored.transactions)
        except BaseException:
            runtime.close()
            raise
        plan = self.begin.deployment.plan
        kinds = [plan.operators[name].kind for name in task.operators]
        calls_max = min((kind.calls_max for kind in kinds if kind.calls_max), default=0)
        host = Host(core, runtime, self, self.begin.options.limits.loop_bytes_max, calls_max, unit_of(kinds))
        left = records_left(self.begin.kills, task, self.begin.processed.get(task.id, 0))
        if left is not None:
            host.records_left = left
        return host

    def _connect(self) -> None:
        index_of = {channel.id: index for index, channel in enumerate(self.channels)}
        arrivals = {host.id: self._arrivals(host, index_of) for host in self.turns}
        for host in self.turns:
            outputs = {c.id: self._way(c, index_of[c.id], arrivals) for c in host.core.task.outputs}
            host.connect(outputs, arrivals[host.id])

    def _arrivals(self, host: Host, index_of: Mapping[ChannelId, int]) -> dict[ChannelId, Arrivals]:
        limits = self.begin.options.limits
        tasks, arrivals = self.begin.deployment.tasks, dict[ChannelId, Arrivals]()
        regular = sum(not channel.is_back for channel in host.core.task.inputs)
        for channel in host.core.task.inputs:
            link = None if channel.within_actor else self.links[tasks[channel.id.sender].actor]
            inbox, index = host.core.inboxes[channel.id], index_of[channel.id]
            window = max(limits.credit_bytes, BACK_EDGE_BYTES_MIN) if channel.is_back else limits.credit_bytes
            arrivals[channel.id] = Arrivals(
                inbox, self.attempt, index, link, window, regular, limits.loop_bytes_max, self.space
            )
        return arrivals

    def _way(self, channel: Channel, index: int, arrivals: Mapping[TaskId, Mapping[ChannelId, Arrivals]]) -> OutChannel:
        limits, receiver = self.begin.options.limits, channel.id.receiver
        if channel.within_actor:
            return LocalChannel(channel, self.deliveries, arrivals[receiver][channel.id])
        link = self.links[self.begin.deployment.tasks[receiver].actor]
        if not channel.is_back:
            return RemoteChannel(channel, index, self.attempt, link, window=1)
        window = max(limits.credit_bytes, BACK_EDGE_BYTES_MIN)
        return RemoteBackEdge(channel, index, self.attempt, link, window, limits.loop_bytes_max, self.space)

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
        except TaskError as error:
            return Outcome("broken", str(error), self.counts, _picklable(error))
        except ProtocolError as error:
            return Outcome("failed", f"{type(error).__name__} in actor {self.begin.actor}: {error}", self.counts)
        finally:
            self.background.close()
            for host in self.hosts.values():
                host.runtime.close()
            self.mailbox.close(last=self.links[SUPERVISOR])

    def _greet(self) -> None:
        """Let everyone know that this actor is there, before it takes its state back, which may take long."""
        self._tell_progress()
        for name in self.missing:
            self.links[name].send(pack_note(Kind.HELLO, self.attempt, self.begin.actor))

    def _turn(self, wait_ms: int) -> bool:
        """Serve everything once; says whether there may be more to do before anything arrives."""
        messages = self.mailbox.receive(MESSAGES_MAX, wait_ms)
        self.now_ms = self.clock.now_ms()
        self.turn_ns = began_ns = self.clock_ns()
        self.steady_ms = began_ns // 1_000_000
        for header, payload in messages:
            self._on_message(header, payload)
        if self.is_waiting_to_die:
            return False
        while self.background.done:
            self._on_done()
        self._deliver()
        has_more = bool(self.background.done)
        if self.is_started:
            has_more |= self._take_turns(began_ns + SLICE_NS)
        elif self.missing and time.monotonic() > self.connected_by_s:
            silent = ", ".join(sorted(self.missing))
            self.outcome = Outcome("failed", f"actor {self.begin.actor} has heard nothing of {silent}", self.counts)
        self.mailbox.flush()
        if self.is_waiting_to_die:
            return False
        if self.now_ms - self.told_at_ms >= PROGRESS_MS:
            self.told_at_ms = self.now_ms
            self._tell_progress()
            for host in self.turns:
                for arrivals in host.arrivals.values():
                    arrivals.repeat_credit(self.steady_ms)
            for said in self.line.due(_monotonic_ms()):
                self._send_report(said)
            self.mailbox.look_after_links(self.attempt)
        if self.mailbox.lost:
            self._on_lost_link()
        return has_more or any(map(Host.can_go_on, self.turns))

    def _on_lost_link(self) -> None:
        """What was sent over it is lost, and nobody has a copy: the attempt fails.

        A moment later: if the process at the other end has died, its death is the better reason.
        """
        if self.lost_at_s is None:
            self.lost_at_s = time.monotonic()
        elif time.monotonic() - self.lost_at_s >= LOST_GRACE_S and self.outcome is None:
            story = f"actor {self.begin.actor} has lost messages: {self.mailbox.lost[0]}"
            self.outcome = Outcome("failed", story, self.counts)

    def _take_turns(self, until_ns: int) -> bool:
        """Give every task a turn, until time is up: then the mailbox comes first, and the next task after it."""
        has_more = False
        turns, first = self.turns, self.first_turn
        for place in range(first, first + len(turns)):
            has_more |= turns[place % len(turns)].turn(self.take_max, self.read_max, until_ns)
            self._deliver()
            # Who waits for it need not wait for the other tasks of this actor.
            self.mailbox.flush()
            if self.clock_ns() >= until_ns:
                self.first_turn = (place + 1) % len(turns)
                return True
        self.first_turn = 0
        return has_more

    def _idle_ms(self) -> int:
        if self.is_waiting_to_die or not self.is_started:
            return IDLE_MS
        for host in self.reading:
            if not host.core.ended:
                return READ_PAUSE_MS
        left = [host.core.patience_until_ms - self.steady_ms for host in self.turns if host.core.awaits_time]
        due = [timer for host in self.waiting if (timer := host.runtime.next_timer_ms) is not None]
        left += [timer - self.now_ms for timer in due]
        return min(IDLE_MS, max(0, min(left))) if left else IDLE_MS

    def _deliver(self) -> None:
        """Let the tasks of this actor receive what they have sent each other."""
        deliveries, hosts, attempt = self.deliveries, self.hosts, self.attempt
        while deliveries:
            channel, item = deliveries.popleft()
            hosts[channel.receiver].receive(channel, attempt, item, type(item) is Data)

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_message(self, header: bytes, payload: bytes) -> None:
        kind, attempt, index, number = unpack_header(header)
        if attempt != self.attempt:
            self.counts.stale += kind != Kind.WAKE
        elif kind <= LAST_OF_CHANNEL:
            if not self.is_started:
                self.early.append((header, payload))
                return
            channel = self.channels[index].id
            item = unpack_item(kind, number, payload)
            self.hosts[channel.receiver].receive(channel, self.attempt, item, kind <= LAST_OF_DATA)
        elif kind == Kind.CREDIT:
            out = self.hosts[self.channels[index].id.sender].outputs[self.channels[index].id]
            if isinstance(out, RemoteChannel):
                out.on_credit(unpack_credit(number, payload))
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
                self.outcome = Outcome("stopped", counts=self.counts)
            case Die():
                os.kill(os.getpid(), signal.SIGKILL)
            case StartTasks():
                self._start()
            case _:
                self.has_cut |= isinstance(order, Complete)
                if not self.is_waiting_to_die:
                    self.hosts[order.task].obey(order)

    def _start(self) -> None:
        self.is_started = True
        self.mailbox.all_are_connected()
        for host in self.turns:
            host.start()
        early, self.early = self.early, []
        for header, payload in early:
            self._on_message(header, payload)

    def _on_done(self) -> None:
        done = self.background.done.popleft()
        host = self.hosts[done.task]
        if isinstance(done, Answered):
            host.on_answer(done.call_id, done.result, done.error)
        else:
            host.on_written(done.epoch, done.files, done.failure)

    # -- what the hosts need -------------------------------------------------------------------------------------

    def tell(self, report: Report) -> None:
        """Say something to the supervisor."""
        self._send_report(self.line.say(report, _monotonic_ms()))

    def _send_report(self, said: Said) -> None:
        note = (self.begin.actor, self.line.confirm(), said)
        self.links[SUPERVISOR].send(pack_note(Kind.REPORT, self.attempt, note))

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        """What a task's core has to say to the coordinator."""
        self.tell(TaskReport(task, effect, files))

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Callable[[], TaskSnapshot]) -> None:
        """Write a snapshot, in the background unless it is small."""
        self.background.write(attempt, epoch, task, snapshot)

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove what was written of an aborted epoch."""
        self.background.discard(attempt, epoch, task)

    def call(self, task: TaskId, call_id: int, call: Call) -> None:
        """Call outside."""
        self.background.call(task, call_id, call)

    def is_going_round(self) -> bool:
        """Whether loops within this actor have enough to do for a turn."""
        return any(len(inbox.queue) >= GOING_ROUND_BATCHES for inbox in self.going_round)

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        """A planned fault may be due."""
        for kill in self.begin.kills:
            is_due = kill.when == "epoch" and epoch is not None and epoch >= kill.amount
            # Probes use up numbers: at an epoch from 2 on there is to be a cut to restore.
            if is_due and (self.has_cut or kill.amount == 1) and kill.concerns(self.hosts[task].core.task):
                self._wait_to_die(kill, task)

    def on_records_due(self, task: TaskId) -> None:
        """The fault is due that counts the records of this task."""
        kills = [k for k in self.begin.kills if k.when == "records" and k.concerns(self.hosts[task].core.task)]
        self._wait_to_die(min(kills, key=lambda kill: kill.amount), task)

    def _wait_to_die(self, kill: Any, task: TaskId) -> None:
        if not self.is_waiting_to_die:
            self.is_waiting_to_die = True
            self._tell_progress()
            self.tell(FaultReached(os.getpid(), kill, task))

    def _publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        is_kept = isinstance(self.begin.deployment.plan.operators[sink].function, Collect)
        if not (is_kept and self.begin.options.root is not None):  # else it is read from its folder in the end
            self.tell(Published(sink, transaction, records))

    def _say_restored(self) -> None:
        if not self.missing:
            self.tell(Restored(tuple(self.hosts)))

    def _tell_progress(self) -> None:
        self.counts.spilled_bytes = self.space.bytes_ever
        self.counts.by_task = {host.id: host.records for host in self.turns}
        self.counts.in_loops = sum(arrivals.bytes_waiting for host in self.turns for arrivals in host.looping)
        # Not numbered: the next one says more.
        self._send_report(
            Said(0, Progress(self.counts, tuple(left for host in self.turns for left in host.remaining())))
        )


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _picklable(error: TaskError) -> TaskError | None:
    """The error as the driver can have it: without its cause, which may be anything."""
    error.__cause__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - then its words must do
        return None
    return error
