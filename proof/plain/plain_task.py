"""One task, interpreted plainly, one entry point at a time: state in, outputs and state out.

It runs next to a task of the engine when a trace is replayed. Rebalanced records, whose target depends on a turn, are
compared without their target: see `Outputs`.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from backedge.engine.io.memory import numbered_splits
from backedge.engine.simulation.checker.payloads import Hop, frozen, hops_in
from backedge.engine.simulation.checker.record import Ran
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.discovery import FindSplits, ReadSplits
from backedge.graphs.ids import ChannelId
from backedge.graphs.plan import Edge, Routing
from backedge.graphs.routing import key_group, task_of_group
from backedge.recovery.cut.cut import OperatorState, layers
from backedge.recovery.cut.keyed_parts import entries_of
from proof.plain.meanings import measure_of
from proof.plain.plain_operator import NO_KEY, PlainOperator, Wires, one_nan, rule_of

ANY_TARGET = -1

Outputs = Counter[tuple[str, int, Any, int]]
"""The output of one entry point: edge, target index, frozen record, hops. Batching does not count."""


class PlainState(NamedTuple):
    """The state of one operator in one task, in plain values, as a capture would hold it."""

    values: dict[Any, Any]
    timers: Counter[tuple[int, Any, int]]
    waiting: Counter[Any]
    positions: dict[str, int]
    measured: dict[str, Any]
    own: Any
    published: dict[str, list[int]]

    def all_keys(self) -> set[Any]:
        """All keys that something is kept under."""
        return {key for key in [*self.values, *(key for _, key, _ in self.timers)] if key is not NO_KEY}


class PlainTask:
    """The operators of one task. `written` of its sinks is what is in no transaction yet."""

    def __init__(self, task: Task, deployment: Deployment, inputs: Mapping[str, Sequence[Any]], wires: Wires) -> None:
        self.task = task
        self.deployment = deployment
        self.inputs = inputs
        self.wires = wires
        self.edges = {channel.edge.name: channel.edge for channel in task.inputs}
        plan, sizes = deployment.plan, deployment.parallelism
        self.operators = {
            name: PlainOperator(plan.operators[name], task.id.index, sizes[name], sizes) for name in task.operators
        }
        self.positions: dict[str, dict[str, int]] = {}
        self.measured: dict[str, dict[str, Any]] = {name: {} for name in task.operators}
        for name, operator in self.operators.items():
            kind = operator.operator.kind
            if isinstance(kind, FindSplits) and kind.readers in inputs:
                operator.instance.find = numbered_splits
            elif kind.is_source:
                self.positions[name] = {f"{task.id.index}-of-{operator.parallelism}": 0}

    def restore(self, states: Mapping[str, OperatorState]) -> None:
        """Take over what a cut holds."""
        for name, state in states.items():
            operator = self.operators[name]
            reads = isinstance(operator.operator.kind, ReadSplits)
            held = decoded(state, operator.operator.kind.keeps_answers)
            operator.values = dict(sorted(held.values.items(), key=itemgetter(1))) if reads else held.values
            operator.timers = list(held.timers.elements())
            operator.waiting = waiting_in(state, operator.operator.kind.keeps_answers)
            if name in self.positions:
                self.positions[name] = held.positions
            if held.own is not None:
                operator.instance.restore(held.own)
            self.measured[name] = held.measured
            operator.hops_max = _whole(state).get("hops_max", 0)
            operator.published = held.published

    def state(self, name: str) -> PlainState:
        """What a capture of the operator should contain now."""
        operator = self.operators[name]
        return PlainState(
            operator.values,
            Counter(operator.timers),
            Counter((frozen(one.record), one.hops) for one in operator.waiting),
            self.positions.get(name, {}),
            self.measured[name],
            operator.instance.capture() if hasattr(operator.instance, "capture") else None,
            operator.published,
        )

    # -- entry points --------------------------------------------------------------------------------------------

    def run(self, ran: Ran) -> Outputs:
        """What the entry point sends out of the task."""
        outputs: Outputs = Counter()
        for operator in self.operators.values():
            operator.now_ms = ran.now_ms
        match ran.what:
            case "produce":
                self._produce(ran.detail, outputs)
            case "batch" | "part" if ran.channel is not None and ran.payload is not None:
                edge = self.edges[ran.channel.edge]
                self._receive(edge, hops_in(ran.payload), outputs)
            case "round_end":
                for operator in self.operators.values():
                    operator.round_ends(ran.detail)
                    self._send(operator, outputs)
            case "release_round" | "release_result":
                head = self.operators[self.task.id.name]
                head.release("body" if ran.what == "release_round" else "result")
                self._send(head, outputs)
            case "end":
                for operator in self.operators.values():
                    operator.ends()
                    self._send(operator, outputs)
            case "timer":
                for operator in self.operators.values():
                    operator.fire(ran.now_ms)
                    self._send(operator, outputs)
            case "answer" | "set_aside" if ran.payload is not None:
                self._answer(pickle.loads(ran.payload), outputs, is_set_aside=ran.what == "set_aside")
            case _:
                raise ValueError(f"there is no entry {ran.what!r}, or it lacks something: {ran}")
        return outputs

    def take_measured(self, iteration: str) -> Any | None:
        """What went back into an iteration since this was last taken."""
        totals = [of.pop(iteration) for of in self.measured.values() if iteration in of]
        if not totals:
            return None
        total = totals[0]
        for other in totals[1:]:
            total = rule_of(self.deployment.plan, iteration).reduce(total, other)
        return total

    def take_written(self) -> dict[str, list[Any]]:
        """What the sinks got since this was last taken."""
        written = {name: operator.written for name, operator in self.operators.items() if operator.written}
        for name in written:
            self.operators[name].written = []
        return written

    def _produce(self, records_max: int, outputs: Outputs) -> None:
        for name, positions in self.positions.items():
            for split, position in positions.items():
                index, count = map(int, split.split("-of-"))
                records = self.inputs[name][index::count][position : position + records_max]
                if records:
                    positions[split] = position + len(records)
                    for record in records:
                        self.operators[name].emit("out", record, 0)
                    break
            self._send(self.operators[name], outputs)
        for name, operator in self.operators.items():
            if isinstance(operator.operator.kind, ReadSplits) and operator.values:
                self._read_splits(name, operator, records_max)
                self._send(operator, outputs)

    def _read_splits(self, name: str, operator: PlainOperator, records_max: int) -> None:
        reads = True
        for key, (split, position) in list(operator.values.items()):
            index, count = map(int, split.split("-of-"))
            records = self.inputs[name][index::count]
            if reads and position < len(records):
                reads = False
                for record in records[position : position + records_max]:
                    operator.emit("out", record, 0)
                operator.values[key] = split, min(position + records_max, len(records))
            if operator.values[key] == (split, len(records)):
                del operator.values[key]
                operator.emit("finished", {"split": split}, 0)

    def _answer(self, record: Any, outputs: Outputs, *, is_set_aside: bool) -> None:
        for operator in self.operators.values():
            asked = next((one for one in operator.waiting if one.record == record), None)
            if operator.operator.kind.calls_max and asked is not None:
                operator.answer(asked, is_set_aside=is_set_aside)
                self._send(operator, outputs)
                return
        raise LookupError(f"task {self.task.id} asked nobody about {record!r}")

    def _receive(self, edge: Edge, arrived: Sequence[Hop], outputs: Outputs) -> None:
        operator = self.operators[edge.receiver]
        operator.receive(edge, arrived)
        self._send(operator, outputs)

    def _send(self, operator: PlainOperator, outputs: Outputs) -> None:
        for output, sent in operator.take_emitted():
            for edge, one in self.wires.follow(operator.name, output, sent):
                if edge.loop == edge.receiver:
                    self._measure(operator.name, edge.receiver, one.record)
                if edge.receiver in self.operators and edge.receiver != self.task.id.name:
                    self._receive(edge, [one], outputs)
                    continue
                for target in self._targets(edge, one.record):
                    outputs[edge.name, target, frozen(one.record), one.hops] += 1

    def _targets(self, edge: Edge, record: Any) -> Iterator[int]:
        count = self.deployment.parallelism[edge.receiver]
        match edge.routing:
            case Routing.FORWARD:
                yield self.task.id.index
            case Routing.REBALANCE:
                yield ANY_TARGET
            case Routing.BROADCAST:
                yield from range(count)
            case Routing.ROUTE if callable(edge.by):
                yield edge.by(record) % count
            case _:
                key = record[edge.by] if isinstance(edge.by, str) else edge.by(record) if edge.by else None
                yield task_of_group(key_group(key), count)

    def _measure(self, sender: str, iteration: str, record: Any) -> None:
        rule = rule_of(self.deployment.plan, iteration)
        value = measure_of(rule, record)
        measured = self.measured[sender]
        measured[iteration] = rule.reduce(measured[iteration], value) if iteration in measured else value


def outputs_in(channel: ChannelId, edge: Edge, payload: bytes) -> Outputs:
    """The content of a sent batch, for comparison with the expected output."""
    target = ANY_TARGET if edge.routing is Routing.REBALANCE else channel.receiver.index
    return Counter((edge.name, target, frozen(one.record), one.hops) for one in hops_in(payload))


def decoded(state: OperatorState, keeps_answers: bool = False) -> PlainState:
    """What an encoded state says: an entry of two is a value, one of three a timer.

    A delta says all there is of a key that it holds; one of one says that the key has no value.
    """
    values: dict[Any, Any] = {}
    timers: Counter[tuple[int, Any, int]] = Counter()
    for parts in layers(state):
        entries = entries_of(parts)
        if not entries:
            continue
        of_delta = {one_nan(entry[0]) for entry in entries}
        values = {key: value for key, value in values.items() if key not in of_delta}
        timers = Counter({timer: count for timer, count in timers.items() if timer[1] not in of_delta})
        for entry in entries:
            if len(entry) == 2:
                values[one_nan(entry[0])] = entry[1]
            elif len(entry) == 3:
                timers[entry[1], one_nan(entry[0]), entry[2]] += 1
    whole = _whole(state)
    if "value" in whole:
        values[NO_KEY] = whole["value"]
    for at_ms, hops in whole.get("timers", ()):
        timers[at_ms, NO_KEY, hops] += 1
    waiting = waiting_in(state, keeps_answers)
    return PlainState(
        {} if keeps_answers else values,
        timers,
        Counter((frozen(record), hops) for record, hops in waiting),
        {split: pickle.loads(position) for split, position in state.splits.items()},
        dict(whole.get("measures", {})),
        whole.get("own"),
        _published(state),
    )


def _published(state: OperatorState) -> dict[str, list[int]]:
    names = dict.fromkeys(version.of for version in state.versions)
    return {name: sorted(version.number for version in state.versions if version.of == name) for name in names}


def waiting_in(state: OperatorState, keeps_answers: bool) -> list[Hop]:
    """The records that wait for an answer or for their round."""
    payloads = list(state.pending)
    if keeps_answers:
        # By key and identity: the numbers that are taken, what waits, and what is known.
        by_key = decoded(state).values.values()
        payloads += [record for kept in by_key for equals in kept.values() for _, record in equals[2]]
    return [Hop(*pickle.loads(payload)[:2]) for payload in payloads]


def _whole(state: OperatorState) -> dict[str, Any]:
    return {} if state.whole is None else pickle.loads(state.whole)
