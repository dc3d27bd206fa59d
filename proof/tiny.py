"""A runtime of plain data, for exploring every schedule: operators are functions of (state, record) on small tuples.

It takes the place of the real runtime, under the same core. A state of plain data can be copied and compared quickly,
which the explorer does some hundred thousand times.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backedge.engine.batches.batch import Batch
from backedge.engine.state.keyed_state import KeyedState, StateEncoder, keyed_entries
from backedge.engine.state.touched_keys import Bases
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.operator_kind import OperatorKind
from backedge.graphs.plan import Edge, Operator, Plan, Routing
from backedge.recovery.cut.cut import OperatorState, Transaction

Emitted = list[tuple[ChannelId, Batch]]


@dataclass(frozen=True)
class TinySource(OperatorKind):
    """Sends these records."""

    records: tuple[Any, ...]

    is_source = True


@dataclass(frozen=True)
class TinyStep(OperatorKind):
    """`function(state, record)` returns [(output, record)]."""

    function: Callable[[dict[Any, Any], Any], list[tuple[str, Any]]]

    @property
    def subject(self) -> Any:
        return self.function


@dataclass(frozen=True)
class TinyHead(OperatorKind):
    """The head of an iteration with a fixed number of rounds, if that many tasks contribute to each."""

    rounds: int
    voices: int

    in_rounds = True


class TinyCapture:
    """A state that is encoded at once. `base` and `keys` describe its keyed part, as in `Capture`."""

    def __init__(self, states: dict[str, OperatorState], base: Epoch | None = None, keys: int = 0) -> None:
        self.states = states
        self.base = base
        self.keys = keys

    def encode_some(self, entries_max: int) -> bool:
        """Do nothing: it is already encoded."""
        return True

    def discard(self) -> None:
        """Do nothing: nothing is held."""


class TinyRuntime:
    """One operator of one task.

    A record is (id, hops left, times counted): it moves to another task each time it is counted. `function(state,
    record)` gives [(output, record)].
    """

    next_timer_ms = None
    waits = False

    open_calls = 0
    unanswered = ()
    transactions: tuple[Transaction, ...] = ()

    def __init__(self, task: Task, deployment: Deployment, services: Any, seed: int, keyed_state: type) -> None:
        self.task = task
        self.operator = deployment.plan.operators[task.id.name]
        kind = self.operator.kind
        records = kind.records if isinstance(kind, TinySource) else ()
        self.records = records[task.id.index :: _width(deployment, task)]
        self.state: dict[Any, Any] = {"read": 0, "gathered": []}

    def open(self, restored: Mapping[str, OperatorState] | None, base: Epoch | None = None) -> None:
        if restored:
            whole = restored[self.operator.name].whole
            self.state = {} if whole is None else pickle.loads(whole)

    @property
    def records_read(self) -> int:
        return self.state["read"]

    @property
    def exhausted(self) -> bool:
        return self.state["read"] >= len(self.records)

    @property
    def reads(self) -> bool:
        return self.operator.kind.is_source

    @property
    def has_unread(self) -> bool:
        return self.reads and not self.exhausted

    def produce(self, records_max: int, now_ms: int) -> Emitted:
        start = self.state["read"]
        records = self.records[start : start + records_max]
        self.state["read"] += len(records)
        return self._emit([("out", record) for record in records])

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        """Run the function; an iteration's head gathers what its body returns."""
        if self.operator.kind.in_rounds:
            if channel.edge.input == "returned":
                self.state["gathered"] += batch.records
                return []
            return self._emit([("body", record) for record in batch.records])
        out: list[tuple[str, Any]] = []
        for record in batch.records:
            out += self.operator.function(self.state, record)
        self.state = dict(sorted(self.state.items(), key=str))
        return self._emit(out)

    def on_round_end(self, path: tuple[int, ...], now_ms: int) -> Emitted:
        return []

    def take_contributions(self, iteration: str) -> Any:
        """Every task contributes 1, so that a head that misses one decides differently."""
        return 1

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        """A fixed number of rounds, if every body task has contributed."""
        kind = self.operator.kind
        if not isinstance(kind, TinyHead):
            raise TypeError(f"operator {self.operator.name!r} decides about rounds and is not their head")
        return path[-1] + 1 < kind.rounds and len(contributions) == kind.voices

    def release_round(self) -> Emitted:
        return self._release("body")

    def release_result(self) -> Emitted:
        return self._release("result")

    def _release(self, output: str) -> Emitted:
        gathered, self.state["gathered"] = self.state["gathered"], []
        return self._emit([(output, record) for record in gathered])

    def end(self, now_ms: int) -> Emitted:
        return []

    def commit(self, names: Sequence[str]) -> None:
        """Do nothing: there are no sinks, and finished records stay in the state."""

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> TinyCapture:
        return TinyCapture({self.operator.name: OperatorState(whole=pickle.dumps(self.state, 5))})

    def _emit(self, out: list[tuple[str, Any]]) -> Emitted:
        emitted: Emitted = []
        for output, record in out:
            for channel in self.task.outputs:
                if channel.edge.output == output and _is_target(channel, record, self.task):
                    emitted.append((channel.id, Batch([record])))
        return emitted


