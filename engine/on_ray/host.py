"""One task in its actor: carries out what the task's core says. No decisions about the protocol here.

A host takes what has arrived on a channel in one go, so that batches do not get smaller from round to round, and each
effect of the core becomes a call of the runtime, a message, or work beside the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pickle import UnpicklingError
from typing import Any, Protocol

from engine.batch import Batch, decode, encode, merge
from engine.on_ray.control import Counts
from engine.on_ray.flow import Arrivals, OutChannel
from engine.on_ray.snapshotting import Snapshotting, Writing
from engine.runtime import TaskRuntime
from engine.task import TaskCore
from graphs.deployment import Channel
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from graphs.plan import Operator
from recovery import effects as core_effects
from recovery.channels import Stored
from recovery.effects import Effect, Process
from recovery.errors import ChannelIntegrityError, ProtocolError
from recovery.messages import Barrier, Item, Mode
from recovery.orders import Abort, Complete, Order, TellToEnd, Trigger

REGULAR_TURNS = 16
OUTSIDE_TURNS = 4
SENT_RECORDS_MAX = 32_768


class Surroundings(Writing, Protocol):
    """What a host needs of its actor."""

    now_ms: int
    counts: Counts

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None: ...

    def is_going_round(self) -> bool: ...

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None: ...

    def on_records(self, task: TaskId, records: int) -> None: ...

    def call(
        self, task: TaskId, call_id: int, function: Callable[[Any], Any], record: Any, timeout_s: float | None
    ) -> None: ...


class Host:
    """A task of one attempt."""

    def __init__(
        self,
        core: TaskCore,
        runtime: TaskRuntime,
        around: Surroundings,
        loop_bytes_max: int,
        calling: Sequence[Operator],
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
        self.queues: list[Sized] = []
        self.arrivals: dict[ChannelId, Arrivals] = {}
        self.looping: list[Arrivals] = []
        self.snapshots = Snapshotting(self.id, core.attempt, around)
        calls = [operator.options for operator in calling]
        self.called: set[int] = set()
        self.calls_max: int = min([options["concurrency"] for options in calls], default=0)
        self.call_timeout_s: float | None = min([o["timeout"] for o in calls if o["timeout"]], default=None)
        self.waits = runtime.waits
        self.loop_bytes_max = loop_bytes_max
        self.turns = 0
        self.drain: Epoch | None = None

    def connect(self, outputs: Mapping[ChannelId, OutChannel], arrivals: Mapping[ChannelId, Arrivals]) -> None:
        """Where the channels lead."""
        self.outputs = dict(outputs)
        self.bounded = [outputs[c.id] for c in self.core.task.outputs if not c.is_back]
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
            self.arrivals[channel].on_received(item.payload)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            self.carry_out(self.core.receive(channel, attempt, item))

    def turn(self, taken_max: int, read_max: int) -> bool:
        """Do once whatever can be done; says whether there may be more to do before anything arrives."""
        self.turns += 1
        has_more = bool(self.snapshots.captures) and self.snapshots.encode_some()
        core = self.core
        for channel in self._ready():
            if self._has_no_room():
                break
            if self._is_held_up(channel):
                has_more = True
                continue
            self._take(channel, taken_max)
            if core.inboxes[channel].has_marker() and not self._has_no_room():
                # The last of a round: with the batch before it, for all the others wait for it.
                self._take(channel, taken_max)
        if self.is_source and not core.is_ending and not core.ended:
            has_more |= self._read(read_max)
        if self.waits and not core.ended:
            has_more |= self._fire_timers()
            self._call()
        return has_more

    def _ready(self) -> Sequence[ChannelId]:
        """The channels to take from. Mostly nothing is queued, which is quick to see."""
        return self.core.ready() if any(self.queues) else ()

    def _has_no_room(self) -> bool:
        """Whether a channel that this task sends into is full, or as many calls are out as there may be.

        During a drain no channel is full: a head holds its inputs, and the probes must get past what waits for it. The
        sources pause meanwhile, so that is no more than what was on its way.
        """
        if self.drain is None and self._is_full():
            return True
        return self.calls_max > 0 and len(self.runtime.unanswered) >= self.calls_max

    def _is_full(self) -> bool:
        """Whether a channel that this task sends into is full."""
        return any(out.is_full() for out in self.bounded)

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

    def _take(self, channel: ChannelId, taken_max: int) -> None:
        """Take what has arrived on a channel, as long as it is batches."""
        core, around = self.core, self.around
        taken = core.take(channel)
        if len(taken) != 1 or type(taken[0]) is not Process:
            self._on_consumed(channel)
            self.carry_out(taken)
            return
        batches = [self._batch(taken[0].payload)]
        records = len(batches[0])
        while records < taken_max and (payload := core.take_more(channel)) is not None:
            batches.append(self._batch(payload))
            records += len(batches[-1])
        self._on_consumed(channel)
        described = self.inputs[channel]
        around.counts.records += records
        if described.is_back:
            around.counts.hops += records
        for batch in merge(batches) if len(batches) > 1 else batches:
            self._emit(self.runtime.process(described, batch, around.now_ms))
        behind = core.on_processed(channel)
        if behind:
            self.carry_out(behind)
        around.on_records(self.id, records)

    def _on_consumed(self, channel: ChannelId) -> None:
        arrivals = self.arrivals.get(channel)
        if arrivals is not None:
            arrivals.on_consumed()

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

    def _read(self, read_max: int) -> bool:
        if self.runtime.exhausted:
            if self.core.busy:
                return False  # what is chained behind the source waits for a timer or a call
            self.carry_out(self.core.on_exhausted())
            return True
        if self.drain is not None or self._is_full():
            return False
        before = self.runtime.records_read
        self._emit(self.runtime.produce(read_max, self.around.now_ms))
        # What is chained behind the source may keep all of it.
        records = self.runtime.records_read - before
        if records:
            self.around.counts.records += records
            self.around.on_records(self.id, records)
        return records > 0

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
                self.around.call(self.id, call_id, *self.runtime.call(call_id), self.call_timeout_s)

    def on_answer(self, call_id: int, result: Any, error: Exception | None) -> None:
        """A call outside has an answer."""
        self.called.discard(call_id)
        self._emit(self.runtime.on_answer(call_id, result, error))

    # -- control -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All tasks of the attempt are restored."""
        self.carry_out(self.core.start())
        self._tell_busy()

    def obey(self, order: Order) -> None:
        """An order of the coordinator."""
        match order:
            case Trigger(_, epoch, mode, within):
                self.carry_out(self.core.on_trigger(epoch, mode, within))
            case Abort(_, epoch, mode):
                self._end_drain(epoch)
                self.carry_out(self.core.on_abort(epoch, mode))
            case Complete(_, epoch, names):
                self._end_drain(epoch)
                self.carry_out(self.core.on_complete(epoch, names))
            case TellToEnd():
                self.carry_out(self.core.on_told_to_end())
            case _:
                raise ProtocolError(f"{order} is no order for a task")

    def _end_drain(self, epoch: Epoch) -> None:
        if self.drain == epoch:
            self.drain = None

    def on_written(self, epoch: Epoch | None, files: Any, failure: str | None) -> None:
        """A snapshot is written, or could not be."""
        if failure is None:
            self.snapshots.written(epoch, files)
            self.carry_out(self.core.on_written(epoch))
        else:
            self.carry_out(self.core.on_write_failed(epoch, failure))

    # -- effects -------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order; those that user code leads to follow."""
        waiting = deque(effects)
        while waiting:
            waiting.extend(self._carry_out_one(waiting.popleft()))

    def _carry_out_one(self, effect: Effect) -> Iterable[Effect]:
        core, around = self.core, self.around
        match effect:
            case Process(channel, payload):
                self._emit(self.runtime.process(self.inputs[channel], self._batch(payload), around.now_ms))
                return core.on_processed(channel)
            case core_effects.Send(channel, item):
                self.outputs[channel].send(item)
                if isinstance(item, Barrier) and item.mode is Mode.DRAIN:
                    self.drain = item.epoch
            case core_effects.Capture(epoch):
                self.snapshots.captured(epoch, self.runtime.capture(epoch or Epoch(0), core.attempt))
                core.on_captured(epoch, tuple(t.name for t in self.runtime.transactions))
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
            out = outputs[channel]
            for part in (batch,) if len(batch) <= SENT_RECORDS_MAX else _parts(batch):
                out.send(sent(channel, part if out.is_local else encode(part)))
        if self.waits:
            self._tell_busy()

    def _tell_busy(self) -> None:
        busy = self.runtime.next_timer_ms is not None or bool(self.runtime.unanswered)
        if busy != self.core.busy:
            self.carry_out(self.core.on_busy(busy))


def _parts(batch: Batch) -> Iterator[Batch]:
    """A batch that has grown large, in parts: what a loop multiplies must not end up in one that fits no memory."""
    for start in range(0, len(batch), SENT_RECORDS_MAX):
        rows = slice(start, start + SENT_RECORDS_MAX)
        yield Batch(batch.records[rows], batch.hops if isinstance(batch.hops, int) else batch.hops[rows])
