"""process: a user's class with hooks, keyed state and timers.

    on_start(ctx)              at each start, before `restore`: load models, open connections
    on_record(ctx, value)      or on_record(ctx, input, value) with named inputs
    on_batch(ctx, values)      instead of on_record; a keyed input passes the records of one key at a time
    on_timer(ctx, at_ms)       on_round_end(ctx)       on_end(ctx)
    capture() -> state         restore(state)          the class's own state, for the whole task
    split(state, parts), merge(states)                 static methods that convert it to another number of tasks
    close()                                            when the task is over, successful or not: close connections

A hook that raises fails the run. on_error="dead_letter" covers on_record and on_batch: what the call emitted is dropped
and its records are set aside as they arrived, but changes to the state remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from backedge.engine.batches.batch import Hops, copy_records, runs
from backedge.engine.batches.columns import Records, as_records
from backedge.engine.operators.base import Place, TimedRuntime
from backedge.engine.operators.context import HookContext
from backedge.engine.operators.emission import Emission
from backedge.engine.operators.meters import Meters
from backedge.engine.operators.sending import TakeRecords, key_failure, key_raised, wrong_key
from backedge.engine.state.capture import OperatorCapture
from backedge.engine.state.keyed_state import KeyedState, keyed_entries
from backedge.engine.state.tables.table_state import TableState
from backedge.engine.state.timers import Timers
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import OfClass
from backedge.graphs.plan import Edge
from backedge.graphs.routing import NEVER_NAN, canonical_key
from backedge.graphs.task_errors import (
    NO_KEY,
    USER_RAISED,
    MisuseError,
    TaskError,
    raise_unless_users,
    show,
    user_error,
)
from backedge.recovery.cut.cut import OperatorState

Key = Callable[[Any], Any]


class ProcessOperator(TimedRuntime):
    """Calls the hooks of an instance of the user's class."""

    emission_class = Emission
    context_class = HookContext

    def __init__(self, kind: OfClass, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._class: Any = kind.function
        self._keys = place.operator.keys
        self._passes_input = kind.named_inputs
        self._is_keyed = bool(self._keys)
        self._state = self.keyed_values()
        self.timers = Timers(self._state.note)
        self._emission = self.emission_class(self.outputs())
        self.meters = Meters(self.name)
        self._context = self.context_class(
            place, self._state, self.timers, self._emission, self.meters, self._is_keyed, copies=kind.copy_output
        )
        self._hops_max = 0
        self._restored_ms = 0
        self._instance: Any = None

    def accept(self, edge: Edge) -> TakeRecords:
        key = self.by_of(edge) if edge.input in self._keys else None
        run = partial(self._run_batch if hasattr(self._class, "on_batch") else self._run_records, edge, key)

        def accept(records: list[Any], hops: Hops) -> None:
            self._state.noting()
            self._run_and_send(run, records, hops)

        return accept

    def _run_and_send(self, run: Callable[[Any, int], None], records: Records, hops: Hops) -> None:
        """Call `run` for records with the same hops, and send what it emits with these hops."""
        if isinstance(hops, int):
            self._hops_max = max(self._hops_max, hops)
            run(records, hops)
            self._emission.send(hops)
            return
        for stretch, hop in runs(as_records(records), hops):
            self._hops_max = max(self._hops_max, hop)
            run(stretch, hop)
            self._emission.note(hop)
        self._emission.send_noted()

    # -- hooks that take records ---------------------------------------------------------------------------------

    def _run_records(self, edge: Edge, key_of: Key | None, records: list[Any], hops: int) -> None:
        context = self._context
        hook = self._hook("on_record", edge.input)
        context.current_key, context.current_hops = NO_KEY, hops
        mark = self._emission.mark() if self.sets_aside else {}
        arrived = copy_records(records) if self.sets_aside else records
        dead: list[Any] = []
        for position, record in enumerate(records):
            try:
                if key_of is not None:
                    context.current_key = NO_KEY
                    context.current_key = key = key_of(record)
                    if type(key) not in NEVER_NAN:
                        context.current_key = canonical_key(key)
                if (returned := hook(record)) is not None:
                    raise self._returned("on_record", returned)
            except USER_RAISED as error:  # reported, unless such records are set aside
                self._fail_or_take_back(error, record, "on_record", mark, None if key_of is None else edge)
                dead.append(arrived[position])
            else:
                if mark:
                    mark = self._emission.mark()
        context.current_key = NO_KEY
        if dead:
            self._send_dead(dead, hops)

    def _run_batch(self, edge: Edge, key_of: Key | None, records: list[Any], hops: int) -> None:
        context = self._context
        hook = self._hook("on_batch", edge.input)
        context.current_hops = hops
        for key, batch in self._by_key(edge, key_of, records):
            context.current_key = key
            mark = self._emission.mark() if self.sets_aside else {}
            arrived = copy_records(batch) if self.sets_aside else batch
            try:
                if (returned := hook(batch)) is not None:
                    raise self._returned("on_batch", returned)
            except USER_RAISED as error:  # reported, unless such records are set aside
                self._fail_or_take_back(error, batch, f"on_batch of {len(batch)}", mark)
                self._send_dead(arrived, hops)
        context.current_key = NO_KEY

    def _hook(self, hook: str, name: str) -> Callable[[Any], Any]:
        function = getattr(self._instance, hook)
        return partial(function, self._context, name) if self._passes_input else partial(function, self._context)

    def _by_key(self, edge: Edge, key_of: Key | None, records: list[Any]) -> list[tuple[Any, list[Any]]]:
        if key_of is None:
            return [(NO_KEY, list(records))]
        batches: dict[Any, list[Any]] = {}
        for record in records:
            key: Any = NO_KEY
            try:
                key = key_of(record)
                batches.setdefault(canonical_key(key), []).append(record)
            except USER_RAISED as error:
                failure = key_raised(edge, record, error) if key is NO_KEY else wrong_key(edge, key, record, error)
                raise failure from error
        return list(batches.items())

    def _fail_or_take_back(
        self, error: BaseException, record: Any, hook: str, mark: dict[str, int], keyed: Edge | None = None
    ) -> None:
        """`keyed`: the edge by which the record has come, if its key may be at fault."""
        if isinstance(error, TaskError):
            raise error
        key = self._context.current_key
        # Also where records are set aside: with more than one task, the sender would have failed.
        if keyed is not None and (failure := key_failure(keyed, key, record, error)) is not None:
            raise failure from error
        if not self.sets_aside:
            raise user_error(self.name, error, record, key, hook) from error
        raise_unless_users(error)
        self._emission.take_back(mark)

    # -- other hooks ---------------------------------------------------------------------------------------------

    @property
    def next_timer_ms(self) -> int | None:
        return self.timers.next_ms

    @property
    def restored_ms(self) -> int:
        """The time of the restored snapshot, if a timer depends on it."""
        return self._restored_ms

    def fire_timers(self, now_ms: int) -> None:
        """Call `on_timer` for the timers that are due. Timers that it sets wait for the next call."""
        for at_ms, key, hops in self.timers.due(now_ms):
            self._context.current_key = key
            self._call("on_timer", hops, at_ms)
            self._emission.note(hops)
        self._emission.send_noted()

    def on_round_end(self, path: tuple[int, ...]) -> None:
        self._call("on_round_end", self._hops_max)
        self._emission.send(self._hops_max)

    def end(self) -> None:
        self._context.ending = True
        self._call("on_end", self._hops_max)
        self._emission.send(self._hops_max)

    def _call(self, hook: str, hops: int, *arguments: Any) -> None:
        function = getattr(self._instance, hook, None)
        context = self._context
        if function is None:
            if hook == "on_timer":
                raise MisuseError(
                    f"operator {self.name!r} sets timers but has no on_timer(ctx, at_ms): add it to the class"
                )
            return
        context.current_hops = hops
        try:
            returned = function(context, *arguments)
        except TaskError:
            raise
        except USER_RAISED as error:
            raise user_error(self.name, error, key=context.current_key, hook=hook, can_set_aside=False) from error
        finally:
            context.current_key = NO_KEY
        if returned is not None:
            raise self._returned(hook, returned)

    def _returned(self, hook: str, value: Any) -> MisuseError:
        return MisuseError(
            f"operator {self.name!r}: {hook} returned {show(value)}, but the result of a hook is not used: "
            "send records with ctx.emit(record), and return nothing"
        )

    # -- state ---------------------------------------------------------------------------------------------------

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Create the instance, start it, and restore its state."""
        try:
            self._instance = self._kind.new_instance()
        except USER_RAISED as error:
            raise user_error(self.name, error, hook="__init__", can_set_aside=False) from error
        self._context.starting = True
        self._call("on_start", 0)
        self._context.starting = False
        if state is not None:
            self._restore(state, whole)

    def close(self) -> None:
        self.close_instance(self._instance)

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture values and timers by key, and the state of the task."""
        whole: dict[str, Any] = {}
        can_move = True
        if self._hops_max:
            whole["hops_max"] = self._hops_max
        if self._context.random_state is not None:
            whole["random"] = self._context.random_state
        if self.timers:
            # The times of timers are relative to this: the clock of the next process continues from here.
            whole["now_ms"] = self.place.moment.now_ms
        if self.timers.unkeyed():
            whole["timers"] = self.timers.unkeyed()
            can_move = False
        if NO_KEY in self._state.values:
            whole["value"] = self._state.values[NO_KEY]
            can_move = False
        published = self._context.published
        if published:
            whole["versions"] = published.numbers()
            can_move = False
        if hasattr(self._instance, "capture"):
            whole["own"] = self._call_own("capture")
            can_move = can_move and self.place.operator.kind.can_move
        values = self._state.capture(epoch, base) if self._is_keyed else None
        changed = None if values is None else values.keys
        timers = self.timers.keyed() if changed is None else self.timers.of(changed)
        versions = published.captured()
        return OperatorCapture(values=values, timers=timers, whole=whole, whole_can_move=can_move, versions=versions)

    @property
    def keyed_state(self) -> KeyedState | TableState | None:
        """The values by key; without a key the one value belongs to the task."""
        return self._state if self._is_keyed else None

    def _restore(self, state: OperatorState, whole: Mapping[str, Any]) -> None:
        keyed = keyed_entries(state, self.name)
        self._state.restore(keyed.values)
        if "value" in whole:
            self._state.replace(NO_KEY, whole["value"])
        self.timers.restore(keyed.timers, whole.get("timers", ()))
        self._context.published.restore(state.versions)
        self._hops_max = whole.get("hops_max", 0)
        self._restored_ms = whole.get("now_ms", 0)
        if "random" in whole:
            self._context.random.setstate(whole["random"])
        if "own" in whole:
            self._call_own("restore", whole["own"])

    def _call_own(self, hook: str, *arguments: Any) -> Any:
        function = getattr(self._instance, hook, None)
        if function is None:
            raise MisuseError(f"operator {self.name!r} has capture() in its class but no {hook}(state): add it")
        try:
            return function(*arguments)
        except USER_RAISED as error:
            raise user_error(self.name, error, hook=hook, can_set_aside=False) from error
