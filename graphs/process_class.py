"""Process classes: their hooks, the `ctx` of the hooks, and the arguments of the class.

`Process` and `ProcessInputs` help editors and type checkers. A class with the same hooks need not derive from them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from backedge.graphs.graph_errors import BadOptionError, InputsError
from backedge.graphs.public import public
from backedge.graphs.table import TableRows
from backedge.graphs.versions import Versions

In = TypeVar("In")
Out = TypeVar("Out")
Out_contra = TypeVar("Out_contra", contravariant=True)

OPTIONS = ("name", "parallelism", "batch_format", "on_error", "copy_output", "num_cpus", "num_gpus", "resources")
"""Options of `process` itself; any other keyword is an argument of the class, or one of its inputs."""


class State(Protocol):
    """The value of the current key, or of the task if the operator has no key."""

    def get(self, default: Any = None) -> Any:
        """The value, which may be changed in place; `default` if there is none."""
        ...

    def set(self, value: Any) -> None:
        """Give the key a new value."""

    def clear(self) -> None:
        """Forget the key."""


class Counter(Protocol):
    """A sum that grows."""

    def add(self, amount: float = 1) -> None:
        """Count more."""


class Histogram(Protocol):
    """Values in buckets from a thousandth to 5,000."""

    def observe(self, value: float) -> None:
        """Note a value, such as a duration in seconds."""


@public
class Context(Protocol[Out_contra]):
    """The `ctx` of every hook: where the hook runs, and what it may do. `Out` is the type of the emitted records."""

    @property
    def state(self) -> State:
        """The value of the current key, or of the task if the operator has no key."""
        ...

    @property
    def key(self) -> Any:
        """The key of the current record or timer; None if there is none."""
        ...

    @property
    def round(self) -> tuple[int, ...] | None:
        """The round of the iteration, (outer, ..., inner), counted from 0; None outside of iterations."""
        ...

    @property
    def now(self) -> int:
        """The time in milliseconds, from a clock that never goes back."""
        ...

    @property
    def random(self) -> random.Random:
        """A random generator whose state is restored with the task."""
        ...

    @property
    def task_index(self) -> int:
        """The index of this task, counted from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """The number of tasks of the operator."""
        ...

    @property
    def hops(self) -> int:
        """How often the current record has gone round the loops that have `max_rounds`, in a single number."""
        ...

    def emit(self, record: Out_contra, output: str | None = None, *, hops: int | None = None) -> None:
        """Send a record to an output, by default the first output of the class.

        It inherits the rounds of the current record or timer. A record that has waited keeps its own with `hops=`, the
        `ctx.hops` of when it came.
        """

    def emit_batch(self, batch: Any, output: str | None = None) -> None:
        """Send a batch in any format, if `process` was given `batch_format`; such a class does not call `emit`."""

    def publish(self, versions: Versions, value: Any) -> int:
        """Let the functions of the flow read a value as `versions[number]`. Returns the number: 1, 2, 3..."""
        ...

    def set_timer(self, at_ms: float) -> None:
        """Call `on_timer(ctx, at_ms)` at that time, for the current key."""

    def set_timer_in(self, ms: float) -> float:
        """Call `on_timer(ctx, at_ms)` in `ms` milliseconds, for the current key. Returns that time, `at_ms`."""
        ...

    def clear_timer(self, at_ms: float | None = None) -> None:
        """Clear the timer of the current key for that time; without a time, all timers of the key."""

    def counter(self, name: str) -> Counter:
        """A counter of the operator, for the metrics of the run: `ctx.counter("fetched").add(1)`."""
        ...

    def histogram(self, name: str) -> Histogram:
        """A histogram of the operator, for the metrics of the run: `ctx.histogram("seconds").observe(0.3)`."""
        ...

    @property
    def table(self) -> TableRows:
        """The table that the class declares with `table = Table(...)`, if `process` was given `batch_format`."""
        ...

    def keys(self) -> Iterator[Any]:
        """Iterate over the keys that have a value; each is the current key until the next."""
        ...


