"""The `ctx` of a process operator's hooks.

An emitted record is copied unless it is immutable: the class may go on using the object, and the receiver may change
the record. State consists of `ctx.state`, timers, and what the class returns from its own `capture`. Plain attributes
of the instance are not state and are lost in a restore.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from numbers import Real
from typing import Any, NoReturn, cast

import numpy as np

from backedge.engine.batches.batch import ATOMS, own_copy
from backedge.engine.batches.formats import errors_of, from_format
from backedge.engine.operators.base import Place
from backedge.engine.operators.emission import Emission
from backedge.engine.operators.meters import Meters
from backedge.engine.operators.published import Published
from backedge.engine.state.keyed_state import KeyedState
from backedge.engine.state.tables.table_state import TableState
from backedge.engine.state.timers import Timers
from backedge.graphs.task_errors import NO_KEY, MisuseError, show
from backedge.graphs.versions import Versions

TIMER_AHEAD_MS_MAX = 100 * 365 * 86_400_000
TIMER_BEHIND_MS_MAX = 10 * 365 * 86_400_000
"""An earlier time is no time of a run, also one that was down for long, but a duration, or seconds."""


class HookContext:
    """The place where a hook runs, and what it may do there.

    - `emit(record, output="late")`: send a record; without `output` to the first output of the class. `hops=` are those
      of the record that it comes from, if that is not the current one.
    - `state`: the value of the current key, or of the task if the operator has no key.
    - `key`, `round`, `now` (milliseconds, on the driver's clock), `hops`, `task_index`, `parallelism`.
    - `random`: a `random.Random` whose state is restored with the task.
    - `set_timer(at_ms)`: call `on_timer` for the current key at that time. `set_timer_in(ms)`: `ms` milliseconds
      from now. `clear_timer(at_ms)`: do not call it after all; without `at_ms`, at no time that was set for the key.
    - `counter(name).add(1)`, `histogram(name).observe(0.3)`: count for the metrics of the run.
    - `publish(versions, value)`: let the functions of the flow read a value as `versions[number]`; returns the number.
    - `keys()`: iterate over the keys that have a value; each is the current key until the next.

    >>> class Count:
    ...     def on_record(self, ctx, word):
    ...         ctx.state.set(ctx.state.get(0) + 1)
    ...     def on_end(self, ctx):
    ...         for word in ctx.keys():
    ...             ctx.emit((word, ctx.state.get()))
    >>> from backedge.engine.batches.batch import Batch
    >>> from backedge.engine.io.memory import MemoryServices
    >>> from backedge.engine.operators.runtime import TaskRuntime
    >>> from backedge import Collect, Flow, Items
    >>> from backedge.graphs.expansion import expand
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
        emission: Emission,
        meters: Meters,
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
        self.ending = False
        self.table_state: TableState | None = None
        self._emission = emission
        self._emitted = emission.records
        self._first_output = next(iter(emission.records))
        self.published = Published(place)
        self.task_index = place.task.index
        self.parallelism = place.parallelism
        self.state = StateAccess(self, values)
        self.counter = meters.counter
        self.histogram = meters.histogram

    @property
    def key(self) -> Any:
        return None if self.current_key is NO_KEY else self.current_key

    @property
    def round(self) -> tuple[int, ...] | None:
        return self._place.moment.round

    @property
    def now(self) -> int:
        """The driver's clock, in milliseconds."""
        if self.starting:
            raise self._too_early("ctx.now")
        return self._place.moment.now_ms

    @property
    def random(self) -> random.Random:
        """A random generator that depends only on the seed of the run, the operator and the task."""
        if self._random is None:
            place = self._place
            self._random = random.Random(f"{place.seed}/{place.operator.name}/{place.task.index}")
        return self._random

    @property
    def random_state(self) -> Any:
        """The state of the random generator; None if it was never used."""
        return None if self._random is None else self._random.getstate()

    @property
    def hops(self) -> int:
        return self.current_hops

    def emit(self, record: Any, output: str | None = None, *, hops: int | None = None) -> None:
        if self.starting:
            raise self._too_early("ctx.emit")
        if self._copies and type(record) not in ATOMS:
            record = self._values.sent(record)
        if hops is None or hops == self.current_hops:
            self._append(record, output)
        else:
            hops = self._checked_hops(hops)
            self._emission.note(self.current_hops)
            self._append(record, output)
            self._emission.note(hops)

    def _checked_hops(self, given: Any) -> int:
        """The hops that a class has kept, perhaps in an array."""
        if not isinstance(given, int | np.integer) or given < 0:
            raise MisuseError(
                f"operator {self._name!r}: ctx.emit got hops={show(given)}: give what ctx.hops was when the record came"
            )
        return int(cast("Any", given))

    def emit_batch(self, batch: Any, output: str | None = None) -> None:
        """Refused here: the operator was not given `batch_format`."""
        raise MisuseError(
            f"operator {self._name!r} uses ctx.emit_batch, but works on records: send them one by one with "
            'ctx.emit(record), or give process batch_format="numpy"'
        )

    def _append(self, sent: Any, output: str | None) -> None:
        try:
            self._emitted[output or self._first_output].append(sent)
        except KeyError:
            raise MisuseError(
                f"operator {self._name!r} emits to output {output!r} but has {', '.join(map(repr, self._emitted))}: "
                f'declare it in the class, outputs = ("{self._first_output}", "{output}")'
            ) from None

    def publish(self, versions: Versions, value: Any) -> int:
        """Let the functions of the flow read a value as `versions[number]`. Returns the number.

        The value is copied now. It stays published if the call of the hook is set aside for an error.
        """
        if self.starting:
            raise self._too_early("ctx.publish")
        return self.published.publish(versions, value)

    def set_timer(self, at_ms: float) -> None:
        """Call `on_timer(ctx, at_ms)` at that time, for the current key, or for the task if there is none.

        Setting a timer again for the same time and key has no effect, unless the records have different hop counts:
        then there is one timer per hop count, and what it emits has that hop count.
        """
        self._set_timer("ctx.set_timer", at_ms)

    def set_timer_in(self, ms: float) -> float:
        """Call `on_timer` for the current key in `ms` milliseconds. Returns the time, `ctx.now + ms`."""
        is_number = isinstance(ms, Real) and not isinstance(ms, bool | np.timedelta64)
        if not is_number or not cast(float, ms) >= 0:
            raise MisuseError(
                f"operator {self._name!r}: ctx.set_timer_in got {show(ms)}: give milliseconds from now on, such as 500"
            )
        # Only then is it known whether there is a time.
        return self._set_timer("ctx.set_timer_in", ms, relative=True)

    def clear_timer(self, at_ms: float | None = None) -> None:
        """Do not call `on_timer` for the current key at that time, or at any time that was set for it."""
        self._timers.clear(at_ms, self.current_key)

    def _set_timer(self, what: str, ms: float, *, relative: bool = False) -> float:
        if self.starting:
            raise self._too_early(what)
        if self.ending:
            raise MisuseError(
                f"operator {self._name!r} uses {what} in on_end, behind which no timer fires: emit what is left there, "
                "or set the timer when a record arrives; the end waits for it"
            )
        now_ms = self._place.moment.now_ms
        at_ms = now_ms + ms if relative else ms
        if type(at_ms) is not int or not now_ms - TIMER_BEHIND_MS_MAX <= at_ms <= now_ms + TIMER_AHEAD_MS_MAX:
            at_ms = self._checked_time(what, at_ms, ms)
        self._timers.add(at_ms, self.current_key, self.current_hops)
        return at_ms

    def _checked_time(self, what: str, at_ms: Any, given: Any) -> float:
        """The same time as an integer, or as a float if it has a fraction: `on_timer` compares it with what was set."""
        fault = ""
        if isinstance(at_ms, Real) and not isinstance(at_ms, bool | np.timedelta64):
            # Compared first, because an integer may be too large for a float.
            time_ms, now_ms = cast(float, at_ms), self._place.moment.now_ms
            if time_ms > now_ms + TIMER_AHEAD_MS_MAX:
                fault = f", which is more than a hundred years after ctx.now, {now_ms}"
            elif time_ms < now_ms - TIMER_BEHIND_MS_MAX:
                fault = f", which is more than ten years before ctx.now, {now_ms}"
            elif math.isfinite(time_ms):
                whole = int(time_ms)
                return whole if whole == time_ms else float(time_ms)
        raise MisuseError(
            f"operator {self._name!r}: {what} got {show(given)}{fault}: give a time in milliseconds, such as "
            "ctx.now + 500, or call ctx.set_timer_in(500)"
        )

    def keys(self) -> Iterator[Any]:
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
                f"operator {self._name!r} uses ctx.state where there is no key: use it in on_record and on_timer "
                "of a keyed input, or iterate over ctx.keys()"
            )
        return self.current_key

    @property
    def table(self) -> TableState:
        if self.table_state is None:
            raise MisuseError(
                f"operator {self._name!r} uses ctx.table, but its class declares no table: "
                "add table = Table(key={...}, columns={...}) to it, and give process a batch_format"
            )
        return self.table_state

    def _too_early(self, what: str) -> MisuseError:
        return MisuseError(
            f"operator {self._name!r} uses {what} in on_start, which runs again at each restart, before any time has "
            "passed: do it in on_record"
        )


