"""One operator, interpreted as simply as possible: no batches, channels or captures. Output is copied at once.

`meanings.py` says what each does with a record. The engine is compared with the interpreters (`interpreter.py`,
`plain_task.py`), so they share nothing with it.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

from backedge.engine.simulation.checker.payloads import Hop
from backedge.graphs.kinds import Iterate
from backedge.graphs.plan import Edge, Operator, Plan, Routing
from backedge.graphs.versions import Versions, source_of
from proof.plain.meanings import instance_of, mean, rows_of

NO_KEY = ("(no key)",)
"""The key of what belongs to the operator as a whole."""


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, 5))


def one_nan(key: Any) -> Any:
    """All NaN are one key."""
    if isinstance(key, tuple):
        return tuple(map(one_nan, cast("tuple[Any, ...]", key)))
    return math.nan if isinstance(key, float) and key != key else key  # NaN alone is not itself


class Wires:
    """The edges of a plan by what they start from."""

    def __init__(self, plan: Plan) -> None:
        self.by_output: dict[tuple[str, str], list[Edge]] = {}
        self.trips = plan.trips
        for edge in plan.edges:
            self.by_output.setdefault((edge.sender, edge.output), []).append(edge)

    def follow(self, operator: str, output: str, sent: Hop) -> Iterator[tuple[Edge, Hop]]:
        """Where a record goes, a copy for each edge; what exceeds a loop's limit goes to its dead letters, once."""
        refused: set[str] = set()
        for position, edge in enumerate(self.by_output.get((operator, output), ())):
            record = copied(sent.record) if position else sent.record
            if edge.loop is None or edge.loop not in self.trips:
                yield edge, Hop(record, sent.hops)
            elif (digit := self.trips[edge.loop].digit) is None or digit.of(sent.hops) < digit.base - 1:
                yield edge, Hop(record, self.trips[edge.loop].after(sent.hops))
            elif edge.on_limit == "fail":
                raise RuntimeError(f"loop {edge.loop!r}: a record has gone round {sent.hops} times")
            elif edge.loop not in refused:
                refused.add(edge.loop)
                yield from self.follow(operator, f"dead:{edge.loop}", Hop(record, sent.hops))


