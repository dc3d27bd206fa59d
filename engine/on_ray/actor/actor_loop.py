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
from collections.abc import Callable, Mapping
from typing import Any

from backedge.engine.io.files.services import FileServices
from backedge.engine.on_ray.actor.actor_channels import ActorChannels
from backedge.engine.on_ray.actor.background import Answered, Background, Outlived
from backedge.engine.on_ray.actor.journal_writer import Kept
from backedge.engine.on_ray.actor.labelled_output import label_of, printing_as
from backedge.engine.on_ray.actor.reports import EpochObserver, Reports
from backedge.engine.on_ray.actor.run_clock import RunClock
from backedge.engine.on_ray.actor.supervisor_watch import replace_silent
from backedge.engine.on_ray.actor.task_maker import TakeBack, TaskMaker
from backedge.engine.on_ray.actor.task_turns import IDLE_MS, TaskTurns
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.on_ray.planned_faults import EpochFaults, FaultDue
from backedge.engine.on_ray.tracing import call_spans
from backedge.engine.on_ray.transport.control_messages import (
    CONNECT_TIMEOUT_S,
    SUPERVISOR,
    Begin,
    Compacted,
    Counts,
    Die,
    FaultReached,
    Leader,
    Limit,
    Outcome,
    Progress,
    Published,
    Restored,
    Stop,
)
from backedge.engine.on_ray.transport.frames import Kind, pack_note, unpack_header, unpack_item
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.on_ray.transport.spill_space import SpillSpace
from backedge.engine.task.kept_inputs import Journal
from backedge.engine.task.pacing import SLICE_NS
from backedge.engine.task.ports import Ports
from backedge.graphs.ids import TaskId
from backedge.graphs.resource import resource_counts, take_opened
from backedge.graphs.task_errors import TaskError, describe
from backedge.graphs.versions import AttemptOverError
from backedge.recovery.protocol.orders import Compact, Complete, StartTasks
from backedge.recovery.protocol.protocol_errors import FencedError, ProtocolError, RescaleError
from backedge.recovery.stores.run_status import ResourceStatus
from backedge.recovery.stores.store_errors import StoreError

MESSAGES_MAX = 512
PROGRESS_MS = 250
LOAD_MS = 1_000
LOST_GRACE_S = 1.0
LAST_OF_CHANNEL = int(Kind.END)

MakeServices = Callable[[Callable[[str, str, list[Any]], None]], FileServices]
NO_JOURNALS: Mapping[TaskId, Journal] = {}


