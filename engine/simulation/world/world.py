"""The simulated world: what can happen next is an event.

`enabled()` lists the events and `apply` makes one happen. The world decides nothing: a schedule (seeded, or the
explorer, which tries all) picks the events. Time passes only by the event `tick`. The world implements the ports of
`RunDriver` (`world_ports.py`), and its hosts those of `TaskDriver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backedge.engine.io.files.file_errors import UnknownTransactionError
from backedge.engine.io.memory import OutputReplacedError
from backedge.engine.operators.rerouting import reroute
from backedge.engine.run.ports import RunEnding
from backedge.engine.simulation.checker.record import Restored
from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.simulated_store import CreateFault
from backedge.engine.simulation.world.world_ports import WorldPorts
from backedge.engine.state.compaction import cut_of
from backedge.engine.state.split_own_state import move_whole
from backedge.engine.state.upgrade import upgraded
from backedge.engine.task.pacing import SLICE_NS
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.versions import AttemptOverError
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.channels import Inbox, Queued
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Acknowledge, Decline, Effect, Report
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, Compact, DropCut, FileId, Manifest, Order, StartTasks, Sweep
from backedge.recovery.protocol.protocol_errors import FencedError
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.restore.restore_task import SnapshotsInMemory

TICK_MS = 10
DISTANT_MS = 1_000
"""A timer that is due later is not waited for tick by tick."""
TOGETHER_RECORDS = 6
TURN_COSTS_NS = (0, 3_000_000)
"""How long a look at the clock may take in a turn: no time, so that records are cheap, or more than a chunk should."""

Happening = tuple[Any, ...]
"""The name of an event, then what it happens to."""


class World(WorldPorts):
    """What can happen in a simulated job, event by event."""

    def enabled(self) -> list[Happening]:
        """All events that can happen next, except faults and the passing of time."""
        found: list[Happening] = []
        if self.driver.is_due:
            found.append(("append",) if isinstance(self.driver.step, AppendEntry) else ("read_chain",))
        found += [("restore", task) for task in self.unrestored]
        # There are dozens of channels, and of what comes after the tasks mostly nothing: then this must cost little.
        started = {task for task, host in self.hosts.items() if host.is_started}
        found += [("receive", channel) for channel, wire in self.wires.items() if wire and channel.receiver in started]
        for task, host in self.hosts.items():
            if host.orders:
                found.append(("order", task))
            if host.is_started:
                if host.offers is None:
                    host.offers = self._enabled_at(task, host)
                found += host.offers
        if self.reports:
            found += [("report", index) for index in self._first_reports()]
        if self.sleepers:
            found += [("woken", place) for place, one in enumerate(self.sleepers) if one.is_awake and one.driver.is_due]
        if self.removals:
            found += [("remove", index) for index in range(len(self.removals))]
        if self.compactions:
            found += [("compact", index) for index in range(len(self.compactions))]
        if self.compaction_reports:
            found += [("compacted", index) for index in range(len(self.compaction_reports))]
        if self.calls.outlived:
            found += [("outlived", index) for index in range(len(self.calls.outlived))]
        if self.store.withdrawn:
            found += [("withdraw", index) for index in range(len(self.store.withdrawn))]
        if self.store.hanging:
            found += [("land", index) for index, one in enumerate(self.store.hanging) if self.is_own(one.entry)]
        return found

    def _enabled_at(self, task: TaskId, host: Host) -> list[Happening]:
        driver, core = host.driver, host.core
        ready = core.ready()
        if ready and driver.has_no_room():
            self.counts["full_channels"] += driver.room.is_full()
            ready = []
        found: list[Happening] = []
        # Most tasks have nothing ready, no call, no timer and no capture: then this must cost little.
        if ready:
            found += [("take", task, channel) for channel in ready]
            if self.options.slices:
                found += [("part", task, channel) for channel in ready if driver.may_take_part(channel)]
            if self.options.together:
                found += [("together", task, channel) for channel in ready if _has_several(core.inboxes[channel])]
            if self.options.turns:
                found += [("turn", task, cost_ns) for cost_ns in TURN_COSTS_NS]
        if core.awaits_time and core.alignment.overdue(self.now_ms):
            found.append(("patience", task))
        if host.aborts:
            found.append(("abort", task))
        if host.runtime.reads and core.life.takes:
            if host.is_source and host.runtime.exhausted:
                found += [("exhaust", task)] if not core.busy else []
            elif host.runtime.has_unread and not driver.has_no_room():
                found.append(("produce", task))
        if driver.snapshots.has_to_encode():
            found += [("encode", task, epoch) for epoch in driver.snapshots.to_encode()]
        if host.writes:
            found += [("write", task, epoch) for epoch in host.writes]
        if driver.waits and not core.ended:
            found += [(what, task, call) for what, call in host.calls()]
            if host.unwritten:
                found.append(("write_answers", task))
            due_ms = host.runtime.next_timer_ms
            if due_ms is not None and due_ms <= self.now_ms:
                found.append(("timer", task))
        return found

    def _first_reports(self) -> list[int]:
        asleep = {sleeper.attempt for sleeper in self.sleepers if not sleeper.is_awake}
        first: dict[tuple[Attempt, TaskId], int] = {}
        for index, (attempt, task, _) in enumerate(self.reports):
            if attempt not in asleep:
                first.setdefault((attempt, task), index)
        return list(first.values())

    def apply(self, event: Happening) -> None:
        """Make an event happen. A task whose attempt is over dies if a sink or a version refuses it."""
        try:
            getattr(self, f"_do_{event[0]}")(*event[1:])
        except (FencedError, OSError, OutputReplacedError, AttemptOverError):
            if not self._loses_stale(event):
                raise
        if (host := self._host_of(event)) is not None:
            host.core.check()
        self._settle()

    def _host_of(self, event: Happening) -> Host | None:
        """The host of the task that an event names, by itself or by a channel to it; None if there is none."""
        match event:
            case (_, (TaskId() | ChannelId()) as found, *_):
                return self.hosts.get(found.receiver if isinstance(found, ChannelId) else found)
            case _:
                return None

    def _loses_stale(self, event: Happening) -> bool:
        """Remove the task at which an event happened if its attempt is over. Returns whether it was."""
        if event[0] == "zombie":
            del self.zombies[event[1]]
            return True
        host = self._host_of(event)
        if host is None or host.attempt >= self.supervisor.attempt:
            return False
        del self.hosts[host.id]
        return True

    def obey(self, orders: Sequence[Order]) -> None:
        """Have the run's driver carry out orders."""
        self.driver.obey(orders)
        self._settle()

    def begin_epoch(self, mode: Mode) -> None:
        """Begin an epoch, unless a cut between two rounds is open."""
        coordinator = self.coordinator
        if coordinator is not None and not coordinator.is_exclusive_open:
            self.obey(coordinator.start(mode, self.now_ms))

    def _do_receive(self, channel: ChannelId) -> None:
        attempt, item = self.wires[channel].popleft()
        self._at(channel.receiver).driver.receive(channel, attempt, item)

    def _do_take(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take(channel, 1)

    def _do_together(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take(channel, TOGETHER_RECORDS)

    def _do_part(self, task: TaskId, channel: ChannelId) -> None:
        self._at(task).driver.take(channel, 1, in_parts=True)

    def _do_turn(self, task: TaskId, cost_ns: int) -> None:
        """Give the driver a turn, in which each look at the clock takes this long."""
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

    _do_answered = _do_answer

    def _do_call(self, task: TaskId, call: int) -> None:
        self._at(task).driver.calls.make(call)

    def _do_write_answers(self, task: TaskId) -> None:
        host = self._at(task)
        host.driver.calls.on_kept(host.write_answers())

    def _do_outlived(self, index: int) -> None:
        """A call is answered whose attempt is over."""
        self.use_versions(self.supervisor.attempt)
        self.calls.finish_outlived(index)

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

    def _opened_order(self, host: Host, message: Any, *, is_abort: bool = False) -> Order | None:
        """The order in a message that has arrived at a process; None if it must not be obeyed."""
        return message

    def _opened_report(self, attempt: Attempt, task: TaskId, message: Any) -> Effect | None:
        """The report in a message that has arrived; None if it does not count."""
        return message

    def _do_tick(self) -> None:
        self.now_ms += self._tick_ms()
        for host in self.hosts.values():
            host.offers = None
        self._repeat_requests()
        self.driver.on_tick()
        for sleeper in self.sleepers:
            if sleeper.is_awake:
                sleeper.driver.on_tick()
        self.forget_fenced()

    def _tick_ms(self) -> int:
        """How long a tick takes: an eighth of the time to the next timer, if that is distant and all else is done."""
        due = [host.runtime.next_timer_ms for host in self.hosts.values() if host.is_started]
        left_ms = min((due_ms for due_ms in due if due_ms is not None), default=0) - self.now_ms
        if left_ms <= DISTANT_MS or any(self.wires.values()) or any(map(_has_input, self.hosts.values())):
            return TICK_MS
        return left_ms // 8

    def _do_report(self, index: int) -> None:
        attempt, task, message = self.reports.pop(index)
        effect = self._opened_report(attempt, task, message)
        if effect is not None:
            if isinstance(effect, Decline):
                self.counts["over_budget"] += effect.is_expected
            elif isinstance(effect, Acknowledge) and self.coordinator is not None:
                self._count_delta(self.coordinator, effect.epoch, effect.report)
            (self.leader(attempt) or self.driver).on_report(task, attempt, effect)
            self.forget_fenced()

    def _do_lose_report(self, index: int) -> None:
        del self.reports[index]

    def _do_append(self) -> None:
        self.driver.advance()

    _do_read_chain = _do_append

    def _do_fail_append(self) -> None:
        self._advance_with(CreateFault.FAILS)

    def _do_lose_append_reply(self) -> None:
        """The entry is created, and the driver is not told."""
        self._advance_with(CreateFault.LOSES_REPLY)

    def _do_hang_append(self) -> None:
        """The entry will be created at any later time, or never if its number is taken by then."""
        self._advance_with(CreateFault.HANGS)

    def _advance_with(self, fault: CreateFault) -> None:
        self.store.create_fault = fault
        self.driver.advance()

    def _do_land(self, index: int) -> None:
        known = len(self.store.history)
        self.store.land(index)
        self._note_new(known)

    def _do_remove(self, index: int) -> None:
        """Remove something, at any later time: a supervisor may have stalled, and another may have taken over since."""
        _, order, is_of_output = self.removals.pop(index)
        if isinstance(order, DropCut):
            self.store.drop(order.epoch)
            own = [one.entry for one in self.store.chain if self.is_own(one.entry)]
            if cuts := [entry.epoch for entry in own if isinstance(entry, Manifest)]:
                self.calls.remove_segments(min(cuts))
        elif is_of_output:
            self._sweep_output(order)
        else:
            self.store.sweep(order)

    def _sweep_output(self, sweep: Sweep) -> None:
        try:
            self.services.sweep(sweep)
        except UnknownTransactionError:
            # A run that went on from this one's end has published all, and removed what says so.
            if sweep.attempt == self.supervisor.attempt:
                raise

    def sweep_outputs(self) -> None:
        """Carry out the removals of output that are left. That of the end publishes what waits for later output."""
        left, self.removals = self.removals, []
        for _, order, is_of_output in left:
            if is_of_output and isinstance(order, Sweep):
                self._sweep_output(order)

    def _do_withdraw(self, index: int) -> None:
        """Remove a manifest that no entry names, at any later time: a store may lose the request and repeat it."""
        self.store.withdraw(index)

    def _do_compact(self, index: int) -> None:
        """Compact at any later time: the attempt may be over, or the files may be gone."""
        attempt, order = self.compactions.pop(index)
        keys = self._compact(attempt, order)
        self.counts["compactions" if keys is not None else "compactions_failed"] += 1
        if keys is not None and order.left:
            self.counts["compactions_of_deltas"] += 1
        self.compaction_reports.append((attempt, order, keys))

    def _do_compacted(self, index: int) -> None:
        attempt, order, keys = self.compaction_reports.pop(index)
        if keys is not None and attempt == self.supervisor.attempt:
            self.store.on_compacted(FileId(attempt, order.epoch, order.task))
        self.driver.on_compacted(order.task, attempt, order.epoch, keys)

    def _do_fail_compaction(self, index: int) -> None:
        self.counts["compactions_failed"] += 1
        self.compaction_reports.append((*self.compactions.pop(index), None))

    def _do_lose_compaction(self, index: int) -> None:
        """The process dies when the file is durable, before it reports that."""
        self._compact(*self.compactions.pop(index))

    def _compact(self, attempt: Attempt, order: Compact) -> int | None:
        """Put files into one. Returns how many entries it has, or None if some of the files have been dropped."""
        task, epoch, files, left = order
        names = [FileId(file.attempt, file.epoch, task) for file in files[left:]]
        if any(name not in self.store.files for name in names):
            return None
        operators = self.store.snapshot(task, files[left:]).operators
        states, keys = self.parts.put_together(operators, is_delta=left > 0)
        base = self.store.files[names[0]].base
        self.store_file(attempt, epoch, TaskSnapshot(task, cut_of(order), attempt, states, (), (), base=base))
        self.compacted[FileId(attempt, epoch, task)] = files
        return keys

    def _count_delta(self, coordinator: Coordinator, epoch: Epoch, report: Report) -> None:
        cut = coordinator.open.get(epoch)
        if report.base is not None:
            self.counts["deltas"] += 1
            if cut is not None and cut.base is not None and report.base < cut.base:
                self.counts["superseding"] += 1
        elif cut is not None and cut.base is not None and report.keys:
            self.counts["full_again"] += 1

    def _do_go_back(self, epoch: Epoch) -> None:
        """Another run takes over, and is asked to continue from an older cut."""
        self.reports.clear()
        self._begin_again(epoch)

    def _do_fail_in_vain(self) -> None:
        """The run can never be restored. Its user continues with the latest cut."""
        self.record.in_vain.add(self.supervisor.chain.claimant)
        self.driver.end(RunEnding.FAILED, "a function raises where its state is restored")

    def _do_replace(self, epoch: Epoch, fails: bool) -> None:
        """The same, and the run removes what was published after that cut. The first attempt at it may fail."""
        self.reports.clear()
        self.replacing_fails = fails
        self._begin_again(epoch, replaces_output=True)

    def _do_restore(self, task: TaskId) -> None:
        plan = self.unrestored.pop(task)
        restored = None if plan is None else self._take_back(plan)
        self.hosts[task] = self._new_host(self.deployment.tasks[task], restored)
        self.note(Restored(self.supervisor.attempt, task, restored))
        self.driver.on_restored(task, self.supervisor.attempt)

    def _take_back(self, plan: RestorePlan) -> TaskRestore:
        cut = self.restored_cut
        # Only the files that the plan names, so that a plan that forgets one fails.
        files = SnapshotsInMemory({}) if cut is None else self.store.files_of(cut, plan.tasks)
        of_this_version = upgraded(files, plan, self.deployment.plan)
        return self.parts.take_back(plan, of_this_version, self.deployment, reroute, move_whole)

    def _do_crash(self, tasks: tuple[TaskId, ...]) -> None:
        for task in tasks:
            self.hosts.pop(task, None)
            self.unrestored.pop(task, None)
            self.dead.add(task)

    def _do_notice(self) -> None:
        self.dead.clear()
        self.driver.on_failure(self.supervisor.attempt, "a process died")

    def _do_unrestorable(self) -> None:
        self.driver.on_unrestorable(self.supervisor.attempt, "a function has raised where state is divided")

    def _do_kill_coordinator(self) -> None:
        """The process of the supervisor dies, which leads all pipelines."""
        for world in (self, *self.siblings):
            if not world.is_over:
                world.take_over()

    def _do_stop_coordinator(self) -> None:
        """The process of the supervisor is stopped, which leads all pipelines, and taken for dead."""
        for world in (self, *self.siblings):
            if not world.is_over:
                world.take_over(is_asleep=True)

    def _do_wake_coordinator(self, has_lost_tasks: bool) -> None:
        """The process goes on. It may find that processes of its tasks have died meanwhile."""
        for sleeper in [sleeper for world in (self, *self.siblings) for sleeper in world.sleepers]:
            sleeper.wake(has_lost_tasks=has_lost_tasks)
            sleeper.world.forget_fenced()

    def _do_woken(self, place: int) -> None:
        """A supervisor that has woken up takes the step in the store that is due."""
        self.sleepers[place].driver.advance()
        self.forget_fenced()

    def _do_zombie(self, index: int, event: Happening) -> None:
        host = self.zombies[index]
        self.use_versions(host.attempt)
        match event:
            case ("take", channel):
                host.driver.take(channel, 1)
            case ("produce",):
                host.driver.read(self.options.records_max)
            case ("write", epoch):
                host.store_snapshot(epoch)
            case ("encode", epoch):
                host.driver.snapshots.encode_piece(epoch, self.options.entries_max)
            case ("answer", call):
                host.answer(call)
            case ("write_answers",):
                host.driver.calls.on_kept(host.write_answers())
            case _:
                order = self._opened_order(host, host.orders.popleft())
                if order is not None:
                    host.driver.obey(order)


def _has_several(inbox: Inbox) -> bool:
    """Whether the first two items that wait in a channel are batches or markers."""
    queue = inbox.queue
    return len(queue) > 1 and isinstance(queue[0], Queued) and isinstance(queue[1], Queued)


def _has_input(host: Host) -> bool:
    """Whether a task has something to read or to take."""
    return host.core.has_queued() or host.runtime.has_unread