class PlainOperator:
    """An operator of one task, or of all of them.

    - values: by key. timers: (time, key, hops). written: what a sink got.
    - waiting: what an iteration's head has gathered, or what a map_async has not answered.
    - emitted: (output, record, hops), to be taken by the interpreter.
    - published: the numbers of the versions that are kept, by name.
    """

    def __init__(
        self, operator: Operator, index: int = 0, parallelism: int = 1, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.operator = operator
        self.sizes = sizes or {}
        self.name = operator.name
        self.index = index
        self.parallelism = parallelism
        self.values: dict[Any, Any] = {}
        self.timers: list[tuple[int, Any, int]] = []
        self.waiting: list[Hop] = []
        self.written: list[Any] = []
        self.hops_max = 0
        self.now_ms = 0
        self.emitted: list[tuple[str, Hop]] = []
        self.sets_aside = operator.kind.sets_aside
        self.published: dict[str, list[int]] = {}
        self.instance = instance_of(operator.kind)
        self.call("on_start", Context(self, NO_KEY, 0))

    def receive(self, edge: Edge, arrived: Sequence[Hop]) -> None:
        kind = self.operator.kind
        for one in arrived:
            if not self.sets_aside:
                mean(kind, Arrived(self, edge, one.record, one.hops))
                continue
            count = len(self.emitted)
            asked = copied(one)
            try:
                mean(kind, Arrived(self, edge, one.record, one.hops))
            except Exception:  # noqa: BLE001  # the flow asks for it: such a record goes to the dead letters
                del self.emitted[count:]
                self.emit("dead", asked.record, asked.hops)

    def emit(self, output: str, record: Any, hops: int) -> None:
        self.emitted.append((output, Hop(copied(record), hops)))

    def take_emitted(self) -> list[tuple[str, Hop]]:
        """What was emitted since it was last taken."""
        emitted, self.emitted = self.emitted, []
        return emitted

    def call(self, hook: str, context: Context, *arguments: Any) -> None:
        """Call a hook of a process operator, if its class has it."""
        function = getattr(self.instance, hook, None)
        if function is not None:
            function(context, *arguments)

    def round_ends(self, path: tuple[int, ...]) -> None:
        self.call("on_round_end", Context(self, NO_KEY, self.hops_max, round=path))

    def ends(self) -> None:
        self.call("on_end", Context(self, NO_KEY, self.hops_max))

    def fire(self, now_ms: int) -> None:
        """All timers that are due, in the order of their time."""
        self.now_ms = now_ms
        due = sorted((timer for timer in self.timers if timer[0] <= now_ms), key=itemgetter(0))
        for timer in due:
            if timer in self.timers:
                self.timers.remove(timer)
                at_ms, key, hops = timer
                self.call("on_timer", Context(self, key, hops), at_ms)

    def answer(self, asked: Hop, *, is_set_aside: bool = False) -> None:
        """One of the waiting records has its answer, or is not asked about."""
        self.waiting.remove(asked)
        if is_set_aside:
            self.emit("dead", asked.record, asked.hops)
            return
        try:
            self.emit("out", self.operator.function(copied(asked.record)), asked.hops)
        except Exception:
            if not self.sets_aside:
                raise
            self.emit("dead", asked.record, asked.hops)

    def release(self, output: str) -> None:
        """An iteration's head sends what it gathered."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self.emit(output, one.record, one.hops)

    def key_of(self, edge: Edge, record: Any) -> Any:
        """The key of a record that comes over an edge; `NO_KEY` if that input has none."""
        by = self.operator.keys.get(edge.input)
        if by is None:
            return NO_KEY
        if edge.routing is Routing.HASH and edge.by is not None:
            by = edge.by
        return one_nan(itemgetter(by)(record) if isinstance(by, str) else by(record))


class Arrived:
    """A record that has arrived at an operator: what `mean` is given."""

    def __init__(self, of: PlainOperator, edge: Edge, record: Any, hops: int) -> None:
        self.record = record
        self.input = edge.input
        self.instance = of.instance
        self._of = of
        self._hops = hops
        self._key = of.key_of(edge, record)

    @property
    def context(self) -> Context:
        """The ctx of a hook that is called for the record."""
        self._of.hops_max = max(self._of.hops_max, self._hops)
        return Context(self._of, self._key, self._hops)

    def emit(self, record: Any, output: str = "out") -> None:
        self._of.emit(output, record, self._hops)

    def value(self, default: Any) -> Any:
        """The value of the record's key; a copy of `default` while there is none."""
        values = self._of.values
        return values[self._key] if self._key in values else copied(default)

    def set_value(self, value: Any) -> None:
        self._of.values[self._key] = value

    def keep(self) -> None:
        """The record waits, for its answer or for its round."""
        self._of.waiting.append(Hop(copied(self.record), self._hops))

    def write(self) -> None:
        """The record is output of the flow."""
        self._of.written.append(copied(self.record))


def rule_of(plan: Plan, head: str) -> Iterate:
    kind = plan.operators[head].kind
    if not isinstance(kind, Iterate):
        raise TypeError(f"operator {head!r} is the head of an iteration and a {kind.word}")
    return kind


class Context:
    """What the hooks of a process operator get."""

    def __init__(self, of: PlainOperator, key: Any, hops: int, round: tuple[int, ...] | None = None) -> None:
        self.now = of.now_ms
        self.round = round
        self.task_index = of.index
        self.parallelism = of.parallelism
        self.sizes = of.sizes
        self.state = State(of.values, key)
        self._of = of
        self.hops = hops

    @property
    def key(self) -> Any:
        """The key at hand; None where there is none."""
        return None if self.state.key is NO_KEY else self.state.key

    @cached_property
    def random(self) -> random.Random:
        """Random numbers, others than those of the engine: what depends on them cannot be compared."""
        return random.Random(0)

    def counter(self, name: str) -> Uncounted:
        return Uncounted()

    def histogram(self, name: str) -> Uncounted:
        return Uncounted()

    def keys(self) -> Iterator[Any]:
        """Each key that has a value, which is the current one meanwhile."""
        before = self.state.key
        for key in list(self._of.values):
            self.state.key = key
            yield key
        self.state.key = before

    def emit(self, record: Any, output: str | None = None, *, hops: int | None = None) -> None:
        self._of.emit(output or self._of.operator.outputs[0], record, self.hops if hops is None else hops)

    def emit_batch(self, batch: Any, output: str | None = None) -> None:
        for record in rows_of(batch):
            self.emit(record, output)

    def publish(self, versions: Versions, value: Any) -> int:
        numbers = self._of.published.get(versions.name, [0])
        number = numbers[-1] + 1
        source_of(versions).publish(versions, number, value, ())
        self._of.published[versions.name] = [kept for kept in (*numbers, number) if kept][-versions.keep :]
        return number

    def set_timer(self, at_ms: int) -> None:
        timer = (at_ms, self.state.key, self.hops)
        if timer not in self._of.timers:
            self._of.timers.append(timer)

    def set_timer_in(self, ms: int) -> int:
        self.set_timer(self.now + ms)
        return self.now + ms

    def clear_timer(self, at_ms: int | None = None) -> None:
        key = self.state.key
        self._of.timers = [timer for timer in self._of.timers if timer[1] != key or at_ms not in (None, timer[0])]


class Uncounted:
    """A counter or a histogram: nothing depends on what they count."""

    def add(self, amount: float = 1) -> None: ...

    def observe(self, value: float) -> None: ...


class State:
    """The value of the current key."""

    def __init__(self, values: dict[Any, Any], key: Any) -> None:
        self._values = values
        self.key = key

    def get(self, default: Any = None) -> Any:
        return self._values.get(self.key, default)

    def set(self, value: Any) -> None:
        self._values[self.key] = value

    def clear(self) -> None:
        self._values.pop(self.key, None)
