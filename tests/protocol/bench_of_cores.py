"""A bench with some tasks on it, wired by hand. A test says what happens, step by step, and looks at what is left.

    bench = Bench(graph("items -> head", "head -> body", "body => head"))
    bench.emit("items->head", 1)        user code of `items` sends a record, a batch of its own
    bench.deliver("items->head")        the first thing on that wire is received
    bench.take("items->head")           and processed
    bench.trigger("head", 1)            the coordinator starts epoch 1 there
    bench.log(1, "body->head")          what the loop log of epoch 1 holds

`=>` is a back edge. A task is named "body", or "body/1" if it has brothers. Nothing happens by itself but what follows
from an event: effects are carried out, files are durable at once unless `writes_at_once` is False.

The tasks have the driver that ships. User code is a function of the bench's, and the ports lead to the bench.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.operators.rerouting import reroute
from backedge.engine.operators.sending import Emitted
from backedge.engine.task.channel_ends import Arrivals
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.ports import FlowLimits, Observer, Ports
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.kinds import Iterate, Map, Read
from backedge.graphs.operator_kind import OperatorKind
from backedge.graphs.plan import Operator, Routing
from backedge.graphs.sources_and_sinks import Items
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot
from backedge.recovery.protocol.channels import Queued
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Decline, Discard, Effect, TaskRecord, Write
from backedge.recovery.protocol.messages import Barrier, Data, Item, Mode, marker_in
from backedge.recovery.protocol.task import TaskCore
from proof.tiny import tiny_plan
from tests.protocol.taking_back import restored_parts

Sends = Iterable[tuple[str, Any]]
Step = Callable[[Any, Any], Sends]
"""User code: (state, record) -> [(receiving operator, record)]; it may change the state in place."""


def graph(
    *edges: str,
    iterations: Sequence[str] = (),
    forward: Sequence[str] = (),
    actors: str = "task",
    parallelism: int = 1,
    **sizes: int,
) -> Deployment:
    """A deployment from edges like "a -> b", back edges like "b => a"; sources are what nothing enters.

    An iteration's head is named in `iterations`: what comes over its back edge is returned, the first edge that leaves
    it goes into the body, the second is its result. The edges in `forward` lead from each task to that of its number,
    all others anywhere. `sizes` are the parallelism of single operators.
    """
    ends = [edge.replace("=>", "->").split(" -> ") for edge in edges]
    names = list(dict.fromkeys(name for pair in ends for name in pair))
    entered = {receiver for _, receiver in ends}
    left: dict[str, int] = {}
    made: list[tuple[str, str, str | None, Routing]] = []
    for edge, (sender, receiver) in zip(edges, ends, strict=True):
        number = left[sender] = left.get(sender, -1) + 1
        output = ("body", "result")[number] if sender in iterations else f"out{number}"
        is_back = "=>" in edge
        input = ("returned" if is_back else "start") if receiver in iterations else f"from_{sender}"
        loop = None if not is_back else receiver if receiver in iterations else f"{sender}=>{receiver}"
        routing = Routing.FORWARD if edge in forward else Routing.HASH
        made.append((f"{sender}.{output}", f"{receiver}.{input}", loop, routing))
    operators = [Operator(n, _kind(n, entered, iterations), parallelism=sizes.get(n, parallelism)) for n in names]
    plan = tiny_plan("bench", operators, made)
    plan = replace(plan, edges=tuple(replace(edge, by=str) for edge in plan.edges))
    return expand(plan, parallelism, actors)  # type: ignore[arg-type]


def _kind(name: str, entered: set[str], iterations: Sequence[str]) -> OperatorKind:
    return Iterate() if name in iterations else Map(abs) if name in entered else Read(Items([]))


LOOP = graph("items -> head", "head -> body", "body => head")
JOIN = graph("left -> join", "right -> join", "join -> out")


def task_id(name: str) -> TaskId:
    operator, _, index = name.partition("/")
    return TaskId(operator, int(index or 0))


def leave_whole(operator: Operator, wholes: Sequence[bytes | None], parallelism: int) -> list[bytes | None]:
    """What belonged to the tasks themselves is left behind."""
    return [None] * parallelism


class BenchCapture:
    """A state that is encoded at once."""

    base: Epoch | None = None
    keys = 0

    def __init__(self, states: dict[str, OperatorState]) -> None:
        self.states = states

    def encode_some(self, entries_max: int) -> bool:
        return True

    def discard(self) -> None:
        """Nothing is held."""


class BenchRuntime:
    """User code of one task: the step that the bench has for it, or what an iteration's head does."""

    waits = reads = has_unread = False
    records_read = 0
    next_timer_ms = None
    open_calls = 0
    unanswered = ()
    transactions: tuple[Any, ...] = ()

    def __init__(self, bench: Bench, task: Task) -> None:
        self.bench = bench
        self.task = task
        self.id = task.id

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        bench, emitted = self.bench, []
        for record in batch.records:
            bench.processed[self.id].append(record)
            if self.task.iteration is not None:
                if channel.edge.input == "returned":
                    bench.gathered[self.id].append(record)
                else:
                    emitted += self._released("body", [record])
            elif (step := bench.steps.get(self.id.name)) is not None:
                sends = step(bench.states[self.id], record)
                emitted += [(bench.channel(f"{self.id}->{receiver}"), Batch([sent])) for receiver, sent in sends]
        return emitted

    def on_round_end(self, path: tuple[int, ...], now_ms: int) -> Emitted:
        self.bench.round_ends[self.id].append(path)
        return []

    def take_contributions(self, iteration: str) -> Any:
        return str(self.id)

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        self.bench.decisions[self.id].append((path, {str(task): value for task, value in contributions.items()}))
        return path[-1] + 1 < self.bench.rounds

    def release_round(self) -> Emitted:
        return self._released("body", self._take_gathered())

    def release_result(self) -> Emitted:
        return self._released("result", self._take_gathered())

    def end(self, now_ms: int) -> Emitted:
        self.bench.hooks.append(self.id.name)
        return []

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> BenchCapture:
        return BenchCapture({self.id.name: OperatorState(whole=self.dump())})

    def dump(self) -> bytes:
        return pickle.dumps((self.bench.states[self.id], self.bench.gathered[self.id]))

    def commit(self, names: Sequence[str]) -> None:
        """The bench has no sinks."""

    def _take_gathered(self) -> list[Any]:
        records, self.bench.gathered[self.id] = self.bench.gathered[self.id], []
        return records

    def _released(self, output: str, records: list[Any]) -> Emitted:
        targets = [c.id for c in self.task.outputs if c.edge.output == output]
        return [(targets[turn_of(r, len(targets))], Batch([r])) for r in records if targets]


