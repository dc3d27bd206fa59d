"""Drives the core of one task: carries out its effects, runs user code, decides what to take, read, split and spill.

It is the same on a cluster and in the simulator; the world around it is behind ports (`ports.py`). It makes no
decision about the protocol: what an item means, when to capture and what to log is the core's
(`recovery/protocol/task.py`).

- The driver processes a batch, sends its output, and only then lets the core look at what is behind the batch. So the
  output of a slice leaves before any capture.
- The task takes and reads nothing while one of its output channels is full, or the maximum number of calls is open
  (`has_no_room`). It keeps receiving.
- All batches that have arrived on a channel are taken at once (`take`); otherwise batches would shrink from round to
  round. If records take time, batches are taken in parts (`pacing.py`).
- Whether a batch is spilled is decided before the core receives it: the core digests the payload and keeps the handle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pickle import UnpicklingError
from typing import Any

from backedge.engine.batches.batch import Batch, decode, encode, merge
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.engine.state.keyed_state import LAST_STATE
from backedge.engine.task.channel_ends import (
    SENT_ROWS_MAX,
    Arrivals,
    LocalChannel,
    OutChannel,
    RemoteBackEdge,
    RemoteChannel,
    largest_batch,
)
from backedge.engine.task.load import RoundsSeen
from backedge.engine.task.open_calls import OpenCalls
from backedge.engine.task.pacing import Pace, unit_of
from backedge.engine.task.ports import FlowLimits, Ports
from backedge.engine.task.snapshotting import Snapshotting
from backedge.engine.task.turns import InputTurns
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import Attempt, ChannelId, Epoch
from backedge.graphs.plan import Plan
from backedge.recovery.protocol import effects as core_effects
from backedge.recovery.protocol.channels import Stored
from backedge.recovery.protocol.credit import Room
from backedge.recovery.protocol.effects import Effect, Remaining, Stage
from backedge.recovery.protocol.messages import Barrier, Data, Item
from backedge.recovery.protocol.orders import Abort, Complete, Order, TellToEnd, Trigger
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError, ProtocolError
from backedge.recovery.protocol.task import TaskCore

UNBOUNDED = 2**62
PARTS = 16


class Intake:
    """What a driver knows of one input of its task.

    - id: the input. channel: its channel; a log was restored from the channel that is described here.
    - arrivals: the receiving end; None for a restored log. pace: how many records to pass to user code at a time.
    - rounds_seen: how often the records of its loop have gone round, if the loop counts that.
    - opened: the front batch, decoded once for all its parts, with its payload; None if it has not been looked at.
    """

    __slots__ = ("arrivals", "channel", "id", "opened", "pace", "rounds_seen")

    def __init__(
        self, id: ChannelId, channel: Channel, arrivals: Arrivals | None, pace: Pace, rounds_seen: RoundsSeen | None
    ) -> None:
        self.id = id
        self.channel = channel
        self.arrivals = arrivals
        self.pace = pace
        self.rounds_seen = rounds_seen
        self.opened: tuple[Any, Batch] | None = None


class TaskDriver:
    """One task of one attempt.

    - intakes: the live inputs, and those restored from a log.
    - outputs, bounded: the sending ends, and those of them that can be full. arrivals: the receiving ends of the live
      inputs. looping: those of the back edges.
    - room: whether the task may send. calls: its calls outside.
    - waits, acts_by_itself: whether there may be timers or calls, and whether the task may do anything without input.
    - read_pace: how many records to read at a time.
    - records, hops: the number of records processed or read in this attempt, and how many of them came round a loop.
    - rounds_seen: how often the records that came round a loop had gone round, for each loop that counts it.
    - is_held: whether the last turn left something undone because a receiver had no room, or because an epoch or a
      round holds the inputs.
    - free_ns: when an epoch or a round last released inputs; waiting for that says nothing about the pace of this task.

    The class attributes are the parts of a driver. To break a rule for a test, a subclass replaces them.
    """

    room_class = Room
    arrivals_class = Arrivals
    remote_class = RemoteChannel
    back_edge_class = RemoteBackEdge
    calls_class = OpenCalls

    def __init__(self, core: TaskCore, runtime: TaskRuntime, ports: Ports, limits: FlowLimits, plan: Plan) -> None:
        self.core = core
        self.runtime = runtime
        self.ports = ports
        self.limits = limits
        core.limit_logs(limits.log_budget_bytes)
        self.id = core.task.id
        self.is_source = core.task.is_source
        self.outputs: dict[ChannelId, OutChannel] = {}
        self.bounded: list[OutChannel] = []
        self.room = self.room_class()
        regular = sum(not channel.is_back for channel in core.task.inputs)
        self.arrivals = {c.id: self._new_arrivals(c, regular) for c in core.task.inputs}
        self.looping = [self.arrivals[c.id] for c in core.task.inputs if c.is_back]
        self.snapshots = Snapshotting(self.id, core.attempt, ports.writer)
        kinds = [plan.operators[name].kind for name in core.task.operators]
        unit = unit_of(kinds)
        calls_max = min((kind.calls_max for kind in kinds if kind.calls_max), default=0)
        self.calls = self.calls_class(self.id, runtime, ports, calls_max, self.emit)
        self.waits = runtime.waits
        self.acts_by_itself = runtime.reads or self.waits
        self.turns = InputTurns(in_rounds=core.rounds is not None)
        self.read_pace = Pace(unit)
        self.records = 0
        self.hops = 0
        self.rounds_seen = {
            loop: RoundsSeen(trip.digit)
            for loop, trip in plan.trips.items()
            if trip.digit is not None and any(c.edge.loop == loop for c in core.task.inputs)
        }
        described = {c.id: c for c in core.task.inputs}
        self.intakes: dict[ChannelId, Intake] = {}
        for id in core.inboxes:
            channel = described.get(id) or next(c for c in core.task.inputs if c.id.edge == id.edge)
            seen = None if channel.edge.loop is None else self.rounds_seen.get(channel.edge.loop)
            self.intakes[id] = Intake(id, channel, self.arrivals.get(id), Pace(unit), seen)
        self.is_held = False
        self.free_ns = 0
        self._read_before = runtime.records_read

    # -- channels ------------------------------------------------------------------------------------------------

    def _new_arrivals(self, channel: Channel, inputs: int) -> Arrivals:
        return self.arrivals_class(
            self.ports.channels.credit_way(channel),
            is_back=channel.is_back,
            window_max=self._window_max(channel),
            inputs=max(1, inputs),
            memory_bytes_max=self.limits.loop_bytes_max,
            repeat_ms=self.limits.credit_repeat_ms,
        )

    def _window_max(self, channel: Channel) -> int:
        credit_bytes = self.limits.credit_bytes
        if credit_bytes is None:
            return UNBOUNDED
        return max(credit_bytes, self.limits.back_edge_bytes_min) if channel.is_back else credit_bytes

    def connect(self) -> None:
        """Connect the outputs: all tasks of the attempt exist."""
        for channel in self.core.task.outputs:
            out = self.outputs[channel.id] = self._new_out(channel)
            if self.limits.credit_bytes is not None:
                self.room.add(channel, out)
                if not channel.is_back:
                    self.bounded.append(out)

    def _new_out(self, channel: Channel) -> OutChannel:
        send = self.ports.channels.way(channel)
        if channel.within_actor:
            return LocalChannel(channel, send, self.ports.channels.receiving_end(channel))
        if channel.is_back:
            return self.back_edge_class(
                channel, send, self._window_max(channel), self.limits.loop_bytes_max, self.ports.spill
            )
        if self.limits.credit_bytes is None:
            return self.remote_class(channel, send, UNBOUNDED, SENT_ROWS_MAX)
        # A window starts with one record; the receiver reports how much more it has time for.
        return self.remote_class(channel, send, window=1)

    def repeat_credit(self, now_ms: int) -> None:
        """Send credit to the senders again, in case it was lost."""
        for arrivals in self.arrivals.values():
            arrivals.repeat_credit(now_ms)

    def receive(self, channel: ChannelId, attempt: Attempt, item: Item) -> None:
        core, clock = self.core, self.ports.clock
        if type(item) is not Data:
            core.now_ms = clock.steady_ms
            if type(item) is Barrier and not item.mode.is_probe:
                self.ports.observer.on_epoch(self.id, item.epoch)
            self.carry_out(core.receive(channel, attempt, item))
        elif attempt != core.attempt:
            core.receive(channel, attempt, item)
        else:
            arrivals = self.arrivals.get(channel)
            if arrivals is None:
                raise ProtocolError(f"task {self.id} has no input channel {channel}")
            kept = None
            if arrivals.is_to_spill():
                payload = item.payload
                kept = self.ports.spill.store(payload if isinstance(payload, bytes) else encode(payload))
            effects = core.receive(channel, attempt, item, kept)
            arrivals.on_received(item.payload, clock.turn_ns)
            if effects:
                self.carry_out(effects)

    # -- a turn --------------------------------------------------------------------------------------------------

    def turn(self, taken_max: int, read_max: int, until_ns: int) -> bool:
        """Do everything possible once, until that time; return whether more can be done before the next arrival."""
        core, clock, turns = self.core, self.ports.clock, self.turns
        turns.turns += 1
        if core.awaits_time:
            self.carry_out(core.on_tick(clock.steady_ms))
        has_more = bool(self.snapshots.captures) and self.snapshots.encode_some(clock.clock_ns)
        ready = core.ready()
        self.is_held = not ready and core.has_queued()
        for channel in ready if turns.last_taken is None else turns.in_turn(ready):
            intake = self.intakes[channel]
            if self.has_no_room():
                self.is_held = True
                break
            if not intake.channel.is_back and self._is_held_up(intake.channel):
                has_more = True
                continue
            self._take_in_time(intake, taken_max, until_ns)
            if core.rounds is not None and core.is_marker_next(channel) and not self.has_no_room():
                # The last batch of a round: take the marker with it, because all other tasks wait for the marker.
                self._take_in_time(intake, taken_max, until_ns)
            if clock.clock_ns() >= until_ns:
                turns.last_taken, has_more = channel, True
                break
        else:
            turns.last_taken = None
        if self.runtime.reads and core.life.takes:
            has_more |= self._read_in_time(read_max, until_ns)
        if self.waits and not core.ended:
            has_more |= self._fire_due_timers()
            self.calls.make_next()
        return has_more

    def has_work(self) -> bool:
        """Whether a turn may have anything to do, or to report as held up."""
        core = self.core
        if self.acts_by_itself or self.is_held or core.has_queued():
            return True
        return bool(self.snapshots.captures) or core.awaits_time

    def has_no_room(self) -> bool:
        """Whether one of the task's output channels is full, or the maximum number of calls is open."""
        return self.room.is_full() or self.calls.are_all_open()

    def can_go_on(self) -> bool:
        """Whether something may be taken or encoded now."""
        if self.snapshots.captures and self.snapshots.has_to_encode():
            return True
        return self.core.has_queued() and bool(self.core.ready()) and not self.has_no_room()

    def _is_held_up(self, channel: Channel) -> bool:
        """Whether a regular input must wait a little because a loop has enough to do already."""
        turns = self.turns
        if turns.waits_for_loops_within(channel) and self.ports.channels.is_going_round():
            return True
        if not self.looping:
            return False
        waiting = (arrivals.bytes_waiting for arrivals in self.looping)
        return turns.waits_for_own_loops(channel, waiting, self.limits.loop_bytes_max)

    # -- taking --------------------------------------------------------------------------------------------------

    def take(self, channel: ChannelId, records_max: int, *, in_parts: bool = False) -> None:
        """Take what is next on a channel: a marker, or up to `records_max` records.

        Batches are taken whole, so the last one may exceed that number, or `in_parts`: a batch with more records than
        that in parts, and others while they fit.
        """
        clock_ns, intake = self.ports.clock.clock_ns, self.intakes[channel]
        batches, records, what = self._taken(intake, records_max, in_parts=in_parts)
        if not batches:
            self._take_other(intake)
            return
        began_ns = clock_ns()
        emitted = self._process(intake, batches, what)
        now_ns = clock_ns()
        intake.pace.note(records, now_ns - began_ns)
        self._took(intake, records, emitted, now_ns)

    def _take_other(self, intake: Intake) -> None:
        """Take a marker, or a batch that is set aside for a later round: no user code runs."""
        effects = self.core.take(intake.id)
        self.ports.observer.on_taken(self.id, intake.id)
        self._on_consumed(intake, self.ports.clock.clock_ns())
        self.carry_out(effects)

    def may_take_part(self, channel: ChannelId) -> bool:
        """Whether the front batch has a record that is not its last one."""
        front = self.core.front(channel)
        return front is not None and len(self._opened(self.intakes[channel], front[0])) - front[1] > 1

    def _take_in_time(self, intake: Intake, records_max: int, until_ns: int) -> None:
        """Take the batches that have arrived on a channel, while there is time."""
        core, clock_ns, pace, channel = self.core, self.ports.clock.clock_ns, intake.pace, intake.id
        if pace.is_cheap and not self.calls.most:
            self.take(channel, pace.chunk(records_max))
            return
        if core.front(channel) is None:
            self._take_other(intake)
            return
        emitted: Emitted = []
        records, now_ns = 0, clock_ns()
        while True:
            began_ns = now_ns
            chunk = pace.chunk(self.calls.fitting(records_max))
            batches, count, what = self._taken(intake, chunk, in_parts=True)
            emitted += self._process(intake, batches, what)
            records += count
            now_ns = clock_ns()
            pace.note(count, now_ns - began_ns)
            if now_ns >= until_ns or self.calls.fitting(records_max - records) <= 0 or core.front(channel) is None:
                break
        self._took(intake, records, _merged(emitted) if len(emitted) > 1 else emitted, now_ns)

    def _taken(self, intake: Intake, records_max: int, *, in_parts: bool) -> tuple[list[Batch], int, str]:
        """Take the next records of a channel: as whole batches, or as a part of the front batch ("batch", "part").

        Returns them and their number: none if the next item is no batch of the current round.
        """
        core, channel = self.core, intake.id
        batches: list[Batch] = []
        left = records_max
        while left > 0 and (front := core.front(channel)) is not None:
            payload, done = front
            batch = self._opened(intake, payload) if in_parts else self._batch(payload)
            count = len(batch.records) - done
            if in_parts and count > left:
                if batches:
                    break
                until = done + left
                core.take(channel, until)
                part = batch.part(done, until)
                if batch is payload and isinstance(batch.records, list):
                    # User code may change these records in any way, so they must not be used again.
                    batch.records[done:until] = [None] * left
                return [part], left, "part"
            core.take(channel)
            intake.opened = None
            batches.append(batch.rest(done) if done else batch)
            left -= count
        return batches, records_max - left, "batch"

    def _process(self, intake: Intake, batches: list[Batch], what: str) -> Emitted:
        """Run user code on batches that were taken together, or on a part of one."""
        now_ms, observer = self.ports.clock.now_ms, self.ports.observer
        if intake.rounds_seen is not None:
            for batch in batches:
                intake.rounds_seen.note(batch)
        emitted: Emitted = []
        for batch in merge(batches) if len(batches) > 1 else batches:
            observer.on_run(self.id, what, intake.id, batch, len(batches))
            emitted += self.runtime.process(intake.channel, batch, now_ms)
        return emitted

    def _opened(self, intake: Intake, payload: Any) -> Batch:
        """The front batch, decoded once for all its parts."""
        opened = intake.opened
        if opened is None or opened[0] is not payload:
            opened = intake.opened = payload, self._batch(payload)
        return opened[1]

    def _batch(self, payload: Any) -> Batch:
        if isinstance(payload, Batch):
            return payload
        if isinstance(payload, Stored):
            payload = payload.load()
        try:
            return decode(payload)
        except (UnpicklingError, EOFError) as error:
            raise ChannelIntegrityError(
                f"task {self.id}: {len(payload)} bytes are not a batch ({error}): it was damaged in transit; the "
                "attempt must be restored from its last cut"
            ) from error

    def _on_consumed(self, intake: Intake, now_ns: int) -> None:
        if intake.arrivals is not None:
            intake.arrivals.on_consumed(self.core.consumed(intake.id), now_ns, self.free_ns)

    def _took(self, intake: Intake, records: int, emitted: Emitted, now_ns: int) -> None:
        """User code has processed these records: send its output, and only then look at what is behind them."""
        self._on_consumed(intake, now_ns)
        self.records += records
        if intake.channel.is_back:
            self.hops += records
        if intake.arrivals is not None:
            intake.arrivals.records += records
        self.emit(emitted)
        behind = self.core.on_processed(intake.id)
        if behind:
            self.carry_out(behind)

    # -- reading, timers, calls ----------------------------------------------------------------------------------

    def read(self, records_max: int) -> int:
        """Read at most `records_max` records and send them; return how many there were."""
        before = self.runtime.records_read
        self.emit(self._produce(records_max))
        count = self.runtime.records_read - before
        self.records += count
        return count

    def exhaust(self) -> None:
        """The source has nothing more to read."""
        self.carry_out(self.core.on_exhausted())

    def _produce(self, records_max: int) -> Emitted:
        self.ports.observer.on_run(self.id, "produce", None, None, records_max)
        return self.runtime.produce(records_max, self.ports.clock.now_ms)

    def _read_in_time(self, read_max: int, until_ns: int) -> bool:
        runtime = self.runtime
        if self.is_source and runtime.exhausted:
            if self.core.busy:
                return False  # operators chained to the source wait for a timer or a call
            self.exhaust()
            return True
        if not runtime.has_unread:
            return False
        if self.room.is_full():
            self.is_held = True
            return False
        pace, clock_ns = self.read_pace, self.ports.clock.clock_ns
        records_max = min(read_max, self.readable())
        emitted: Emitted = []
        first = before = runtime.records_read
        while (wanted := pace.chunk(self.calls.fitting(records_max - before + first))) > 0:
            began_ns = clock_ns()
            emitted += self._produce(wanted)
            count, before = runtime.records_read - before, runtime.records_read
            now_ns = clock_ns()
            pace.note(count, now_ns - began_ns)
            if count < wanted or now_ns >= until_ns:
                break
        self.records += before - first
        self.emit(_merged(emitted) if len(emitted) > 1 else emitted)
        # Operators chained to the source may keep all records.
        return before > first

    def readable(self) -> int:
        """How many records may be read until a channel is full, if the same share of them goes there as before."""
        read = self.runtime.records_read - self._read_before
        room = (out.room_records() * read // out.records if out.records else read for out in self.bounded)
        return min(room, default=UNBOUNDED) or 1

    def fire_timers(self) -> None:
        now_ms = self.ports.clock.now_ms
        self.ports.observer.on_run(self.id, "timer", None, None, now_ms)
        emitted = self.runtime.fire_timers(now_ms)
        self.core.check_timers_output(channel for channel, _ in emitted)
        self.emit(emitted)

    def _fire_due_timers(self) -> bool:
        due_ms = self.runtime.next_timer_ms
        if due_ms is None or due_ms > self.ports.clock.now_ms:
            return False
        self.fire_timers()
        return True

    # -- control -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All tasks of the attempt are restored."""
        if self.waits:
            self.calls.on_start()
        self.carry_out(self.core.start(busy=self._is_busy()))

    def obey(self, order: Order) -> None:
        match order:
            case Trigger(_, epoch, mode, patience_ms, base):
                self.core.now_ms = self.ports.clock.steady_ms
                if not mode.is_probe:
                    self.ports.observer.on_epoch(self.id, epoch)
                self.carry_out(self.core.on_trigger(epoch, mode, patience_ms, base))
            case Abort(_, epoch, mode):
                self.free_ns = self.ports.clock.clock_ns()
                self.carry_out(self.core.on_abort(epoch, mode))
            case Complete(_, epoch, names):
                self.carry_out(self.core.on_complete(epoch, names))
            case TellToEnd():
                self.carry_out(self.core.on_told_to_end())
            case _:
                raise ProtocolError(f"{order} is not an order for a task")

    def lose_patience(self) -> None:
        """Time has passed while an epoch waits for inputs."""
        self.carry_out(self.core.on_tick(self.ports.clock.steady_ms))

    def on_written(self, epoch: Epoch | None, files: Any, failure: str | None, size: int = 0) -> None:
        """A snapshot was written, with `size` bytes of keyed state, or could not be written."""
        if failure is None:
            self.snapshots.written(epoch, files)
            self.carry_out(self.core.on_written(epoch, size))
        else:
            self.carry_out(self.core.on_write_failed(epoch, failure))

    def remaining(self) -> dict[Epoch, Remaining]:
        """What remains to be done here for each open epoch."""
        found = self.core.remaining()
        for epoch, remaining in found.items():
            if remaining.stage is Stage.CAPTURED:
                found[epoch] = remaining._replace(amount=-self.snapshots.pieces)
        return found

    # -- effects -------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order, including those that follow from user code."""
        waiting = deque(effects)
        while waiting:
            waiting.extend(self._carry_out_one(waiting.popleft()))

    def _carry_out_one(self, effect: Effect) -> Iterable[Effect]:
        core, ports = self.core, self.ports
        match effect:
            case core_effects.Send(channel, item):
                ports.observer.on_sent(self.id, channel, item)
                self.outputs[channel].send(item)
            case core_effects.Capture(epoch, base):
                capture = self.runtime.capture(epoch or LAST_STATE, core.attempt, base)
                self.snapshots.captures[epoch] = capture
                ports.observer.on_captured(self.id, epoch)
                names = tuple(t.name for t in self.runtime.transactions)
                core.on_captured(epoch, names, capture.base, capture.keys)
                self.free_ns = ports.clock.clock_ns()
            case core_effects.Write(epoch, record):
                self.snapshots.write(epoch, record, core.last_captured)
            case core_effects.Acknowledge(epoch):
                ports.reporter.report(self.id, effect, self.snapshots.files.pop(epoch, None))
            case core_effects.AcknowledgeEnd():
                ports.reporter.report(self.id, effect, self.snapshots.files.get(None))
            case core_effects.Decline() | core_effects.Committed():
                ports.reporter.report(self.id, effect)
            case core_effects.Discard(epoch):
                self._discard(epoch)
            case core_effects.Commit(epoch, names):
                ports.observer.on_committed(self.id, names)
                self.runtime.commit(names)
                return core.on_committed(epoch)
            case _:
                return self._run_user_code(effect)
        return ()

    def _discard(self, epoch: Epoch) -> None:
        self.snapshots.discard(epoch)

    def _run_user_code(self, effect: Effect) -> Iterable[Effect]:
        core, runtime, now_ms = self.core, self.runtime, self.ports.clock.now_ms
        observe = self.ports.observer.on_run
        self.free_ns = self.ports.clock.clock_ns()
        match effect:
            case core_effects.RunRoundEnd(path, iteration):
                observe(self.id, "round_end", None, None, path)
                self.emit(runtime.on_round_end(path, now_ms))
                return core.on_round_hooks_ran(runtime.take_contributions(iteration) if iteration else None)
            case core_effects.RunDecide(path, contributions):
                return core.on_decided(runtime.decide(path, contributions))
            case core_effects.RunReleaseRound():
                observe(self.id, "release_round", None, None, None)
                self.emit(runtime.release_round())
                return core.on_round_released()
            case core_effects.RunReleaseResult(iteration):
                observe(self.id, "release_result", None, None, None)
                self.emit(runtime.release_result())
                return core.on_result_released(runtime.take_contributions(iteration) if iteration else None)
            case core_effects.RunEnd():
                observe(self.id, "end", None, None, None)
                self.emit(runtime.end(now_ms))
                return core.on_end_hooks_ran()
            case _:
                raise ProtocolError(f"task {self.id}: {effect} is not an effect that a driver knows")

    def emit(self, emitted: Iterable[tuple[ChannelId, Batch]]) -> None:
        """Send the output of user code, in batches of at most half a window.

        But what a function emitted at once travels in 16 parts at most, or in parts as large as batches become. All of
        it is sent now in any case, and a million batches of one row would take long.

        It leaves at once: before the core looks at what is behind the batch, which may be a barrier.
        """
        sent, outputs, observer = self.core.sent, self.outputs, self.ports.observer
        leaves = False
        for channel, batch in emitted:
            out, records = outputs[channel], len(batch.records)
            leaves |= not out.is_local
            records_max = out.batch_max(batch)
            out.records += records
            if records <= records_max:
                item = sent(channel, batch if out.is_local else encode(batch, channel.edge))
                observer.on_sent(self.id, channel, item)
                out.send(item)
                continue
            observer.on_split(self.id, channel)
            for part in _parts(batch, max(records_max, min(-(-records // PARTS), largest_batch(batch)))):
                item = sent(channel, part if out.is_local else encode(part, channel.edge))
                observer.on_sent(self.id, channel, item)
                out.send(item)
        if leaves:
            self.ports.channels.flush()
        if self.waits:
            self._tell_busy()

    def _is_busy(self) -> bool:
        return self.runtime.next_timer_ms is not None or self.runtime.open_calls > 0

    def _tell_busy(self) -> None:
        busy = self._is_busy()
        if busy != self.core.busy:
            self.carry_out(self.core.on_busy(busy))


def _merged(emitted: Emitted) -> Emitted:
    """Combine the output of several chunks into as few batches as one chunk would have produced."""
    by_channel: dict[ChannelId, list[Batch]] = {}
    for channel, batch in emitted:
        by_channel.setdefault(channel, []).append(batch)
    if len(by_channel) == len(emitted):
        return emitted
    return [(channel, batch) for channel, batches in by_channel.items() for batch in merge(batches)]


def _parts(batch: Batch, records_max: int) -> Iterator[Batch]:
    """Split a batch that is too large for its channel."""
    for start in range(0, len(batch), records_max):
        rows = slice(start, start + records_max)
        yield Batch(batch.records[rows], batch.hops if isinstance(batch.hops, int) else batch.hops[rows])
