"""The built-in operators: the options of each, and what the graph needs to know about it.

The engine's part of each operator is in `engine/operators/`. A string names it, because this layer may not import the
engine.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal, cast

from backedge.graphs.combining import Combiner
from backedge.graphs.constant import own_arguments
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import Sink, Source
from backedge.graphs.operator_kind import OperatorKind, Shape
from backedge.graphs.options import (
    BATCH_FORMATS,
    BatchFormat,
    OnError,
    check_called_class,
    check_choice,
    check_count,
    check_function,
    check_hooks,
    check_initial,
    is_above_zero,
    is_no_output,
)
from backedge.graphs.process_class import Process
from backedge.graphs.questions import WHOLE_RECORD, AskedAbout
from backedge.graphs.rate import Rate
from backedge.graphs.table import Table


class BuiltIn(OperatorKind):
    """An operator whose runtime is a class of the engine, named by `runtime` as "module:class"."""

    runtime: ClassVar[str]
    kind_word: ClassVar[str]

    @property
    def word(self) -> str:
        return self.kind_word

    @property
    def named_after(self) -> Any:
        return None

    @property
    def acts_at_end(self) -> bool:
        return False

    def start(self, place: Any) -> Any:
        module, _, name = self.runtime.partition(":")
        return getattr(import_module(module), name)(self, place)


class OfBatches(BuiltIn):
    """An operator of ours that takes whole batches of columns, and sends what it has, or a last word, at its end."""

    @property
    def records_at_once(self) -> int | None:
        return None

    @property
    def acts_at_end(self) -> bool:
        return True


@dataclass(frozen=True)
class Read(BuiltIn):
    """Reads a source."""

    source: Source[Any]
    rate: Rate | None = None

    runtime = "backedge.engine.operators.source:SourceOperator"
    kind_word = "source"
    drawn_as: ClassVar[Shape] = "source"
    is_source = True

    @property
    def subject(self) -> Any:
        return self.source

    @property
    def label(self) -> str | None:
        return self.source.label

    @property
    def base_name(self) -> str:
        return "read"


def rate_of(kind: OperatorKind) -> Rate | None:
    """The rate that the flow gives a source."""
    return kind.rate if isinstance(kind, Read) else None


@dataclass(frozen=True)
class Write(BuiltIn):
    """Writes to a sink."""

    sink: Sink[Any]

    runtime = "backedge.engine.operators.sink:SinkOperator"
    kind_word = "sink"
    drawn_as: ClassVar[Shape] = "sink"
    is_sink = True

    @property
    def subject(self) -> Any:
        return self.sink

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def label(self) -> str | None:
        return self.sink.label

    @property
    def base_name(self) -> str:
        return "write"


@dataclass(frozen=True)
class OfFunction(BuiltIn):
    """Calls a user's function. With on_error="dead_letter", a record whose call raised goes to the output "dead"."""

    function: Callable[..., Any]
    on_error: OnError = field(default="fail", kw_only=True)

    may_await: ClassVar[bool] = False
    may_yield: ClassVar[bool] = False

    @property
    def subject(self) -> Any:
        return self.function

    @property
    def sets_aside(self) -> bool:
        return self.on_error == "dead_letter"

    def check(self, what: str) -> None:
        check_function(self.function, what, may_await=self.may_await, may_yield=self.may_yield)
        check_choice(self.on_error, ("fail", "dead_letter"), "on_error", what)


@dataclass(frozen=True)
class Map(OfFunction):
    """Emits `function(record)` for each record."""

    runtime = "backedge.engine.operators.map:MapOperator"
    kind_word = "map"
    one_for_one = True


@dataclass(frozen=True)
class FlatMap(OfFunction):
    """Emits each record that `function(record)` yields."""

    runtime = "backedge.engine.operators.flat_map:FlatMapOperator"
    kind_word = "flat_map"
    may_yield = True