class BatchContext(HookContext):
    """The same for a class that works on whole batches: it sends batches, and its state is not in `ctx`.

    - `emit_batch(batch, output="late")`: send a batch in any format of `map_batches`.
    - `table`: the rows by key, if the class declares a `Table`.
    """

    def emit(self, record: Any, output: str | None = None, *, hops: int | None = None) -> None:
        """Refused here: the operator works on batches."""
        raise MisuseError(
            f"operator {self._name!r} uses ctx.emit, but has a batch_format: send many rows at a time with "
            "ctx.emit_batch(batch); a list of records is a batch, too"
        )

    def emit_batch(self, batch: Any, output: str | None = None) -> None:
        """Send the rows of a batch; an empty one sends nothing."""
        if self.starting:
            raise self._too_early("ctx.emit_batch")
        # Arrays and frames are copied by the conversion; tables are immutable.
        with errors_of(self._name):
            rows = from_format(batch, "ctx.emit_batch got")
        if len(rows):
            self._append(own_copy(rows) if self._copies else rows, output)

    def keys(self) -> Iterator[Any]:
        """Refused here: a batch has many keys."""
        raise MisuseError(
            f"operator {self._name!r} uses ctx.keys(), but has a batch_format, so no value belongs to a key: give the "
            "class a table = Table(key={...}, columns={...}), and look through ctx.table.scan()"
        )

    def key_of_state(self) -> Any:
        """The key under which the current value is kept, if the operator has no keys."""
        if self._is_keyed:
            raise MisuseError(
                f"operator {self._name!r} uses ctx.state, but a batch has many keys: give the class a "
                "table = Table(key={...}, columns={...}) and use ctx.table"
            )
        return super().key_of_state()


_ONE_VALUE = (
    "ctx.state is one value for each key, not a dict: read it by ctx.state.get(default), and store it by "
    "ctx.state.set(value)"
)


class StateAccess:
    """The value of the current key."""

    __slots__ = ("_context", "_values")

    def __init__(self, context: HookContext, values: KeyedState) -> None:
        self._context = context
        self._values = values

    def get(self, default: Any = None) -> Any:
        return self._values.touch(self._context.key_of_state(), default)

    def set(self, value: Any) -> None:
        self._values.replace(self._context.key_of_state(), value)

    def clear(self) -> None:
        self._values.remove(self._context.key_of_state())

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError(_ONE_VALUE)

    def __setitem__(self, name: object, value: object) -> NoReturn:
        raise TypeError(_ONE_VALUE)
