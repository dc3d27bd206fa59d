"""One simulated process: the ports of a task's driver, and the orders on their way to it. It decides nothing."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from backedge.engine.batches.batch import Batch, encode
from backedge.engine.operators.async_calls import Answer, Call
from backedge.engine.operators.runtime import KeptAnswer
from backedge.engine.simulation.checker.record import Barriered, Captured, Committed, EndSent, Event, Ran, Sent, Took
from backedge.engine.simulation.world.simulated_store import SimulatedStore
from backedge.engine.task.channel_ends import Arrivals, SendCredit, SendItem
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.ports import FlowLimits, Observer, Ports
from backedge.graphs.deployment import Channel, Deployment
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.answers import Question
from backedge.recovery.protocol.channels import Stored
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.messages import Barrier, Data, Item
from backedge.recovery.protocol.task import TaskCore


class CallsAround(Protocol):
    """What makes the calls of all processes, and checks which are made."""

    def answer(self, call: Call) -> Answer: ...

    def begin(self, host: Host, call_id: int) -> bool: ...

    def on_answers(self, host: Host, answers: Sequence[KeptAnswer]) -> None: ...

    def write(self, host: Host, answers: Sequence[KeptAnswer]) -> None: ...

    def on_sent(self, host: Host, call_id: int) -> None: ...


class Surroundings(Protocol):
    """The network, the store, the clock and the trace that a process uses."""

    now_ms: int
    traces: bool
    counts: Counter[str]
    store: SimulatedStore

    @property
    def calls(self) -> CallsAround: ...

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None: ...

    def send_credit(self, attempt: Attempt, channel: ChannelId, credit: Credit) -> None: ...

    def receiving_end(self, attempt: Attempt, channel: ChannelId) -> Arrivals | None: ...

    def is_going_round(self, actor: str) -> bool: ...

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None: ...

    def store_file(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None: ...

    def note(self, event: Event) -> None: ...


class SpilledInMemory(Stored):
    """A payload that stands for one on disk."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpilledInMemory) and self.payload == other.payload

    def __hash__(self) -> int:
        return hash(self.payload)

    def __len__(self) -> int:
        return len(self.payload)

    def load(self) -> bytes:
        return self.payload


