"""What a process operator's hooks get: `ctx`.

What is emitted is a copy, unless nobody can change it: the class may go on with the object, and the receiver may
change the record. State is what `ctx.state` holds, timers, and what the class hands over by its own `capture`; plain
attributes of the instance are not state, and are gone after a restore.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from engine.batch import ATOMS
from engine.operators.base import Place
from engine.state import KeyedState
from engine.task_errors import NO_KEY, MisuseError
from engine.timers import Timers


class HookContext:
    """Where a hook runs, and what it may do there.

    - `emit(record, output="late")`: send a record; without `output` to the first output of the class.
    - `state`: the value of the current key, or of the task where the operator has no key.
    - `key`, `round`, `now` (milliseconds, by the driver's clock), `task_index`, `parallelism`.
    - `random`: a `random.Random` that goes on after a restore where it was.
    - `set_timer(at_ms)`: have `on_timer` called for the current key.
    - `keys()`: each key that has a value, and that key is the current one meanwhile.

    >>> class Count:
    ...     def on_record(self, ctx, word):
    ...         ctx.state.set(ctx.state.get(0) + 1)
    ...     def on_end(self, ctx):
    ...         for word in ctx.keys():
    ...             ctx.emit((word, ctx.state.get()))
    >>> from engine.batch import Batch
    >>> from engine.memory import MemoryServices
    >>> from engine.runtime import TaskRuntime
    >>> from graphs import Collect, Flow, Items, expand
    >>> flow = Flow("words")
    >>> words = flow.read(Items([]), name="words").key_by(lambda word: word)
    >>> words.process(Count, name="count").rebalance().write(Collect())
    >>> deployment = expand(flow.plan())
    >>> [task] = [task for task in deployment.tasks.values() if task.id.name == "count"]
    >>> count = TaskRuntime(task, deployment, MemoryServices({}))
    >>> count.open(None)
    >>> count.process(task.inputs[0], Batch(["a", "b", "a"]), now_ms=0)
    []
    >>> [batch.records for channel, batch in count.end(now_ms=0)]
    [[('a', 2), ('b', 1)]]
    """

    def __init__(
        self,
        place: Place,
        values: KeyedState,
        timers: Timers,
        emitted: dict[str, list[Any]],
        is_keyed: bool,
        copies: bool,
    ) -> None:
        self._place = place
        self._name = place.operator.name
        self._values = values
        self._timers = timers
        self._is_keyed = is_keyed
        self._copies = copies
        self._random: random.Random | None = None
        # The operator sets these before each call of a hook.
        self.current_key: Any = NO_KEY
        self.current_hops = 0
        self.starting = False
        self._emitted = emitted
        self._first_output = next(iter(emitted))
        self.task_index = place.task.index
        self.parallelism = place.parallelism
        self.state = StateAccess(self, values)

    @property
    def key(self) -> Any:
        """The key of the record or the timer at hand; None where there is none."""
        return None if self.current_key is NO_KEY else self.current_key

    @property
    def round(self) -> tuple[int, ...] | None:
        """The round of the iteration, (outer, ..., inner), counted from 0; None outside of iterations."""
        return self._place.moment.round

    @property
    def now(self) -> int:
        """The driver's clock, in milliseconds."""
        if self.starting:
            raise self._too_early("ctx.now")
        return self._place.moment.now_ms

    @property
    def random(self) -> random.Random:
        """Random numbers that depend on the seed of the run, the operator and the task alone."""
        if self._random is None:
            place = self._place
            self._random = random.Random(f"{place.seed}/{place.operator.name}/{place.task.index}")
        return self._random

    @property
    def random_state(self) -> Any:
        """The state of the random numbers; None as long as nobody drew one."""
        return None if self._random is None else self._random.getstate()

    def emit(self, record: Any, output: str | None = None) -> None:
        """Send a record to an output."""
        if self.starting:
            raise self._too_early("ctx.emit")
        if self._copies and type(record) not in ATOMS:
            record = self._values.sent(record)
        try:
            self._emitted[output or self._first_output].append(record)
        except KeyError:
            raise MisuseError(
                f"operator {self._name!r} emits to output {output!r}, and has {', '.join(map(repr, self._emitted))}: "
                f'declare it in the class, outputs = ("{self._first_output}", "{output}")'
            ) from None

    def set_timer(self, at_ms: int) -> None:
        """Have `on_timer(ctx, at_ms)` called at that time, for the current key; for the task where there is none.

        Set again for the same time and key it is one timer, unless the records have gone round a loop differently
        often: then there is one for each number of rounds, and what is sent when it fires has that number.
        """
        if self.starting:
            raise self._too_early("ctx.set_timer")
        self._timers.add(at_ms, self.current_key, self.current_hops)

    def keys(self) -> Iterator[Any]:
        """Each key that has a value; `ctx.key` and `ctx.state` are that key's until the next."""
        if not self._is_keyed:
            raise MisuseError(f"operator {self._name!r} has no keys: call key_by before process")
        before = self.current_key
        try:
            for key in list(self._values.values):
                self.current_key = key
                yield key
        finally:
            self.current_key = before

    def key_of_state(self) -> Any:
        """The key under which the current value is kept."""
        if self.current_key is NO_KEY and self._is_keyed:
            raise MisuseError(
                f"operator {self._name!r} asks for ctx.state where there is no key: use it in on_record and on_timer "
                "of a keyed input, or go over ctx.keys()"
            )
        return self.current_key

    def _too_early(self, what: str) -> MisuseError:
        return MisuseError(
            f"operator {self._name!r} uses {what} in on_start, which runs again at each restart, before any time has "
            "passed: do it in on_record"
        )


class StateAccess:
    """The value of the current key."""

    __slots__ = ("_context", "_values")

    def __init__(self, context: HookContext, values: KeyedState) -> None:
        self._context = context
        self._values = values

    def get(self, default: Any = None) -> Any:
        """The value, which may be changed in place; `default` while there is none."""
        return self._values.touch(self._context.key_of_state(), default)

    def set(self, value: Any) -> None:
        """Give the key a new value."""
        self._values.replace(self._context.key_of_state(), value)

    def clear(self) -> None:
        """Forget the key."""
        self._values.remove(self._context.key_of_state())