class BenchPorts(Observer):
    """The ports of one task: all lead to the bench."""

    now_ms = steady_ms = turn_ns = 0

    def __init__(self, bench: Bench, runtime: BenchRuntime) -> None:
        self.bench = bench
        self.runtime = runtime

    def clock_ns(self) -> int:
        return 0

    def way(self, channel: Channel) -> Callable[[Item], None]:
        return self.bench.wires[channel.id].append

    def credit_way(self, channel: Channel) -> None:
        return None

    def flush(self) -> None:
        pass

    def receiving_end(self, channel: Channel) -> Arrivals:
        return self.bench.drivers[channel.id.receiver].arrivals[channel.id]

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        self.bench.told.append((task, effect))

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Any) -> None:
        record: TaskRecord = snapshot.record
        self.bench.told.append((task, Write(epoch, record)))
        self.bench.records[epoch, task] = record
        if self.bench.writes_at_once:
            self.bench.written.append((task, epoch))

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        self.bench.told.append((task, Discard(epoch)))

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        self.bench.captured[epoch, task] = self.runtime.dump()
        self.bench.drivers[task].snapshots.encode_piece(epoch, entries_max=1)

    def on_committed(self, task: TaskId, names: tuple[str, ...]) -> None:
        self.bench.committed.append((task, names))


