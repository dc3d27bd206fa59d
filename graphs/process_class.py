"""Process classes: the hooks, the `ctx` they are given, and the arguments that a class is made with.

`Process` and `ProcessInputs` are for editors and type checkers. A class with the same hooks need not derive from them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from graphs.graph_errors import BadOptionError, InputsError

In = TypeVar("In")
Out = TypeVar("Out")
Out_contra = TypeVar("Out_contra", contravariant=True)

OPTIONS = ("name", "parallelism", "on_error", "copy_output", "num_cpus", "num_gpus", "resources")
"""What `process` takes itself; any other keyword is an argument of the class, or one of its inputs."""


class State(Protocol):
    """The value of the current key, or of the task where the operator has no key."""

    def get(self, default: Any = None) -> Any:
        """The value, which may be changed in place; `default` while there is none."""
        ...

    def set(self, value: Any) -> None:
        """Give the key a new value."""
        ...

    def clear(self) -> None:
        """Forget the key."""
        ...


class Context(Protocol[Out_contra]):
    """Where a hook runs, and what it may do there: the `ctx` of every hook. `Out` is the type of what it emits."""

    @property
    def state(self) -> State:
        """The value of the current key, or of the task where the operator has no key."""
        ...

    @property
    def key(self) -> Any:
        """The key of the record or the timer at hand; None where there is none."""
        ...

    @property
    def round(self) -> tuple[int, ...] | None:
        """The round of the iteration, (outer, ..., inner), counted from 0; None outside of iterations."""
        ...

    @property
    def now(self) -> int:
        """The time in milliseconds, by a clock that never goes back."""
        ...

    @property
    def random(self) -> random.Random:
        """Random numbers that go on after a restore where they were."""
        ...

    @property
    def task_index(self) -> int:
        """Which task this is, counted from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """The number of tasks of the operator."""
        ...

    def emit(self, record: Out_contra, output: str | None = None) -> None:
        """Send a record to an output: the first one of the class unless it is named."""
        ...

    def set_timer(self, at_ms: int) -> None:
        """Have `on_timer(ctx, at_ms)` called at that time, for the current key."""
        ...

    def keys(self) -> Iterator[Any]:
        """Each key that has a value; it is the current key until the next."""
        ...


class _Hooks(Generic[Out]):
    """The hooks that do not depend on how many inputs there are."""

    def on_start(self, ctx: Context[Out]) -> None:
        """Called at each start, before `restore`: load models, open connections."""

    def on_round_end(self, ctx: Context[Out]) -> None:
        """Called when a round of an iteration is complete at this task."""

    def on_end(self, ctx: Context[Out]) -> None:
        """Called when nothing will come any more."""

    def close(self) -> None:
        """Called when the task is over, well or not."""

    if TYPE_CHECKING:
        # The engine looks for these in the class: without them there is no state of its own, or no timer.

        def on_timer(self, ctx: Context[Out], at_ms: int) -> None:
            """Called when a timer is due."""

        def capture(self) -> Any:
            """State of the class's own, beside `ctx.state`, for the whole task."""

        def restore(self, state: Any) -> None:
            """Take back what `capture` returned."""


class Process(_Hooks[Out], Generic[In, Out]):
    """A process class whose single input brings `In` and which emits `Out`; give it `on_record` or `on_batch`.

    Its arguments are given to `process`. The hooks are `on_start`, `on_record`, `on_batch`, `on_timer`, `on_round_end`,
    `on_end`, `capture`, `restore` and `close`.

    >>> from graphs import Flow, Items
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

        def on_batch(self, ctx: Context[Out], values: list[In]) -> None:
            """Called instead of `on_record`; behind `key_by` with the records of one key at a time."""


class ProcessInputs(_Hooks[Out], Generic[In, Out]):
    """The same with several inputs, which have names: `on_record(ctx, input, value)`."""

    if TYPE_CHECKING:

        def on_record(self, ctx: Context[Out], input: str, value: In) -> None:
            """Called for each record."""

        def on_batch(self, ctx: Context[Out], input: str, values: list[In]) -> None:
            """Called instead of `on_record`."""


def check_arguments(of: type[Any], arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise unless the class can be made with these arguments; `options` are those that `process` was given itself."""
    what = f"process class {of.__name__}"
    try:
        parameters = inspect.signature(of)
    except ValueError:  # a class of an extension module, which does not say
        return
    for name in options:
        if name in parameters.parameters:
            raise BadOptionError(
                f"{what} has an argument {name!r}, and so has process itself: rename the one of the class"
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
    """Raise if a keyword could be an input of the class as well as an argument of it."""
    if not isinstance(of, type):
        return  # refused as no class, later
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