class _Hooks(Generic[Out]):
    """The hooks that do not depend on how many inputs there are."""

    state_version: ClassVar[int] = 1
    """The version of the state. A class that raises it has `upgrade`, and `upgrade_own` if it has `capture`."""

    def on_start(self, ctx: Context[Out]) -> None:
        """Called at each start, before `restore`: load models, open connections."""

    def on_round_end(self, ctx: Context[Out]) -> None:
        """Called when a round of an iteration is complete at this task."""

    def on_end(self, ctx: Context[Out]) -> None:
        """Called when no more input will arrive."""

    def close(self) -> None:
        """Called when the task is over, whether it succeeded or failed."""

    if TYPE_CHECKING:
        # The engine looks for these in the class. A class without them has no state of its own, or no timers.

        def on_timer(self, ctx: Context[Out], at_ms: int) -> None:
            """Called when a timer is due."""

        def capture(self) -> Any:
            """The class's own state for the whole task, in addition to `ctx.state`."""

        def restore(self, state: Any) -> None:
            """Restore what `capture` returned."""

        @staticmethod
        def upgrade(value: Any, version: int) -> Any:
            """A value of `ctx.state` as of `state_version`, from that of an older version."""

        @staticmethod
        def upgrade_own(state: Any, version: int) -> Any:
            """What `capture` would return as of `state_version`, from what it returned as of an older version."""


@public
class Process(_Hooks[Out], Generic[In, Out]):
    """A process class with a single input of type `In` that emits `Out`; define `on_record` or `on_batch`.

    Pass its arguments to `process`. The hooks are `on_start`, `on_record`, `on_batch`, `on_timer`, `on_round_end`,
    `on_end`, `capture`, `restore`, `upgrade`, `upgrade_own` and `close`.

    >>> from backedge import Flow, Items
    >>> class Every(Process[int, str]):
    ...     def __init__(self, nth: int) -> None:
    ...         self.nth = nth
    ...     def on_record(self, ctx: Context[str], value: int) -> None:
    ...         if value % self.nth == 0:
    ...             ctx.emit(str(value))
    >>> Flow().read(Items([1, 2, 3])).process(Every, nth=2).tails[0].operator
    'Every'
    """

    if TYPE_CHECKING:

        def on_record(self, ctx: Context[Out], value: In) -> None:
            """Called for each record."""

        def on_batch(self, ctx: Context[Out], values: Any) -> None:
            """Called instead of `on_record`; after `key_by`, with the records of one key at a time.

            With `batch_format`, called with whole batches in that format, whatever the keys.
            """


@public
class ProcessInputs(_Hooks[Out], Generic[In, Out]):
    """A process class with several named inputs: `on_record(ctx, input, value)`."""

    if TYPE_CHECKING:

        def on_record(self, ctx: Context[Out], input: str, value: In) -> None:
            """Called for each record."""

        def on_batch(self, ctx: Context[Out], input: str, values: Any) -> None:
            """Called instead of `on_record`."""


def check_arguments(of: type[Any], arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise unless the class accepts these arguments; `options` are the options that `process` was given."""
    what = f"process class {of.__name__}"
    try:
        parameters = inspect.signature(of)
    except ValueError:  # a class of an extension module without a signature
        return
    for name in options:
        if name in parameters.parameters:
            raise BadOptionError(
                f"{what} has an argument {name!r}, which is also an option of process: rename the argument"
            )
    try:
        parameters.bind(**arguments)
    except TypeError as error:
        known = [*parameters.parameters, *OPTIONS]
        near = [match for name in arguments for match in get_close_matches(name, known, 1) if match not in arguments]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise BadOptionError(
            f"{what} cannot be made with {_shown(arguments)}: {error}{hint}: give process the arguments of its "
            f"__init__{parameters}, and options from {', '.join(OPTIONS)}"
        ) from None


def check_inputs_are_no_arguments(of: Any, inputs: Collection[str]) -> None:
    """Raise if a keyword could mean both an input and an argument of the class."""
    if not isinstance(of, type):
        return  # not a class: refused later
    try:
        parameters = inspect.signature(cast("type[Any]", of)).parameters
    except ValueError:
        return
    for name in inputs:
        if name in parameters:
            raise InputsError(
                f"process class {of.__name__} has an input {name!r} and an argument {name!r}: rename one of them"
            )


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