class Bench:
    """The tasks of one attempt, their wires, their user code, and everything that they have told so far.

    - states: the state of the user code of each task, any picklable value. Restored from `restored`.
    - gathered: what the body of an iteration returned to each head in this round, which is state as well.
    - processed: the records that user code has seen, by task, in order.
    - told: every effect that is meant for the coordinator or the disk, with its task, in order.
    - hooks: the tasks whose end hooks have run, in order.
    - committed: the transactions that sinks were told to publish. written: snapshots that are durable, and whose tasks
      have not been told yet.
    """

    driver_class = TaskDriver

    def __init__(
        self,
        deployment: Deployment,
        steps: Mapping[str, Step] | None = None,
        states: Mapping[str, Any] | None = None,
        *,
        restored: Cut | None = None,
        attempt: int = 1,
        writes_at_once: bool = True,
        rounds: int = 1,
    ) -> None:
        self.deployment = deployment
        self.steps = dict(steps or {})
        self.attempt = Attempt(attempt)
        self.writes_at_once = writes_at_once
        self.rounds = rounds
        self.states: dict[TaskId, Any] = dict.fromkeys(deployment.tasks)
        self.states.update({task_id(name): state for name, state in (states or {}).items()})
        self.gathered: dict[TaskId, list[Any]] = {id: [] for id in deployment.tasks}
        parts = {} if restored is None else restored_parts(restored, deployment, reroute, leave_whole)
        for id, part in parts.items():
            whole = part.operators[id.name].whole
            if whole is not None:
                self.states[id], self.gathered[id] = pickle.loads(whole)
        self.cores = {id: TaskCore(task, self.attempt, encode, parts.get(id)) for id, task in deployment.tasks.items()}
        self.wires: dict[ChannelId, deque[Item]] = {channel: deque() for channel in deployment.channels}
        self.processed: dict[TaskId, list[Any]] = {id: [] for id in deployment.tasks}
        self.round_ends: dict[TaskId, list[tuple[int, ...]]] = {id: [] for id in deployment.tasks}
        self.decisions: dict[TaskId, list[tuple[tuple[int, ...], dict[str, Any]]]] = {id: [] for id in deployment.tasks}
        self.told: list[tuple[TaskId, Effect]] = []
        self.hooks: list[str] = []
        self.committed: list[tuple[TaskId, tuple[str, ...]]] = []
        self.written: list[tuple[TaskId, Epoch | None]] = []
        self.captured: dict[tuple[Epoch | None, TaskId], bytes] = {}
        self.records: dict[tuple[Epoch | None, TaskId], TaskRecord] = {}
        self.drivers = {id: self._driver(id) for id in deployment.tasks}
        for driver in self.drivers.values():
            driver.connect()
        for id in deployment.tasks:
            self.happen(id, self.drivers[id].start)

    def _driver(self, id: TaskId) -> TaskDriver:
        runtime: Any = BenchRuntime(self, self.deployment.tasks[id])
        ports: Any = BenchPorts(self, runtime)
        return self.driver_class(self.cores[id], runtime, Ports(*[ports] * 7), FlowLimits(), self.deployment.plan)

    def happen(self, id: TaskId, event: Callable[..., Any], *details: Any) -> None:
        """Let something happen at a task, with all that follows; snapshots become durable behind it."""
        event(*details)
        while self.written:
            task, epoch = self.written.pop(0)
            self.drivers[task].on_written(epoch, None, None)

    # -- names ---------------------------------------------------------------------------------------------------

    def core(self, task: str) -> TaskCore:
        return self.cores[task_id(task)]

    def driver(self, task: str) -> TaskDriver:
        return self.drivers[task_id(task)]

    def channel(self, name: str) -> ChannelId:
        """The channel "a->b", or "a->b (restored)"."""
        ends, _, restored = name.partition(" ")
        sender, receiver = map(task_id, ends.split("->"))
        found = next(c for c in self.deployment.channels if (c.sender, c.receiver) == (sender, receiver))
        return found._replace(restored=bool(restored))

    # -- what happens --------------------------------------------------------------------------------------------

    def emit(self, channel: str | ChannelId, *records: Any) -> None:
        """User code of the sender sends these, each a batch of its own."""
        id = self.channel(channel) if isinstance(channel, str) else channel
        self.drivers[id.sender].emit([(id, Batch([record])) for record in records])

    def emit_batch(self, channel: str, *records: Any) -> None:
        """User code of the sender sends these in one batch."""
        id = self.channel(channel)
        self.drivers[id.sender].emit([(id, Batch(list(records)))])

    def deliver(self, channel: str | ChannelId, count: int = 1) -> None:
        """The next things on this wire are received."""
        id = self.channel(channel) if isinstance(channel, str) else channel
        for _ in range(count):
            self.receive(id, self.wires[id].popleft())

    def deliver_each(self, *channels: str) -> None:
        for channel in channels:
            self.deliver(channel)

    def receive(self, channel: str | ChannelId, item: Item, attempt: int | None = None) -> None:
        """This very thing is received, whatever is on the wire."""
        id = self.channel(channel) if isinstance(channel, str) else channel
        of_attempt = self.attempt if attempt is None else Attempt(attempt)
        self.happen(id.receiver, self.drivers[id.receiver].receive, id, of_attempt, item)

    def take(self, channel: str | ChannelId, count: int = 1) -> None:
        """The next batches of a ready channel are processed."""
        id = self.channel(channel) if isinstance(channel, str) else channel
        for _ in range(count):
            self.happen(id.receiver, self.drivers[id.receiver].take, id, 1)

    def take_part(self, channel: str, records: int = 1) -> None:
        """So many more records of the batch at the front are processed; it has more."""
        id = self.channel(channel)
        self.happen(id.receiver, partial(self.drivers[id.receiver].take, id, records, in_parts=True))

    def tick(self, task: str, now_ms: int) -> None:
        self.perform(task_id(task), self.core(task).on_tick(now_ms))

    def pass_over(self, channel: str) -> None:
        """The next batch on this wire is received and processed."""
        self.deliver(channel)
        self.take(channel)

    def pass_on(self, channel: str, *records: Any) -> None:
        """These are sent, received and processed, one after another."""
        for record in records:
            self.emit(channel, record)
            self.pass_over(channel)

    def trigger(
        self, task: str | TaskId, epoch: int, mode: Mode = Mode.ALIGNED, patience_ms: int | None = None
    ) -> None:
        id = task_id(task) if isinstance(task, str) else task
        self.perform(id, self.cores[id].on_trigger(Epoch(epoch), mode, patience_ms))

    def open_epoch(self, epoch: int, mode: Mode = Mode.ALIGNED) -> None:
        """Source and head of `LOOP` are triggered, and the head receives the barrier of its source."""
        for task in ("items", "head"):
            self.trigger(task, epoch, mode)
        self.deliver("items->head")

    def abort(self, task: str, epoch: int, mode: Mode = Mode.ALIGNED) -> None:
        self.perform(task_id(task), self.core(task).on_abort(Epoch(epoch), mode))

    def complete(self, task: str, epoch: int, *names: str) -> None:
        self.perform(task_id(task), self.core(task).on_complete(Epoch(epoch), names))

    def exhaust(self, task: str) -> None:
        self.perform(task_id(task), self.core(task).on_exhausted())

    def tell_to_end(self, task: str) -> None:
        self.perform(task_id(task), self.core(task).on_told_to_end())

    def set_busy(self, task: str, busy: bool) -> None:
        self.perform(task_id(task), self.core(task).on_busy(busy))

    def write(self, task: str, epoch: int | None) -> None:
        """The files of this epoch are durable now (for `writes_at_once=False`)."""
        self.happen(task_id(task), self.driver(task).on_written, None if epoch is None else Epoch(epoch), None, None)

    def fail_write(self, task: str, epoch: int | None) -> None:
        at = None if epoch is None else Epoch(epoch)
        self.happen(task_id(task), self.driver(task).on_written, at, None, "the disk is full")

    def moves(self) -> list[tuple[str, ChannelId]]:
        """Everything that wires and tasks can do next."""
        found = [("deliver", id) for id, wire in self.wires.items() if wire]
        return found + [("take", id) for core in self.cores.values() for id in core.ready()]

    def run(self) -> None:
        """First come, first served, until nothing can move."""
        while moves := self.moves():
            name, channel = moves[0]
            getattr(self, name)(channel)

    def perform(self, id: TaskId, effects: Iterable[Effect]) -> None:
        self.happen(id, self.drivers[id].carry_out, effects)

    # -- what is left --------------------------------------------------------------------------------------------

    def seen(self, task: str) -> list[Any]:
        return self.processed[task_id(task)]

    def on_wire(self, channel: str) -> list[Any]:
        """What is under way: records as they are, marks by name."""
        return [_shown(item) for item in self.wires[self.channel(channel)]]

    def queued(self, channel: str) -> list[Any]:
        """What was received and is not processed, or has not taken effect yet."""
        items = self.cores[self.channel(channel).receiver].inboxes[self.channel(channel)].queue
        return [_shown(item) for item in items]

    def tells(self, task: str) -> list[Effect]:
        """What this task told coordinator and disk."""
        return [effect for id, effect in self.told if id == task_id(task)]

    def acknowledged(self, task: str) -> list[int]:
        return [effect.epoch for effect in self.tells(task) if isinstance(effect, Acknowledge)]

    def declined(self, task: str) -> list[int]:
        return [effect.epoch for effect in self.tells(task) if isinstance(effect, Decline)]

    def has_ended(self, task: str) -> bool:
        return any(isinstance(effect, AcknowledgeEnd) for effect in self.tells(task))

    def is_verified(self, task: str) -> bool:
        """Whether its last state stands for whatever comes."""
        return any(isinstance(effect, AcknowledgeEnd) and effect.verified is None for effect in self.tells(task))

    def has_captured(self, epoch: int, task: str) -> bool:
        return (Epoch(epoch), task_id(task)) in self.captured

    def state(self, epoch: int, task: str) -> Any:
        """The state of a task in the cut of this epoch."""
        return pickle.loads(self.captured[Epoch(epoch), task_id(task)])[0]

    def is_sealed(self, epoch: int, task: str) -> bool:
        return (Epoch(epoch), task_id(task)) in self.records

    def log(self, epoch: int | None, channel: str) -> list[Any]:
        """What the cut holds of this channel: records, and round markers by their path."""
        id = self.channel(channel)
        key = None if epoch is None else Epoch(epoch)
        record = next(r for r in self.records[key, id.receiver].inputs if r.channel == id)
        return [_record_in(entry.payload) for entry in record.log]

    def left(self, epoch: int, channel: str) -> list[Any]:
        """The records that a restored run takes from the log of this channel."""
        id = self.channel(channel)
        record = next(r for r in self.records[Epoch(epoch), id.receiver].inputs if r.channel == id)
        return [one for entry in record.log for one in decode(entry.payload).records[entry.skip :]]

    def has_overtaken(self, epoch: int, task: str) -> bool:
        """Whether the task captured past its queues."""
        return self.records[Epoch(epoch), task_id(task)].overtook

    def is_complete(self, epoch: int) -> bool:
        """Whether every task has written this epoch, or has ended."""
        return all((Epoch(epoch), id) in self.records or (None, id) in self.records for id in self.cores)

    def cut(self, epoch: int) -> Cut:
        """The cut of a complete epoch, to restore another bench from."""
        snapshots = {id: self._snapshot(Epoch(epoch), id) for id in self.cores}
        return Cut(Epoch(epoch), self.attempt, "bench", "aligned", False, snapshots, self.deployment.parallelism)

    def _snapshot(self, epoch: Epoch, id: TaskId) -> TaskSnapshot:
        filed = epoch if (epoch, id) in self.records else None
        record = self.records[filed, id]
        operators = {id.name: OperatorState(whole=self.captured[filed, id])}
        return TaskSnapshot(
            id,
            epoch,
            self.attempt,
            operators,
            record.inputs,
            record.outputs,
            record.ended,
            record.rounds,
            record.overtook,
        )


def turn_of(record: Any, count: int) -> int:
    """Which of so many tasks a released record goes to: numbers by their remainder, anything else to the first."""
    return record % count if isinstance(record, int) else 0


def _record_in(payload: bytes) -> Any:
    marker = marker_in(payload)
    return decode(payload).records[0] if marker is None else marker.path


def _shown(item: Item | Queued) -> Any:
    match item:
        case Data(_, payload, marker) | Queued(_, payload, marker):
            batch = decode(payload) if isinstance(payload, bytes) and marker is None else payload
            return marker.path if marker is not None else batch.records[0]
        case Barrier(epoch):
            return f"barrier {epoch}"
        case _:
            return "END"
