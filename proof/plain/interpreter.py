"""The plain interpreter of a plan: the meaning of a flow, without parallelism, batches, channels or crashes.

It has one FIFO queue. When the queue is empty, everything that could flow has flowed: timers fire, calls are answered,
rounds end. An iteration begins when everything that enters it, at its head or elsewhere, has arrived.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backedge.engine.simulation.checker.payloads import Hop, frozen
from backedge.graphs.cycles import find_cycles
from backedge.graphs.digraph import upstream_first
from backedge.graphs.kinds import Iterate
from backedge.graphs.plan import Edge, Plan
from backedge.graphs.versions import use_versions
from proof.plain.meanings import measure_of
from proof.plain.plain_operator import NO_KEY, PlainOperator, Wires, rule_of
from proof.plain.plain_versions import PlainVersions

STEPS_MAX = 1_000_000


@dataclass
class Result:
    """The result of a flow: each sink's records, as a multiset of frozen ones, and the keyed values at the end."""

    sinks: dict[str, Counter[Any]] = field(default_factory=dict[str, Counter[Any]])
    states: dict[str, dict[Any, Any]] = field(default_factory=dict[str, dict[Any, Any]])


def reference(plan: Plan, inputs: Mapping[str, Sequence[Any]]) -> Result:
    """Run a plan to its end.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> flow.read(Items([]), name="numbers").map(lambda n: n + 1).write(Collect(), name="out")
    >>> reference(flow.plan(), {"numbers": [1, 2, 2]}).sinks["out"] == {2: 1, 3: 2}
    True
    """
    use_versions(plan.name, PlainVersions({}))
    run = _Run(plan, inputs)
    run.run()
    result = Result()
    for name, operator in run.operators.items():
        if operator.operator.kind.is_sink:
            result.sinks[name] = Counter(map(frozen, operator.written))
        elif operator.operator.kind.keeps_values:
            result.states[name] = {key: value for key, value in operator.values.items() if key is not NO_KEY}
    return result


@dataclass(frozen=True)
class _Shape:
    """The order in which things complete: for each scope its units, upstream first.

    A scope is the inside of an iteration, named by its head, or None for the whole plan. A unit is an operator, or an
    iteration, again by its head.
    """

    units: Mapping[str | None, tuple[str, ...]]
    wires: Wires


_SHAPES: dict[int, tuple[Plan, _Shape]] = {}


def _shape(plan: Plan) -> _Shape:
    """Found once a plan; the plan is kept, so that no other gets its id."""
    if id(plan) not in _SHAPES:
        paths = find_cycles(plan).paths
        scopes: list[str | None] = [None, *(name for name in paths if plan.operators[name].kind.in_rounds)]
        _SHAPES[id(plan)] = plan, _Shape({scope: _units(plan, paths, scope) for scope in scopes}, Wires(plan))
    return _SHAPES[id(plan)][1]


def _units(plan: Plan, paths: Mapping[str, tuple[str, ...]], scope: str | None) -> tuple[str, ...]:
    depth = 0 if scope is None else len(paths[scope])
    inside = [name for name, path in paths.items() if name != scope and (scope is None or scope in path)]
    unit = {name: paths[name][depth] if len(paths[name]) > depth else name for name in inside}
    following: dict[str, list[str]] = {unit[name]: [] for name in inside}
    for edge in plan.edges:
        if edge.sender in unit and edge.receiver in unit and edge.loop is None:
            sender, receiver = unit[edge.sender], unit[edge.receiver]
            if sender != receiver and receiver not in following[sender]:
                following[sender].append(receiver)
    return tuple(upstream_first(following))