class ActorLoop:
    """One actor's part in one attempt.

    - counts: as last reported. outcome: the reason why the loop ends, once it does. has_left: it ends because the
      supervisor has died.
    - tasks, channels: the tasks in their turns, and what connects them. is_started: they run. early: messages for them
      that arrived before.
    - faults: the planned ones that wait for an epoch.
    - missing: the peers that have not been heard from; connected_by_s: the deadline for that. lost_at_s: when a broken
      link was found.
    - told_at_ms, loads_told_at_ms: when progress was told, and what the tasks do.
    """

    def __init__(
        self,
        begin: Begin,
        mailbox: Mailbox,
        store: TasksInFolder | None,
        make_services: MakeServices,
        take_back: TakeBack,
        journals: Mapping[TaskId, Journal] = NO_JOURNALS,
    ) -> None:
        self.begin = begin
        self.mailbox = mailbox
        self.clock = RunClock()
        self.counts = Counts()
        self.outcome: Outcome | None = None
        self.has_left = False
        self.is_started = False
        self.early: list[tuple[bytes, bytes]] = []
        self.background = Background(store, mailbox.wake, call_spans(begin.options.job), begin.attempt)
        self.maker = TaskMaker(
            begin, make_services(self._publish), take_back, journals, None if store is None else store.answers
        )
        for source, rate in begin.rates.items():
            self.maker.services.limit(source, rate)
        peers = {name: address for name, address in begin.addresses.items() if name != SUPERVISOR}
        names = sorted({task.actor for task in begin.deployment.tasks.values()})
        links = mailbox.links(peers, sender=1 + names.index(begin.actor))
        self.channels = ActorChannels(begin, mailbox, links)
        self.tasks = TaskTurns(begin.options, mailbox, self.channels, self.clock)
        silence_ms = None if begin.leader is None else begin.leader.silence_ms
        supervisor = mailbox.links({SUPERVISOR: begin.addresses[SUPERVISOR]}, silence_ms=silence_ms)
        self.reports = Reports(begin, supervisor[SUPERVISOR])
        self.faults = EpochFaults(begin.kills, has_cut=any(begin.restores.values()))
        self.space = SpillSpace(begin.options.spill_bytes_max)
        self.missing = set(peers)
        self.connected_by_s = time.monotonic() + CONNECT_TIMEOUT_S
        self.lost_at_s: float | None = None
        self.told_at_ms = 0
        self.loads_told_at_ms = 0

    def _set_up(self) -> None:
        """Create the tasks of this actor with their restored state."""
        for task in self.maker.own_tasks():
            printing_as.set(label_of(self.begin.options.job, task))
            observer = self.reports.observers[task.id] = EpochObserver(task, self.faults)
            background = self.background
            ports = Ports(self.channels, background, self.clock, self.reports, background, self.space, observer)
            driver = self.tasks.drivers[task.id] = self.maker.make(task, ports)
            self.clock.at_least(driver.runtime.restored_ms)
            # The restore of many tasks may take long, and is no silence.
            self._tell_progress()
            self.reports.link.flush()
        self.tasks.connect()

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Take part until told to stop, or until something fails."""
        try:
            self._greet()
            self._set_up()
            self._say_restored()
            has_more = True
            while self.outcome is None:
                has_more = self._turn(0 if has_more else self.tasks.idle_ms() if self.is_started else IDLE_MS)
            return self.outcome
        except FaultDue as due:
            return self._await_death(due)
        except (TaskError, StoreError, RescaleError) as error:
            return Outcome("broken", str(error), self._counted(), _picklable(error))
        except ImportError as error:
            # Of pyarrow, for the first cut, or of a class of a record that has come. Those of functions are TaskErrors.
            reason = f"actor {self.begin.actor} cannot import what it needs: {describe(error)}"
            return Outcome("broken", f"{reason}: repair the installation on {platform.node()}", self._counted())
        except (AttemptOverError, FencedError) as error:
            return Outcome("failed", f"actor {self.begin.actor} cannot go on: {error}", self._counted())
        except ProtocolError as error:
            return Outcome("failed", f"{type(error).__name__} in actor {self.begin.actor}: {error}", self._counted())
        finally:
            self.background.close()
            for driver in self.tasks.drivers.values():
                driver.runtime.close()
            self.background.close_after_calls(take_opened())
            self.reports.link.flush()
            self.mailbox.close(last=None if self.has_left else self.reports.link)

    def leave(self) -> None:
        """Have the loop end, from any thread: its supervisor has died."""
        self.has_left = True
        self.outcome = Outcome("stopped")
        self.mailbox.wake()

    def _greet(self) -> None:
        """Announce this actor to everyone before it restores its state, which may take long."""
        self._tell_progress()
        for name in self.missing:
            link = self.channels.links[name]
            if name in self.channels.peers:
                # Not with the first large batch: its receiver may be busy, and the batches behind it would take long.
                link.offer_memory()
            link.send(pack_note(Kind.HELLO, self.begin.attempt, self.begin.actor))
        self.mailbox.flush()

    def _turn(self, wait_ms: int) -> bool:
        """Serve everything once; return whether there may be more to do before anything arrives."""
        messages = self.mailbox.receive(MESSAGES_MAX, wait_ms)
        began_ns = self.clock.begin_turn()
        for header, payload in messages:
            self._on_message(header, payload)
        while self.background.done:
            self._on_done()
        if self.mailbox.posted:
            # The functions of the tasks may take long: what is said before does not wait for them.
            self.reports.link.flush()
        if self.channels.deliveries:
            self.channels.deliver()
        has_more = False
        if self.is_started:
            has_more = self.tasks.take(began_ns + SLICE_NS)
        elif self.missing and time.monotonic() > self.connected_by_s:
            silent = ", ".join(sorted(self.missing))
            self.outcome = Outcome("failed", f"actor {self.begin.actor} has not heard from {silent}", self._counted())
        if self.mailbox.posted:
            self.mailbox.flush()
        self.background.write_due()
        if self.clock.now_ms - self.told_at_ms >= PROGRESS_MS:
            self._tell_and_look_after()
        if self.mailbox.lost:
            self._on_lost_link()
        return has_more or bool(self.background.done) or self.tasks.can_go_on()

    def _tell_and_look_after(self) -> None:
        """Tell progress, repeat what may have been lost, and look after the links."""
        self.told_at_ms = self.clock.now_ms
        self._tell_progress()
        for driver in self.tasks.drivers.values():
            driver.repeat_credit(self.clock.steady_ms)
        self.reports.repeat()
        # The loop may sleep now.
        self.mailbox.flush()
        self.mailbox.look_after_links(self.begin.attempt)
        if self.begin.leader is not None and self.reports.link.is_silent() and self.outcome is None:
            self._replace(self.begin.leader)

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

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_message(self, header: bytes, payload: bytes) -> None:
        kind, attempt, index, number = unpack_header(header)
        if attempt != self.begin.attempt:
            self.counts.stale += kind != Kind.WAKE
        elif kind <= LAST_OF_CHANNEL:
            if not self.is_started:
                self.early.append((header, payload))
                return
            self.channels.receiving[index](unpack_item(kind, number, payload))
        elif kind == Kind.CREDIT:
            self.channels.on_credit(index, number, payload)
        elif kind == Kind.HELLO:
            self.missing.discard(pickle.loads(payload))
            self._say_restored()
        elif kind == Kind.ORDERS:
            for order in self.reports.orders_in(payload):
                self._obey(order)

    def _obey(self, order: Any) -> None:
        match order:
            case Stop():
                # The last figures of the attempt: many runs are over within a second.
                self.loads_told_at_ms = 0
                self._tell_progress()
                self.outcome = Outcome("stopped", counts=self._counted())
            case Die():
                os.kill(os.getpid(), signal.SIGKILL)
            case StartTasks():
                self._start()
            case Compact():
                self.background.compact(self.begin.attempt, order)
            case Limit(source, rate):
                self.maker.services.limit(source, rate)
            case _:
                self.faults.has_cut |= isinstance(order, Complete)
                self.tasks.drivers[order.task].obey(order)

    def _start(self) -> None:
        self.is_started = True
        self.mailbox.all_are_connected()
        self.tasks.start()
        early, self.early = self.early, []
        for header, payload in early:
            self._on_message(header, payload)

    def _on_done(self) -> None:
        done = self.background.done.popleft()
        if isinstance(done, Answered | Outlived) and isinstance(done.error, AttemptOverError):
            if isinstance(done, Answered):
                raise done.error
            return
        if isinstance(done, Compacted):
            self.reports.tell(done)
            return
        if isinstance(done, Outlived):
            for driver in self.tasks.drivers.values():
                driver.calls.on_outlived(done.operator, done.question, done.result, done.error)
            return
        driver = self.tasks.drivers[done.task]
        if isinstance(done, Kept):
            driver.calls.on_kept(done.answers)
        elif isinstance(done, Answered):
            driver.calls.on_answer(done.call_id, done.result, done.error)
        elif isinstance(done.failure, ImportError):
            raise done.failure
        else:
            size = 0 if done.files is None else done.files.layer.size
            driver.on_written(done.epoch, done.files, done.failure, size)

    # -- faults, output and progress -----------------------------------------------------------------------------

    def _await_death(self, due: FaultDue) -> Outcome:
        """Report a planned fault, and do nothing until the supervisor ends this process, or the attempt."""
        if due.records is not None:
            # Not added: what the same turn has processed before is not counted yet.
            self.tasks.drivers[due.task].records = due.records
        self._tell_progress()
        self.reports.tell(FaultReached(os.getpid(), due.kill, due.task))
        self.reports.link.flush()
        while self.outcome is None:
            for header, payload in self.mailbox.receive(MESSAGES_MAX, IDLE_MS):
                kind, attempt, _, _ = unpack_header(header)
                if kind == Kind.ORDERS and attempt == self.begin.attempt:
                    for order in self.reports.orders_in(payload):
                        if isinstance(order, Stop | Die):
                            self._obey(order)
        return self.outcome

    def _publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        is_kept = self.begin.deployment.plan.operators[sink].function.keeps
        if not (is_kept and self.begin.options.root is not None):  # otherwise it is read from its folder at the end
            self.reports.tell(Published(sink, transaction, records))

    def _say_restored(self) -> None:
        if not self.missing:
            self.reports.tell(Restored(tuple(self.tasks.drivers)))

    def _counted(self) -> Counts:
        """What the tasks of this actor have done so far."""
        self.tasks.count(self.counts)
        self.counts.spilled_bytes = self.space.bytes_ever
        self.counts.resources = {name: ResourceStatus(*each) for name, each in resource_counts().items()}
        return self.counts

    def _tell_progress(self) -> None:
        has_loads = self.is_started and self.clock.now_ms - self.loads_told_at_ms >= LOAD_MS
        if has_loads:
            self.loads_told_at_ms = self.clock.now_ms
        loads = self.tasks.loads() if has_loads else ()
        self.reports.tell_progress(Progress(self._counted(), self.tasks.remaining(), loads))


def _picklable(error: Exception) -> Exception | None:
    """The error in a form that can be sent to the driver: without its cause, which may be anything."""
    error.__cause__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - then its message must do
        return None
    return error