@dataclass(frozen=True)
class Filter(OfFunction):
    """Keeps the records for which `function(record)` is true."""

    runtime = "backedge.engine.operators.filter:FilterOperator"
    kind_word = "filter"


@dataclass(frozen=True)
class Split(OfFunction):
    """Sends each record to one of `names`: the one that `function(record)` returns, or first or second by its truth."""

    names: tuple[str, ...] = ("true", "false")
    by_name: bool = False

    runtime = "backedge.engine.operators.split:SplitOperator"
    kind_word = "split"
    drawn_as: ClassVar[Shape] = "choice"

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.names

    def check(self, what: str) -> None:
        if len(self.names) < 2 or len(set(self.names)) < len(self.names) or any(map(is_no_output, self.names)):
            raise BadOptionError(
                f"{what} has into={self.names!r}: give at least two different names, without ':', '/' or 'dead'"
            )
        super().check(what)


@dataclass(frozen=True)
class MapBatches(OfFunction):
    """Calls `function(batch)` for at most `batch_size` records (None: as many as have arrived), in `batch_format`.

    A `Combiner` as its function is data, which the engine carries out.
    """

    batch_format: BatchFormat = "records"
    batch_size: int | None = None

    runtime = "backedge.engine.operators.map_batches:MapBatchesOperator"
    kind_word = "map_batches"

    @property
    def records_at_once(self) -> int | None:
        return self.batch_size

    def check(self, what: str) -> None:
        check_choice(self.batch_format, BATCH_FORMATS, "batch_format", what)
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size", what)
        if not isinstance(cast("Any", self.function), Combiner):
            super().check(what)


Answers = Literal["kept", "again"]
ANSWERS: tuple[Answers, ...] = ("kept", "again")
"""Whether `map_async` keeps what a call has returned, or calls again after a crash."""