@dataclass(frozen=True)
class TinyFinder(OperatorKind):
    """Hands out these splits, at most so many at a time, and ends when all have come back."""

    splits: tuple[Any, ...]
    at_once: int

    is_source = True


@dataclass(frozen=True)
class TinyReader(OperatorKind):
    """Sends each split on when it has read it, and back."""


class SplitsRuntime(TinyRuntime):
    """What hands out splits, or reads them. A split is a record."""

    def __init__(self, task: Task, deployment: Deployment, services: Any, seed: int, keyed_state: type) -> None:
        super().__init__(task, deployment, services, seed, keyed_state)
        kind = self.operator.kind
        if isinstance(kind, TinyFinder):
            self.state = {"wanted": list(kind.splits), "taken": []}
        elif isinstance(kind, TinyReader):
            self.state = {"open": []}

    @property
    def reads(self) -> bool:
        return isinstance(self.operator.kind, TinyFinder | TinyReader)

    @property
    def records_read(self) -> int:
        """Nothing depends on it."""
        return 0

    @property
    def exhausted(self) -> bool:
        """Whether all splits have come back, or none is here."""
        return not any(self.state[name] for name in ("wanted", "taken", "open") if name in self.state)

    @property
    def has_unread(self) -> bool:
        kind = self.operator.kind
        if isinstance(kind, TinyFinder):
            return bool(self.state["wanted"]) and len(self.state["taken"]) < kind.at_once
        return isinstance(kind, TinyReader) and bool(self.state["open"])

    def produce(self, records_max: int, now_ms: int) -> Emitted:
        if isinstance(self.operator.kind, TinyFinder):
            split = self.state["wanted"].pop(0)
            self.state["taken"].append(split)
            return self._emit([("out", split)])
        split = self.state["open"].pop(0)
        return self._emit([("out", split), ("finished", split)])

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        """A split has come, or come back."""
        if isinstance(self.operator.kind, TinyFinder):
            for split in batch.records:
                self.state["taken"].remove(split)
            return []
        if isinstance(self.operator.kind, TinyReader):
            self.state["open"] += batch.records
            return []
        return super().process(channel, batch, now_ms)


class PairsRuntime(TinyRuntime):
    """Sends records that leave together in one batch."""

    def _emit(self, out: list[tuple[str, Any]]) -> Emitted:
        together: dict[ChannelId, Batch] = {}
        for channel, batch in super()._emit(out):
            if channel in together:
                batch = Batch([*together[channel].records, *batch.records])
            together[channel] = batch
        return list(together.items())


class DeltaRuntime(TinyRuntime):
    """Keeps each count in a list in real keyed state and changes it in place. A cut may hold what has changed since."""

    def __init__(self, task: Task, deployment: Deployment, services: Any, seed: int, keyed_state: type) -> None:
        super().__init__(task, deployment, services, seed, keyed_state)
        self.counts: KeyedState = keyed_state(self.operator.name)
        self.bases = Bases()

    def open(self, restored: Mapping[str, OperatorState] | None, base: Epoch | None = None) -> None:
        super().open(restored, base)
        if restored:
            self.counts.restore(keyed_entries(restored[self.operator.name]).values)
        if base is not None:
            self.counts.begin(base)

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        """Run the function on a state that has all counts; keep those apart that it has changed."""
        before = {id: count for id, (count,) in self.counts.values.items()}
        self.state |= before
        emitted = super().process(channel, batch, now_ms)
        for id in [key for key in self.state if isinstance(key, int)]:
            count = self.state.pop(id)
            if id not in before:
                self.counts.replace(id, [count])
            elif count != before[id]:
                self.counts.touch(id)[0] = count
        return emitted

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> TinyCapture:
        """What was counted since the base, if that is known, and the rest of the state as a whole."""
        whole = super().capture(epoch, attempt).states[self.operator.name].whole
        base = base if base is not None and self.counts.has_base(base) else None
        values = self.counts.capture(epoch, base)
        since = None if base is None else self.bases.since(epoch, base, [self.counts])
        keys = len(values.entries) + len(values.gone)
        encoder = StateEncoder(self.operator.name, values.entries, gone=values.gone)
        encoder.encode_some(keys + 1)
        values.release()
        return TinyCapture({self.operator.name: OperatorState(encoder.parts(), whole=whole)}, since, keys)


def _width(deployment: Deployment, task: Task) -> int:
    return deployment.parallelism[task.id.name]


def _is_target(channel: Channel, record: Any, task: Task) -> bool:
    match channel.edge.routing:
        case Routing.BROADCAST:
            return True
        case Routing.FORWARD:
            return channel.id.receiver.index == task.id.index
        case _:
            receivers = sum(1 for c in task.outputs if c.edge is channel.edge)
            return (record[0] + record[2]) % receivers == channel.id.receiver.index


def tiny_plan(name: str, operators: Sequence[Operator], edges: Sequence[tuple[str, str, str | None, Routing]]) -> Plan:
    """A plan from operators and ("a.out", "b.in", loop or None, routing)."""
    made: list[Edge] = []
    for start, end, loop, routing in edges:
        sender, output = start.split(".")
        receiver, input = end.split(".")
        made.append(Edge(f"{start}->{end}", sender, output, receiver, input, routing, loop=loop))
    return Plan(name, {operator.name: operator for operator in operators}, tuple(made), hash=name)
