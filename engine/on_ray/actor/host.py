"""One task in its actor: carries out what the task's core says. No decisions about the protocol here.

A host takes what has arrived on a channel in one go, so that batches do not get smaller from round to round, and each
effect of the core becomes a call of the runtime, a message, or work beside the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pickle import UnpicklingError
from typing import Any, Protocol

from engine.answering import Call
from engine.batch import Batch, decode, encode, merge
from engine.on_ray.actor.slices import Pace
from engine.on_ray.actor.snapshotting import Snapshotting, Writing
from engine.on_ray.transport.channel_ends import SENT_RECORDS_MAX, Arrivals, OutChannel
from engine.on_ray.transport.control_messages import Counts, TaskRemaining
from engine.runtime import TaskRuntime
from engine.sending import Emitted
from engine.task import TaskCore
from graphs.deployment import Channel
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery import effects as core_effects
from recovery.channels import Stored
from recovery.credit import Room
from recovery.effects import Effect, Process, Stage
from recovery.messages import Barrier, Item
from recovery.orders import Abort, Complete, Order, TellToEnd, Trigger
from recovery.protocol_errors import ChannelIntegrityError, ProtocolError

REGULAR_TURNS = 16
OUTSIDE_TURNS = 4
UNBOUNDED = 2**62


class Surroundings(Writing, Protocol):
    """What a host needs of its actor."""

    now_ms: int
    steady_ms: int
    turn_ns: int
    clock_ns: Callable[[], int]
    counts: Counts

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None: ...

    def is_going_round(self) -> bool: ...

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None: ...

    def on_records_due(self, task: TaskId) -> None: ...

    def call(self, task: TaskId, call_id: int, call: Call) -> None: ...


class Host:
    """A task of one attempt."""

    def __init__(
        self,
        core: TaskCore,
        runtime: TaskRuntime,
        around: Surroundings,
        loop_bytes_max: int,
        calls_max: int,
        unit: int | None,
    ) -> None:
        self.core = core
        self.runtime = runtime
        self.around = around
        self.id = core.task.id
        self.is_source = core.task.is_source
        self.inputs: dict[ChannelId, Channel] = {c.id: c for c in core.task.inputs}
        for id in core.inboxes.keys() - self.inputs.keys():
            self.inputs[id] = next(c for c in core.task.inputs if c.id.edge == id.edge)
        self.outputs: dict[ChannelId, OutChannel] = {}
        self.bounded: list[OutChannel] = []
        self.room = Room()
        self.queues: list[Sized] = []
        self.arrivals: dict[ChannelId, Arrivals] = {}
        self.looping: list[Arrivals] = []
        self.snapshots = Snapshotting(self.id, core.attempt, around)
        self.called: set[int] = set()
        self.calls_max = calls_max
        self.waits = runtime.waits
        self.loop_bytes_max = loop_bytes_max
        self.turns = 0
        self.paces = {channel: Pace(unit) for channel in self.inputs}
        self.read_pace = Pace(unit)
        self.opened: dict[ChannelId, tuple[Any, Batch]] = {}
        self.last_taken: ChannelId | None = None
        self.records = 0
        self.records_left = UNBOUNDED
        """How many records this task may still process before a planned fault is due."""
        self.read_before = runtime.records_read
        self.free_ns = 0
        """When an epoch or a round last let go of inputs: what waited for that says nothing of the pace here."""

    def connect(self, outputs: Mapping[ChannelId, OutChannel], arrivals: Mapping[ChannelId, Arrivals]) -> None:
        """Where the channels lead."""
        self.outputs = dict(outputs)
        self.bounded = [outputs[c.id] for c in self.core.task.outputs if not c.is_back]
        for channel in self.core.task.outputs:
            self.room.add(channel, outputs[channel.id])
        self.arrivals = dict(arrivals)
        self.looping = [arrivals[c.id] for c in self.core.task.inputs if c.is_back]
        self.queues = [inbox.queue for inbox in self.core.inboxes.values()]
        if self.core.rounds is not None:
            self.queues.append(self.core.rounds.aside)

    # -- a turn --------------------------------------------------------------------------------------------------

    def receive(self, channel: ChannelId, attempt: Attempt, item: Item, is_data: bool) -> None:
        """Something arrived."""
        if is_data:
            self.core.receive(channel, attempt, item)
            self.arrivals[channel].on_received(item.payload, self.around.turn_ns)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            self.core.now_ms = self.around.steady_ms
            self.carry_out(self.core.receive(channel, attempt, item))

    def turn(self, taken_max: int, read_max: int, until_ns: int) -> bool:
        """Do once whatever can be done by then; says whether there may be more to do before anything arrives."""
        self.turns += 1
        core = self.core
        if core.awaits_time:
            self.carry_out(core.on_tick(self.around.steady_ms))
        has_more = bool(self.snapshots.captures) and self.snapshots.encode_some()
        for channel in self._in_turn():
            if self._has_no_room() or self.records_left <= 0:
                break
            if self._is_held_up(channel):
                has_more = True
                continue
            self._take(channel, taken_max, until_ns)
            if self.records_left > 0 and core.inboxes[channel].has_marker() and not self._has_no_room():
                # The last of a round: with the batch before it, for all the others wait for it.
                self._take(channel, taken_max, until_ns)
            if self.around.clock_ns() >= until_ns:
                self.last_taken, has_more = channel, True
                break
        else:
            self.last_taken = None
        if self.is_source and not core.is_ending and not core.ended:
            has_more |= self._read(read_max, until_ns)
        if self.waits and not core.ended:
            has_more |= self._fire_timers()
            self._call()
        return has_more

    def _in_turn(self) -> Sequence[ChannelId]:
        """The channels to take from, from the one on at which time ran out."""
        ready = self._ready()
        if self.last_taken is None or self.last_taken not in ready:
            return ready
        place = ready.index(self.last_taken) + 1
        return [*ready[place:], *ready[:place]]

    def _ready(self) -> Sequence[ChannelId]:
        """The channels to take from. Mostly nothing is queued, which is quick to see."""
        return self.core.ready() if any(self.queues) else ()

    def _has_no_room(self) -> bool:
        """Whether a channel that this task sends into is full, or as many calls are out as there may be."""
        if self.room.is_full():
            return True
        return self.calls_max > 0 and len(self.runtime.unanswered) >= self.calls_max

    def can_go_on(self) -> bool:
        """Whether something waits that may be taken or encoded now."""
        return self.snapshots.has_to_encode() or (bool(self._ready()) and not self._has_no_room())

    def _is_held_up(self, channel: ChannelId) -> bool:
        """Whether what comes from outside must wait a little, for a loop has enough to do already.

        What has just been sent within the actor is still in the processor's cache, and goes round first. What waits for
        it in another actor's channel waits as bytes, a tenth of what the records take.
        """
        described = self.inputs[channel]
        if described.is_back:
            return False
        is_outside = not described.within_actor and self.core.rounds is None
        if is_outside and self.turns % OUTSIDE_TURNS and self.around.is_going_round():
            return True
        if not self.looping or self.turns % REGULAR_TURNS == 0:
            return False
        return sum(arrivals.bytes_waiting for arrivals in self.looping) > self.loop_bytes_max

    def _take(self, channel: ChannelId, taken_max: int, until_ns: int) -> None:
        """Take what has arrived on a channel, as long as it is batches and there is time."""
        core = self.core
        pace = self.paces[channel]
        if pace.is_cheap and not self.calls_max:
            self._take_whole(channel, taken_max, pace)
            return
        if core.front(channel) is None:
            effects = core.take(channel)
            self._on_consumed(channel, self.around.clock_ns())
            self.carry_out(effects)
            return
        described = self.inputs[channel]
        records_max = min(taken_max, self.records_left)
        emitted: Emitted = []
        records, began_ns = 0, self.around.clock_ns()
        while True:
            batches = self._chunk(channel, pace.chunk(self._within_calls(records_max - records)))
            count = sum(map(len, batches))
            for batch in merge(batches) if len(batches) > 1 else batches:
                emitted += self.runtime.process(described, batch, self.around.now_ms)
            records += count
            now_ns = self.around.clock_ns()
            pace.note(count, now_ns - began_ns)
            if now_ns >= until_ns or self._within_calls(records_max - records) <= 0 or core.more(channel) is None:
                break
            began_ns = now_ns
        self._on_consumed(channel, now_ns)
        self._took(channel, records, _merged(emitted))

    def _take_whole(self, channel: ChannelId, taken_max: int, pace: Pace) -> None:
        """Take batches that are quickly processed, as they are."""
        core = self.core
        taken = core.take(channel)
        if len(taken) != 1 or type(taken[0]) is not Process:
            self._on_consumed(channel, self.around.clock_ns())
            self.carry_out(taken)
            return
        batches = [self._batch(taken[0].payload).rest(taken[0].skip)]
        records = len(batches[0])
        taken_max = min(pace.chunk(taken_max), self.records_left)
        while records < taken_max and (payload := core.take_more(channel)) is not None:
            batches.append(self._batch(payload))
            records += len(batches[-1])
        if records > self.records_left:
            records = self.records_left
            batches = list(_first(batches, records))
        described, began_ns = self.inputs[channel], self.around.clock_ns()
        emitted: Emitted = []
        for batch in merge(batches) if len(batches) > 1 else batches:
            emitted += self.runtime.process(described, batch, self.around.now_ms)
        now_ns = self.around.clock_ns()
        pace.note(records, now_ns - began_ns)
        self._on_consumed(channel, now_ns)
        self._took(channel, records, emitted)

    def _took(self, channel: ChannelId, records: int, emitted: Emitted) -> None:
        """User code has seen these records: send what it emitted, and only then look behind them."""
        self._count(records)
        if self.inputs[channel].is_back:
            self.around.counts.hops += records
        self._emit(emitted)
        if self.records_left <= 0:
            # The rest of the batch is not processed: nothing behind it may take effect.
            self.around.on_records_due(self.id)
            return
        behind = self.core.on_processed(channel)
        if behind:
            self.carry_out(behind)

    def _chunk(self, channel: ChannelId, records_max: int) -> list[Batch]:
        """The next records of a channel that has some: whole batches as long as they fit, or a part of one."""
        core = self.core
        front = core.front(channel)
        if front is None:
            raise ProtocolError(f"task {self.id}: no batch of channel {channel} is due")
        payload, skip = front
        batch = self._opened(channel, payload)
        end = skip + records_max
        if len(batch) > end:
            core.take_part(channel, records_max)
            part = batch.part(skip, end)
            if batch is payload and isinstance(batch.records, list):
                # What has been given to user code may change in any way, and is not to be looked at again.
                batch.records[skip:end] = [None] * records_max
            return [part]
        core.take(channel)
        batches = [batch.rest(skip)]
        left = records_max - len(batches[0])
        while left > 0 and (payload := core.more(channel)) is not None:
            batch = self._opened(channel, payload)
            left -= len(batch)
            if left >= 0:
                core.take_more(channel)
                batches.append(batch)
        return batches

    def _opened(self, channel: ChannelId, payload: Any) -> Batch:
        """The batch at the front, decoded once for all its parts."""
        opened = self.opened.get(channel)
        if opened is None or opened[0] is not payload:
            opened = self.opened[channel] = payload, self._batch(payload)
        return opened[1]

    def _within_calls(self, records: int) -> int:
        """How many of so many records may be given to operators that call outside: each may become a call."""
        return min(records, self.calls_max - len(self.runtime.unanswered)) if self.calls_max else records

    def _count(self, records: int) -> None:
        self.around.counts.records += records
        self.records += records
        self.records_left -= records

    def _on_consumed(self, channel: ChannelId, now_ns: int) -> None:
        arrivals = self.arrivals.get(channel)
        if arrivals is not None:
            arrivals.on_consumed(now_ns, self.free_ns)

    def _batch(self, payload: Any) -> Batch:
        if isinstance(payload, Stored):
            payload = payload.load()
        try:
            return decode(payload) if isinstance(payload, bytes) else payload
        except (UnpicklingError, EOFError) as error:
            raise ChannelIntegrityError(
                f"task {self.id}: {len(payload)} bytes are no batch ({error}): it was damaged on its way; the "
                "attempt must be restored from its last cut"
            ) from error

    def _read(self, read_max: int, until_ns: int) -> bool:
        if self.records_left <= 0:
            return False
        if self.runtime.exhausted:
            if self.core.busy:
                return False  # what is chained behind the source waits for a timer or a call
            self.carry_out(self.core.on_exhausted())
            return True
        if self.room.drain is not None or self.room.is_full():
            return False
        records = self._read_some(min(read_max, self.records_left, self._readable()), until_ns)
        # What is chained behind the source may keep all of it.
        if records:
            self._count(records)
            if self.records_left <= 0:
                self.around.on_records_due(self.id)
        return records > 0

    def _readable(self) -> int:
        """How many records may be read until a channel is full, if as many of them go there as of those before."""
        read = self.runtime.records_read - self.read_before
        return (
            min(
                (out.room_records() * read // out.records if out.records else read for out in self.bounded),
                default=UNBOUNDED,
            )
            or 1
        )

    def _read_some(self, records_max: int, until_ns: int) -> int:
        """Read as long as there is time, and send; returns how many records there were."""
        runtime, pace = self.runtime, self.read_pace
        emitted: Emitted = []
        first = before = runtime.records_read
        while (wanted := pace.chunk(self._within_calls(records_max - before + first))) > 0:
            began_ns = self.around.clock_ns()
            emitted += runtime.produce(wanted, self.around.now_ms)
            count, before = runtime.records_read - before, runtime.records_read
            now_ns = self.around.clock_ns()
            pace.note(count, now_ns - began_ns)
            if count < wanted or now_ns >= until_ns:
                break
        self._emit(_merged(emitted))
        return before - first

    def _fire_timers(self) -> bool:
        due_ms = self.runtime.next_timer_ms
        if due_ms is None or due_ms > self.around.now_ms:
            return False
        self._emit(self.runtime.fire_timers(self.around.now_ms))
        return True

    def _call(self) -> None:
        for call_id in self.runtime.unanswered[: self.calls_max]:
            if call_id not in self.called:
                self.called.add(call_id)
                self.around.call(self.id, call_id, self.runtime.call(call_id))

    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        """A call outside has an answer."""
        self.called.discard(call_id)
        self._emit(self.runtime.on_answer(call_id, result, error))

    # -- control -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All tasks of the attempt are restored."""
        self.carry_out(self.core.start(busy=self._is_busy()))

    def obey(self, order: Order) -> None:
        """An order of the coordinator."""
        match order:
            case Trigger(_, epoch, mode, within, patience_ms):
                self.core.now_ms = self.around.steady_ms
                self.carry_out(self.core.on_trigger(epoch, mode, within, patience_ms))
            case Abort(_, epoch, mode):
                self.room.on_over(epoch)
                self.free_ns = self.around.clock_ns()
                self.carry_out(self.core.on_abort(epoch, mode))
            case Complete(_, epoch, names):
                self.room.on_over(epoch)
                self.carry_out(self.core.on_complete(epoch, names))
            case TellToEnd():
                self.carry_out(self.core.on_told_to_end())
            case _:
                raise ProtocolError(f"{order} is no order for a task")

    def on_written(self, epoch: Epoch | None, files: Any, failure: str | None) -> None:
        """A snapshot is written, or could not be."""
        if failure is None:
            self.snapshots.written(epoch, files)
            self.carry_out(self.core.on_written(epoch))
        else:
            self.carry_out(self.core.on_write_failed(epoch, failure))

    def remaining(self) -> list[TaskRemaining]:
        """What is still to be done here for each epoch that is under way."""
        found: list[TaskRemaining] = []
        for epoch, remaining in self.core.remaining().items():
            if remaining.stage is Stage.CAPTURED:
                remaining = remaining._replace(amount=-self.snapshots.pieces)
            found.append(TaskRemaining(self.id, epoch, remaining))
        return found

    # -- effects -------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order; those that user code leads to follow."""
        waiting = deque(effects)
        while waiting:
            waiting.extend(self._carry_out_one(waiting.popleft()))

    def _carry_out_one(self, effect: Effect) -> Iterable[Effect]:
        core, around = self.core, self.around
        match effect:
            case Process(channel, payload, skip):
                batch = self._batch(payload).rest(skip)
                self._emit(self.runtime.process(self.inputs[channel], batch, around.now_ms))
                return core.on_processed(channel)
            case core_effects.Send(channel, item):
                self.outputs[channel].send(item)
                if isinstance(item, Barrier):
                    self.room.on_sent(item)
            case core_effects.Capture(epoch):
                self.snapshots.captured(epoch, self.runtime.capture(epoch or Epoch(0), core.attempt))
                core.on_captured(epoch, tuple(t.name for t in self.runtime.transactions))
                self.free_ns = around.clock_ns()
                around.on_captured(self.id, epoch)
            case core_effects.Write(epoch, record):
                self.snapshots.write(epoch, record, core.alignment.captured[False])
            case core_effects.Acknowledge(epoch):
                around.report(self.id, effect, self.snapshots.files.pop(epoch, None))
            case core_effects.AcknowledgeEnd():
                around.report(self.id, effect, self.snapshots.files.get(None))
            case core_effects.Decline() | core_effects.Committed():
                around.report(self.id, effect)
            case core_effects.Discard(epoch):
                self.snapshots.discard(epoch)
            case core_effects.Commit(epoch, names):
                self.runtime.commit(names)
                return core.on_committed(epoch)
            case _:
                return self._run_user_code(effect)
        return ()

    def _run_user_code(self, effect: Effect) -> Iterable[Effect]:
        core, runtime, now_ms = self.core, self.runtime, self.around.now_ms
        self.free_ns = self.around.clock_ns()
        match effect:
            case core_effects.RunRoundEnd(path, iteration):
                self._emit(runtime.on_round_end(path, now_ms))
                return core.on_round_hooks_ran(runtime.take_contributions(iteration) if iteration else None)
            case core_effects.RunDecide(path, contributions):
                return core.on_decided(runtime.decide(path, contributions))
            case core_effects.RunReleaseRound():
                self._emit(runtime.release_round())
                return core.on_round_released()
            case core_effects.RunReleaseResult(iteration):
                self._emit(runtime.release_result())
                return core.on_result_released(runtime.take_contributions(iteration) if iteration else None)
            case core_effects.RunEnd():
                self._emit(runtime.end(now_ms))
                return core.on_end_hooks_ran()
            case _:
                raise ProtocolError(f"task {self.id}: {effect} is no effect that a driver knows")

    def _emit(self, emitted: Iterable[tuple[ChannelId, Batch]]) -> None:
        sent, outputs = self.core.sent, self.outputs
        for channel, batch in emitted:
            out, records = outputs[channel], len(batch)
            records_max = out.batch_records_max
            out.records += records
            for part in (batch,) if records <= records_max else _parts(batch, records_max):
                out.send(sent(channel, part if out.is_local else encode(part)))
        if self.waits:
            self._tell_busy()

    def _is_busy(self) -> bool:
        return self.runtime.next_timer_ms is not None or bool(self.runtime.unanswered)

    def _tell_busy(self) -> None:
        busy = self._is_busy()
        if busy != self.core.busy:
            self.carry_out(self.core.on_busy(busy))


def _merged(emitted: Emitted) -> Emitted:
    """What was emitted in several chunks, in as few batches as it would have been in one."""
    by_channel: dict[ChannelId, list[Batch]] = {}
    for channel, batch in emitted:
        by_channel.setdefault(channel, []).append(batch)
    if len(by_channel) == len(emitted):
        return emitted
    return [(channel, batch) for channel, batches in by_channel.items() for batch in merge(batches)]


def _first(batches: Iterable[Batch], records: int) -> Iterator[Batch]:
    """The first so many records."""
    for batch in batches:
        if records <= 0:
            return
        yield next(_parts(batch, records))
        records -= len(batch)


def _parts(batch: Batch, records_max: int = SENT_RECORDS_MAX) -> Iterator[Batch]:
    """A batch that has grown large, in parts: what a loop multiplies must not end up in one that fits no memory."""
    for start in range(0, len(batch), records_max):
        rows = slice(start, start + records_max)
        yield Batch(batch.records[rows], batch.hops if isinstance(batch.hops, int) else batch.hops[rows])