class Host(Observer):
    """A task of one attempt in its process.

    - orders, aborts: messages on their way to the task, on two lines.
    - writes: encoded snapshots, to be written when the schedule says so. unwritten: answers, likewise.
    - makes_calls: whether the attempt of this process goes on, so that it makes calls and hears of their answers.
    - taken: the number of the last batch that was taken from each channel.
    - cost_ns: how much time passes whenever the driver looks at its clock. lag_ns: the sum of these times.
    - offers: the events that can happen here next. None after something has happened, until the world lists them again:
      most steps concern only one host.
    """

    __slots__ = (
        "aborts",
        "around",
        "attempt",
        "core",
        "cost_ns",
        "driver",
        "id",
        "is_source",
        "is_started",
        "lag_ns",
        "makes_calls",
        "offers",
        "orders",
        "runtime",
        "taken",
        "unwritten",
        "writes",
    )

    def __init__(
        self,
        core: TaskCore,
        runtime: Any,
        deployment: Deployment,
        around: Surroundings,
        limits: FlowLimits,
        make_driver: Callable[..., TaskDriver],
    ) -> None:
        self.core = core
        self.runtime = runtime
        self.around = around
        self.id = core.task.id
        self.attempt = core.attempt
        self.is_source = core.task.is_source
        self.is_started = False
        self.orders: deque[Any] = deque()
        self.aborts: deque[Any] = deque()
        self.writes: dict[Epoch | None, Callable[[], TaskSnapshot]] = {}
        self.unwritten: list[KeptAnswer] = []
        self.makes_calls = True
        self.taken: dict[ChannelId, int] = {}
        self.cost_ns = 0
        self.lag_ns = 0
        self.offers: list[tuple[Any, ...]] | None = None
        ports = Ports(self, self, self, self, self, self, self)
        self.driver = make_driver(core, runtime, ports, limits, deployment.plan)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Leave out the world and the offers, so that equal hosts are pickled as equal bytes."""
        state = {name: getattr(self, name) for name in self.__slots__ if name != "around"}
        return None, {**state, "offers": None}

    def start(self) -> None:
        """Start the task: all tasks of the attempt are restored."""
        self.is_started = True
        self.driver.connect()
        self.driver.start()

    def answer(self, call_id: int) -> None:
        self.driver.calls.on_answer(call_id, *self.around.calls.answer(self.runtime.call(call_id)))

    def calls(self) -> list[tuple[str, int]]:
        """What can happen to the calls of this task. If their answers are kept, "call" makes one first."""
        if not self.makes_calls:
            return []
        found: list[tuple[str, int]] = []
        for call_id in self.runtime.unanswered:
            is_kept = self.runtime.question(call_id) is not None
            if is_kept and self.runtime.has_answer(call_id):
                found += [("call", call_id)] if self.runtime.sendable(call_id) is not None else []
            elif is_kept and call_id not in self.driver.calls.running:
                found.append(("call", call_id))
            else:
                found.append(("answered" if is_kept else "answer", call_id))
        return found

    def write_answers(self) -> list[KeptAnswer]:
        """Make the answers durable that the process has; return them."""
        unwritten, self.unwritten = self.unwritten, []
        self.around.calls.write(self, unwritten)
        return unwritten

    def store_snapshot(self, epoch: Epoch | None) -> None:
        self.around.store_file(self.attempt, epoch, self.writes.pop(epoch)())
        self.driver.on_written(epoch, None, None)

    def fail_write(self, epoch: Epoch | None) -> None:
        """Fail to write a snapshot, as on a full disk."""
        del self.writes[epoch]
        self.driver.on_written(epoch, None, "the disk is full")

    # -- ports ---------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.around.now_ms

    steady_ms = now_ms

    @property
    def turn_ns(self) -> int:
        """The clock of the world, plus the time that the driver's work has taken."""
        return self.around.now_ms * 1_000_000 + self.lag_ns

    def clock_ns(self) -> int:
        """The same clock; each look at it takes time."""
        self.lag_ns += self.cost_ns
        return self.turn_ns

    def way(self, channel: Channel) -> SendItem:
        return partial(self._send, channel.id)

    def _send(self, channel: ChannelId, item: Item) -> None:
        self.around.send(self.attempt, channel, item)

    def credit_way(self, channel: Channel) -> SendCredit | None:
        """Send credit to the sender of a channel, if it is in another actor."""
        return None if channel.within_actor else partial(self._send_credit, channel.id)

    def _send_credit(self, channel: ChannelId, credit: Credit) -> None:
        self.around.send_credit(self.attempt, channel, credit)

    def receiving_end(self, channel: Channel) -> Arrivals:
        """The receiving end in the other task; a new end, which nobody reads, if that task has died."""
        found = self.around.receiving_end(self.attempt, channel.id)
        return found or Arrivals(None, is_back=channel.is_back, window_max=1, inputs=1, memory_bytes_max=0)

    def flush(self) -> None:
        """An item is on the wire as soon as it is sent."""

    def is_going_round(self) -> bool:
        return self.around.is_going_round(self.core.task.actor)

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Callable[[], TaskSnapshot]) -> None:
        """Write a snapshot when the schedule says so."""
        self.writes[epoch] = snapshot

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the file of an aborted epoch, or do not write it."""
        self.writes.pop(epoch, None)
        self.around.store.discard(attempt, epoch, task)

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        self.around.report(self.attempt, task, effect)

    def call(self, task: TaskId, call_id: int, call: Call) -> bool:
        """Answer a call when the schedule says so."""
        return call.question is None or self.around.calls.begin(self, call_id)

    def keep(self, task: TaskId, answers: Sequence[KeptAnswer]) -> None:
        """Write answers when the schedule says so."""
        self.unwritten += answers
        self.around.calls.on_answers(self, answers)

    def question(self, call_id: int) -> tuple[str, Question]:
        """The operator that makes a call, and its question."""
        found = self.runtime.question(call_id)
        if found is None:
            raise LookupError(f"task {self.id} keeps no answer to its call {call_id}")
        return found

    def store(self, payload: bytes) -> Stored:
        self.around.counts["spilled"] += 1
        return SpilledInMemory(payload)

    # -- the trace -----------------------------------------------------------------------------------------------

    def on_taken(self, task: TaskId, channel: ChannelId) -> None:
        """Note each batch that has left its queue."""
        if self.around.traces:
            seq = self.core.consumed(channel)
            for taken in range(self.taken.get(channel, 0) + 1, seq + 1):
                self.around.note(Took(self.attempt, task, channel, taken))
            self.taken[channel] = seq

    def on_run(self, task: TaskId, what: str, channel: ChannelId | None, batch: Batch | None, detail: Any) -> None:
        """Note what user code gets, as it is now."""
        if channel is not None:
            self.on_taken(task, channel)
        if what == "batch":
            if detail > 1:
                self.around.counts["taken_together"] += 1
            detail = None
        if what == "answer" and self.runtime.question(detail) is not None:
            self.around.calls.on_sent(self, detail)
        if not self.around.traces:
            return
        payload = None if batch is None else encode(batch)
        if what in ("answer", "set_aside"):
            payload, detail = pickle.dumps(self.runtime.call(detail).record, 5), None
        self.around.note(Ran(self.attempt, task, what, channel, payload, detail, self.around.now_ms))

    def on_sent(self, task: TaskId, channel: ChannelId, item: Item) -> None:
        """Note what is sent. A batch that is passed by reference is encoded now."""
        if not self.around.traces:
            return
        if isinstance(item, Data):
            payload = item.payload if isinstance(item.payload, bytes) else encode(item.payload)
            self.around.note(Sent(self.attempt, task, channel, item.seq, payload))
        elif isinstance(item, Barrier):
            self.around.note(Barriered(self.attempt, task, channel, item.epoch, item.mode))
        else:
            self.around.note(EndSent(self.attempt, task, channel))

    def on_split(self, task: TaskId, channel: ChannelId) -> None:
        self.around.counts["split_batches"] += 1

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        self.around.note(Captured(self.attempt, task, epoch))

    def on_committed(self, task: TaskId, names: tuple[str, ...]) -> None:
        self.around.note(Committed(self.attempt, task, names))
