"""One simulated process: it hosts a task's core and its runtime, and carries out what the core says. No decisions."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from engine.answering import Answer, Call
from engine.batch import Batch, decode, encode
from engine.simulation.record import (
    Barriered,
    Captured,
    EndSent,
    Event,
    Ran,
    Sent,
    Took,
)
from engine.simulation.record import (
    Committed as CommittedEvent,
)
from engine.task import TaskCore
from graphs.deployment import Channel, Deployment
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.cut import TaskSnapshot
from recovery.effects import (
    Acknowledge,
    AcknowledgeEnd,
    Capture,
    Commit,
    Committed,
    Decline,
    Discard,
    Effect,
    Process,
    RunDecide,
    RunEnd,
    RunReleaseResult,
    RunReleaseRound,
    RunRoundEnd,
    Send,
    TaskRecord,
    Write,
)
from recovery.messages import Barrier, Data, Item
from recovery.orders import Abort, Complete, Order, TellToEnd, Trigger
from recovery.protocol_errors import ProtocolError


class Surroundings(Protocol):
    """What a host touches: the network, the store, the clock, the trace."""

    now_ms: int
    traces: bool

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None: ...

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None: ...

    def store_file(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None: ...

    def drop_file(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None: ...

    def note(self, event: Event) -> None: ...

    def answer(self, call: Call) -> Answer: ...


class Host:
    """A task of one attempt.

    `offers` is what can happen here next, or None from when something happens until the world lists it anew: in most
    steps nothing happens to most hosts.
    """

    def __init__(self, core: TaskCore, runtime: Any, deployment: Deployment, records_max: int) -> None:
        self.core = core
        self.runtime = runtime
        self.id = core.task.id
        self.attempt = core.attempt
        self.records_max = records_max
        self.is_source = core.task.is_source
        self.channels: dict[ChannelId, Channel] = {c.id: c for c in core.task.inputs}
        for id in core.inboxes.keys() - self.channels.keys():
            self.channels[id] = next(c for c in core.task.inputs if c.id.edge == id.edge)
        self.is_started = False
        self.orders: deque[Any] = deque()
        self.aborts: deque[Any] = deque()
        self.captures: dict[Epoch | None, Any] = {}
        self.encoded: set[Epoch | None] = set()
        self.writes: dict[Epoch | None, TaskRecord] = {}
        self.offers: list[tuple[Any, ...]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be listed anew: equal hosts are equal bytes."""
        return {**self.__dict__, "offers": None}

    # -- events --------------------------------------------------------------------------------------------------

    def receive(self, channel: ChannelId, attempt: Attempt, item: Item, around: Surroundings) -> None:
        """Something arrived from the network."""
        self.core.now_ms = around.now_ms
        self.carry_out(self.core.receive(channel, attempt, item), around)

    def take(self, channel: ChannelId, around: Surroundings) -> None:
        """Process one batch."""
        if around.traces:
            self._take_traced(channel, around)
        else:
            self.carry_out(self.core.take(channel), around)

    def may_take_part(self, channel: ChannelId) -> bool:
        """Whether there is a record to process that is not the last one of its batch."""
        front = self.core.front(channel)
        return front is not None and len(_batch(front[0])) - front[1] > 1

    def take_part(self, channel: ChannelId, around: Surroundings) -> None:
        """Process one record of a batch that has more."""
        self.carry_out(self.core.take_part(channel, 1), around)

    def lose_patience(self, around: Surroundings) -> None:
        """An aligned epoch has waited long enough."""
        self.carry_out(self.core.on_tick(around.now_ms), around)

    def _take_traced(self, channel: ChannelId, around: Surroundings) -> None:
        inbox = self.core.inboxes[channel]
        consumed = inbox.consumed
        effects = self.core.take(channel)
        if inbox.consumed != consumed:
            around.note(Took(self.attempt, self.id, channel, inbox.consumed))
        self.carry_out(effects, around)

    def produce(self, around: Surroundings) -> None:
        """A source reads on."""
        self._ran("produce", around, detail=self.records_max)
        self._emit(self.runtime.produce(self.records_max, around.now_ms), around)

    def exhaust(self, around: Surroundings) -> None:
        """A source has nothing more."""
        self.carry_out(self.core.on_exhausted(), around)

    def fire_timers(self, around: Surroundings) -> None:
        """Time has come."""
        self._ran("timer", around, detail=around.now_ms)
        self._emit(self.runtime.fire_timers(around.now_ms), around)

    def answer(self, call_id: int, around: Surroundings) -> None:
        """A call outside has an answer."""
        call = self.runtime.call(call_id)
        self._ran("answer", around, payload=pickle.dumps(call.record, 5))
        self._emit(self.runtime.on_answer(call_id, *around.answer(call)), around)

    def start(self, around: Surroundings) -> None:
        """All tasks of the attempt are restored."""
        self.is_started = True
        self.carry_out(self.core.start(busy=self._is_busy()), around)

    def obey(self, order: Order, around: Surroundings) -> None:
        """An order of the coordinator arrived."""
        match order:
            case Trigger(_, epoch, mode, within, patience_ms):
                self.core.now_ms = around.now_ms
                self.carry_out(self.core.on_trigger(epoch, mode, within, patience_ms), around)
            case Abort(_, epoch, mode):
                self.carry_out(self.core.on_abort(epoch, mode), around)
            case Complete(_, epoch, names):
                self.carry_out(self.core.on_complete(epoch, names), around)
            case TellToEnd():
                self.carry_out(self.core.on_told_to_end(), around)
            case _:
                raise ProtocolError(f"{order} is no order for a task")

    def encode_some(self, epoch: Epoch | None, entries_max: int) -> None:
        """Encode a part of what was captured."""
        if self.captures[epoch].encode_some(entries_max):
            self.encoded.add(epoch)

    def may_write(self, epoch: Epoch | None) -> bool:
        """Whether state and log are there to be written."""
        return epoch in self.encoded

    def write(self, epoch: Epoch | None, around: Surroundings) -> None:
        """Make a snapshot durable."""
        record = self.writes.pop(epoch)
        operators = self.captures.pop(epoch).states
        self.encoded.discard(epoch)
        snapshot = TaskSnapshot(
            self.id,
            epoch if epoch is not None else self.core.alignment.captured[False],
            self.attempt,
            operators,
            record.inputs,
            record.outputs,
            record.ended,
            record.rounds,
            record.overtook,
        )
        around.store_file(self.attempt, epoch, snapshot)
        self.carry_out(self.core.on_written(epoch), around)

    def fail_write(self, epoch: Epoch | None, around: Surroundings) -> None:
        """The disk is full, say."""
        del self.writes[epoch]
        self.carry_out(self.core.on_write_failed(epoch, "the disk is full"), around)

    # -- effects -------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect], around: Surroundings) -> None:
        """Carry out effects in order; those that user code leads to follow."""
        waiting = deque(effects)
        while waiting:
            waiting.extend(self._carry_out_one(waiting.popleft(), around))

    def _carry_out_one(self, effect: Effect, around: Surroundings) -> Iterable[Effect]:
        core = self.core
        match effect:
            case Process(channel, payload, skip, until):
                batch = _part(payload, skip, until)
                is_whole = not skip and until is None
                self._ran("batch" if until is None else "part", around, channel, payload if is_whole else batch)
                self._emit(self.runtime.process(self.channels[channel], batch, around.now_ms), around)
                return core.on_processed(channel)
            case Send(channel, item):
                self._send(channel, item, around)
            case Capture(epoch):
                self.captures[epoch] = self.runtime.capture(Epoch(0) if epoch is None else epoch, self.attempt)
                around.note(Captured(self.attempt, self.id, epoch))
                core.on_captured(epoch, tuple(t.name for t in self.runtime.transactions))
            case Write(epoch, record):
                self.writes[epoch] = record
            case Acknowledge() | AcknowledgeEnd() | Decline() | Committed():
                around.report(self.attempt, self.id, effect)
            case Discard(epoch):
                self._discard(epoch, around)
            case Commit(epoch, names):
                around.note(CommittedEvent(self.attempt, self.id, names))
                self.runtime.commit(names)
                return core.on_committed(epoch)
            case _:
                return self._run_user_code(effect, around)
        return ()

    def _run_user_code(self, effect: Effect, around: Surroundings) -> Iterable[Effect]:
        core, runtime = self.core, self.runtime
        match effect:
            case RunRoundEnd(path, iteration):
                self._ran("round_end", around, detail=path)
                self._emit(runtime.on_round_end(path, around.now_ms), around)
                return core.on_round_hooks_ran(runtime.take_contributions(iteration) if iteration else None)
            case RunDecide(path, contributions):
                return core.on_decided(runtime.decide(path, contributions))
            case RunReleaseRound():
                self._ran("release_round", around)
                self._emit(runtime.release_round(), around)
                return core.on_round_released()
            case RunReleaseResult(iteration):
                self._ran("release_result", around)
                self._emit(runtime.release_result(), around)
                return core.on_result_released(runtime.take_contributions(iteration) if iteration else None)
            case RunEnd():
                self._ran("end", around)
                self._emit(runtime.end(around.now_ms), around)
                return core.on_end_hooks_ran()
            case _:
                raise ProtocolError(f"task {self.id}: {effect} is no effect that a driver knows")

    def _emit(self, emitted: Iterable[tuple[ChannelId, Batch]], around: Surroundings) -> None:
        for channel, batch in emitted:
            payload = batch if self.core.outlets[channel].within_actor else encode(batch)
            self._send(channel, self.core.sent(channel, payload), around)
        self._tell_busy(around)

    def _is_busy(self) -> bool:
        return self.runtime.next_timer_ms is not None or bool(self.runtime.unanswered)

    def _tell_busy(self, around: Surroundings) -> None:
        busy = self._is_busy()
        if busy != self.core.busy:
            self.carry_out(self.core.on_busy(busy), around)

    def _send(self, channel: ChannelId, item: Item, around: Surroundings) -> None:
        if around.traces:
            around.note(self._event_of(channel, item))
        around.send(self.attempt, channel, item)

    def _event_of(self, channel: ChannelId, item: Item) -> Event:
        if isinstance(item, Data):
            payload = item.payload if isinstance(item.payload, bytes) else encode(item.payload)
            return Sent(self.attempt, self.id, channel, item.seq, payload)
        if isinstance(item, Barrier):
            return Barriered(self.attempt, self.id, channel, item.epoch, item.mode)
        return EndSent(self.attempt, self.id, channel)

    def _ran(
        self, what: str, around: Surroundings, channel: ChannelId | None = None, payload: Any = None, detail: Any = None
    ) -> None:
        if around.traces:
            copied = payload if payload is None or isinstance(payload, bytes) else encode(payload)
            around.note(Ran(self.attempt, self.id, what, channel, copied, detail, around.now_ms))

    def _discard(self, epoch: Epoch, around: Surroundings) -> None:
        capture = self.captures.pop(epoch, None)
        if capture is not None:
            capture.discard()
        self.encoded.discard(epoch)
        self.writes.pop(epoch, None)
        around.drop_file(self.attempt, epoch, self.id)


def _batch(payload: Any) -> Batch:
    return decode(payload) if isinstance(payload, bytes) else payload


def _part(payload: Any, skip: int, until: int | None) -> Batch:
    """The records to process. Those that go by reference are let go of: user code may change them in any way."""
    batch = _batch(payload)
    if not skip and until is None:
        return batch
    end = len(batch) if until is None else until
    part = batch.part(skip, end)
    if batch is payload and isinstance(batch.records, list):
        batch.records[skip:end] = [None] * (end - skip)
    return part