class _Run:
    def __init__(self, plan: Plan, inputs: Mapping[str, Sequence[Any]]) -> None:
        self.plan = plan
        self.shape = _shape(plan)
        self.operators = {name: PlainOperator(operator) for name, operator in plan.operators.items()}
        self.queue: deque[tuple[Edge, Hop]] = deque()
        self.measured: dict[str, Any] = {}
        self.starts: dict[str, list[Hop]] = {}
        self.steps = 0
        for name, operator in self.operators.items():
            # What finds splits would hand them to an operator whose records are all there already.
            operator.timers.clear()
            for record in inputs.get(name, ()):
                operator.emit("out", record, 0)

    def run(self) -> None:
        for operator in self.operators.values():
            self.send(operator)
        for unit in self.shape.units[None]:
            self.settle()
            if unit in self.shape.units:
                self.iterate(unit, ())
            self.end(unit)

    def end(self, unit: str) -> None:
        """The end hooks of an operator, or of all that is inside of an iteration."""
        self.operators[unit].ends()
        self.send(self.operators[unit])
        self.settle()
        for inner in self.shape.units.get(unit, ()):
            self.end(inner)

    def send(self, operator: PlainOperator) -> None:
        """Put what the operator emitted into the queue; measure what goes back into an iteration."""
        for output, sent in operator.take_emitted():
            for edge, one in self.shape.wires.follow(operator.name, output, sent):
                if edge.loop == edge.receiver:
                    self.measure(edge.receiver, one.record)
                self.queue.append((edge, one))

    def rule(self, head: str) -> Iterate:
        return rule_of(self.plan, head)

    def measure(self, iteration: str, record: Any) -> None:
        rule = self.rule(iteration)
        value = measure_of(rule, record)
        before = self.measured.get(iteration)
        self.measured[iteration] = value if before is None else rule.reduce(before, value)

    def settle(self) -> None:
        """Until nothing moves. What comes to the start of an iteration waits there: see `iterate`."""
        while self.queue or self.wake():
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise RuntimeError(
                    f"flow {self.plan.name!r} still runs after {STEPS_MAX:,} steps: it has no plain result"
                )
            if not self.queue:
                continue
            edge, one = self.queue.popleft()
            if edge.input == "start" and edge.receiver in self.shape.units:
                self.starts.setdefault(edge.receiver, []).append(one)
                continue
            operator = self.operators[edge.receiver]
            operator.receive(edge, [one])
            self.send(operator)

    def wake(self) -> bool:
        """Fire the timers and answer the calls of one operator that has any."""
        for operator in self.operators.values():
            if operator.timers:
                operator.fire(max(at_ms for at_ms, _, _ in operator.timers))
            elif operator.operator.kind.calls_max and operator.waiting:
                operator.answer(operator.waiting[0])
            else:
                continue
            self.send(operator)
            return True
        return False

    # -- rounds --------------------------------------------------------------------------------------------------

    def iterate(self, head: str, path: tuple[int, ...]) -> None:
        """All rounds of an iteration, within round `path` of the enclosing one."""
        operator = self.operators[head]
        rule = self.rule(head)
        for one in self.starts.pop(head, []):
            operator.emit("body", one.record, one.hops)
        for round in range(STEPS_MAX):
            self.send(operator)
            self.complete(head, (*path, round))
            total = self.measured.pop(head, None)
            is_last = rule.rounds is not None and round + 1 >= rule.rounds
            if total is None or is_last or (rule.until is not None and rule.until(total)):
                break
            operator.release("body")
        if path:
            self.leave(head, path)
        else:
            operator.release("result")
            self.send(operator)

    def complete(self, head: str, path: tuple[int, ...]) -> None:
        """A round of the inside of an iteration: its hooks, upstream first, and the iterations within."""
        for unit in self.shape.units[head]:
            self.settle()
            if unit in self.shape.units:
                self.iterate(unit, path)
            else:
                self.operators[unit].round_ends(path)
                self.send(self.operators[unit])
        self.settle()

    def leave(self, head: str, path: tuple[int, ...]) -> None:
        """The end of round `path` of an enclosing iteration goes round the inside; then the result leaves."""
        for unit in self.shape.units[head]:
            self.settle()
            if unit in self.shape.units:
                self.leave(unit, path)
            else:
                self.operators[unit].round_ends(path)
                self.send(self.operators[unit])
        self.settle()
        self.operators[head].release("result")
        self.send(self.operators[head])