@dataclass(frozen=True)
class MapAsync(OfFunction):
    """Calls `function(record)` for up to `concurrency` records at a time per task, each within `timeout` seconds.

    Each task makes an instance of a class whose instances can be called, starts it, and calls that.
    """

    concurrency: int = 100
    timeout: float | None = None
    answers: Answers = "kept"
    asked_about: AskedAbout = WHOLE_RECORD
    cost: Callable[[Any], Any] | str | None = None
    budget: float | None = None

    kind_word = "map_async"
    may_await = True
    one_for_one = True

    @property
    def named_after(self) -> Any:
        return self.function

    @property
    def runtime(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # others have one
        operator = "kept_answers:KeptAnswersOperator" if self.keeps_answers else "map_async:MapAsyncOperator"
        return f"backedge.engine.operators.{operator}"

    @property
    def keeps_answers(self) -> bool:
        return self.answers == "kept"

    @property
    def calls_max(self) -> int:
        return self.concurrency

    @property
    def is_class(self) -> bool:
        """Whether the function is a class of which each task makes an instance."""
        return isinstance(self.function, type) and any("__call__" in vars(base) for base in self.function.__mro__)

    def check(self, what: str) -> None:
        check_called_class(self.function, what, is_instantiated=self.is_class)
        check_count(self.concurrency, "concurrency", what)
        check_choice(self.answers, ANSWERS, "answers", what)
        if self.timeout is not None and not is_above_zero(self.timeout):
            raise BadOptionError(f"{what} has timeout={self.timeout!r}: give seconds above 0, or leave it out")
        call_key = self.asked_about.key
        if call_key is not None and not isinstance(call_key, str):
            check_function(call_key, f"call_key= of {what}")
        self._check_costs(what)
        super().check(what)

    def _check_costs(self, what: str) -> None:
        if self.cost is not None and not isinstance(self.cost, str):
            check_function(self.cost, f"cost= of {what}")
        if self.cost is not None and not self.keeps_answers:
            raise BadOptionError(f"{what} has cost= and answers='again': costs are counted where answers are kept")
        if self.budget is None:
            return
        if not is_above_zero(self.budget):
            raise BadOptionError(f"{what} has budget={self.budget!r}: give a number above 0, or leave it out")
        if self.cost is None:
            raise BadOptionError(f"{what} has a budget and no cost=: give a column or a function of the answer")
        if not self.sets_aside:
            raise BadOptionError(f"{what} has a budget, and what exceeds it needs a way: give on_error='dead_letter'")


@dataclass(frozen=True)
class StatefulMap(OfFunction):
    """`function(state, record)` returns the key's next state and a record; the first state is `initial`.

    `upgrade(state, version)` returns the state as of `version`, the field, from that of an older version.
    """

    initial: Any = None
    copy_output: bool = True
    version: int = field(default=1, kw_only=True)
    upgrade: Callable[[Any, int], Any] | None = field(default=None, kw_only=True)

    runtime = "backedge.engine.operators.stateful_map:StatefulMapOperator"
    kind_word = "stateful_map"
    one_for_one = True
    keeps_values = True

    @property
    def named_after(self) -> Any:
        return self.function

    def check(self, what: str) -> None:
        _check_copy_output(self.copy_output, what)
        check_initial(self.initial, what)
        check_count(self.version, "state_version", what)
        if self.upgrade is not None:
            check_function(self.upgrade, f"upgrade= of {what}")
        super().check(what)

    @property
    def state_version(self) -> int:
        return self.version

    @property
    def can_upgrade(self) -> bool:
        return self.upgrade is not None

    def upgraded(self, value: Any, version: int) -> Any:
        return super().upgraded(value, version) if self.upgrade is None else self.upgrade(value, version)


@dataclass(frozen=True)
class OfClass(OfFunction):
    """Calls the hooks of a user's class, `function`. Each task makes an instance with its own copy of `arguments`.

    With `named_inputs`, hooks receive the name of the record's input.
    """

    named_inputs: bool = False
    copy_output: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    runtime = "backedge.engine.operators.process:ProcessOperator"
    kind_word = "process"
    keeps_values = True

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(getattr(self.function, "outputs", ("out",)))

    @property
    def optional_outputs(self) -> tuple[str, ...]:
        return tuple(getattr(self.function, "outputs", ()))

    @property
    def named_after(self) -> Any:
        return self.function

    @property
    def records_at_once(self) -> int | None:
        return None if hasattr(self.function, "on_batch") else 1

    @property
    def may_wait(self) -> bool:
        return hasattr(self.function, "on_timer")

    @property
    def acts_at_end(self) -> bool:
        inherited = cast(Any, Process).on_end
        return getattr(self.function, "on_end", inherited) is not inherited

    def check(self, what: str) -> None:
        of_class = f"process class {self.function.__name__}"
        given: Any = getattr(self.function, "outputs", ("out",))
        outputs: tuple[Any, ...] = tuple(cast("list[Any]", given)) if isinstance(given, tuple | list) else ()
        if not outputs or len(set(outputs)) < len(outputs) or any(map(is_no_output, outputs)):
            raise BadOptionError(
                f"{of_class} has outputs = {given!r}: give a tuple of different names, without ':', '/' or 'dead'"
            )
        has_records, has_batches = hasattr(self.function, "on_record"), hasattr(self.function, "on_batch")
        if has_records == has_batches:
            raise BadOptionError(
                f"{of_class} has {'both' if has_records else 'neither'} on_record {'and' if has_records else 'nor'} "
                "on_batch: define on_record(ctx, value), which gets one record, or on_batch(ctx, values), which gets "
                "several"
            )
        _check_copy_output(self.copy_output, of_class)
        check_count(self.state_version, "state_version", of_class)
        super().check(what)

    @property
    def state_version(self) -> int:
        return getattr(self.function, "state_version", 1)

    @property
    def can_upgrade(self) -> bool:
        needed = "upgrade_own" if hasattr(self.function, "capture") else "upgrade"
        return hasattr(self.function, needed)

    def upgraded(self, value: Any, version: int) -> Any:
        of_class: Any = self.function
        if not hasattr(of_class, "upgrade"):
            raise NotImplementedError(
                f"{of_class.__name__} keeps values in ctx.state but has no upgrade(value, version)"
            )
        return of_class.upgrade(value, version)

    def upgraded_own(self, state: Any, version: int) -> Any:
        of_class: Any = self.function
        return of_class.upgrade_own(state, version)

    @property
    def can_move(self) -> bool:
        return hasattr(self.function, "split") and hasattr(self.function, "merge")

    def moved(self, states: Sequence[Any], parallelism: int) -> list[Any]:
        of_class: Any = self.function
        return of_class.split(of_class.merge(states), parallelism)

    def new_instance(self) -> Any:
        return self.function(**own_arguments(self.arguments))


@dataclass(frozen=True)
class OfBatchClass(OfClass):
    """Calls `on_batch` of a user's class with whole batches in `batch_format`, whatever the keys of their rows."""

    batch_format: BatchFormat = field(default="records", kw_only=True)

    runtime = "backedge.engine.operators.process_batches:ProcessBatchesOperator"

    @property
    def table(self) -> Table | None:
        """The table that the class declares as its keyed state."""
        return declared_table(self.function)

    def check(self, what: str) -> None:
        check_choice(self.batch_format, BATCH_FORMATS, "batch_format", what)
        if not hasattr(self.function, "on_batch"):
            raise BadOptionError(
                f'process class {self.function.__name__} was given batch_format="{self.batch_format}" but has no '
                "on_batch(ctx, batch): add it, or leave batch_format out and define on_record(ctx, value)"
            )
        if self.table is not None:
            self.table.check(f"process class {self.function.__name__}")
        super().check(what)


def declared_table(of_class: Any) -> Table | None:
    """The table that a process class declares, if it does."""
    found = getattr(of_class, "table", None)
    return found if isinstance(found, Table) else None


def check_process_class(given: object) -> None:
    """Raise unless it is a class whose hooks can be called."""
    if not isinstance(given, type):
        raise BadOptionError(f"process got {given!r}, which is not a class: give a class with on_record(ctx, value)")
    check_hooks(given)


@dataclass(frozen=True)
class Iterate(BuiltIn):
    """The head of an iteration, which ends after `rounds`, when `until` returns true, or after an empty round.

    - measure: returns a value for each record that the body returned, or names its column or several; None counts 1
      for each. reduce: combines them.
    - until: called with the combined value of a round.
    - enclosing: the iteration whose body contains this one.
    - loads_first: whether round 0 only loads the body, so that `until` is first called after the round behind it.
    """

    rounds: int | None = None
    until: Callable[[Any], object] | None = None
    measure: Callable[[Any], Any] | str | tuple[str, ...] | None = None
    reduce: Callable[[Any, Any], Any] = operator.add
    enclosing: str | None = None
    loads_first: bool = False

    runtime = "backedge.engine.operators.iterate:IterateOperator"
    kind_word = "iterate"
    in_rounds = True

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("body", "result")

    def check(self, what: str) -> None:
        if self.rounds is not None:
            check_count(self.rounds, "rounds", what)
        if self.measure is not None and self.until is None:
            raise BadOptionError(
                f"{what} has measure= but no until= to use the measure: give it until=, or drop measure="
            )
        for option, function in (("until", self.until), ("measure", self.measure)):
            if function is not None and not (option == "measure" and isinstance(function, str | tuple)):
                check_function(function, f"{option}= of {what}")
        check_function(self.reduce, f"reduce= of {what}")


def _check_copy_output(copy_output: object, what: str) -> None:
    if not isinstance(copy_output, bool):
        raise BadOptionError(f"{what} has copy_output={copy_output!r}: give True or False")
