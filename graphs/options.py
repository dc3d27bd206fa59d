"""What operators can be told, and the checks of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType
from typing import Any, Literal, TypedDict, TypeGuard, cast, get_args

from graphs.graph_errors import BadOptionError
from graphs.naming import name_fault
from graphs.plan import Resources

BatchFormat = Literal["records", "numpy", "pandas", "polars", "pyarrow"]
BATCH_FORMATS: tuple[str, ...] = get_args(BatchFormat)
OnError = Literal["fail", "dead_letter"]


class Placing(TypedDict, total=False):
    """What every operator takes: its name, its number of tasks, and what one task needs of a machine."""

    name: str
    parallelism: int
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float]


class Step(Placing, total=False):
    """What an operator with a function of the user's takes besides: where a record goes whose call raised."""

    on_error: OnError


def check_count(value: object, option: str, what: str) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if not is_whole(value) or value < 1:
        raise BadOptionError(f"{what} has {option}={value!r}: give an integer of at least 1")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer, which True is none of."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_above_zero(value: object) -> bool:
    """Whether it is a finite number above 0.

    >>> is_above_zero(0.5), is_above_zero(float("nan")), is_above_zero("1")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def check_choice(value: object, choices: tuple[str, ...], option: str, what: str) -> None:
    """Raise unless `value` is one of the choices."""
    if value not in choices:
        raise BadOptionError(f"{what} has {option}={value!r}: give one of {', '.join(map(repr, choices))}")


def check_function(function: object, what: str, *, may_await: bool = False, may_yield: bool = False) -> None:
    """Raise unless it can be called, and gives its result when it is called."""
    if not callable(function):
        raise BadOptionError(f"{what} is given {function!r}, which cannot be called: give a function")
    if is_async(function) and not may_await:
        raise BadOptionError(
            f"{what} is given {_name(function)}, which is async, and nothing would await it: "
            "make such calls with map_async, or give a plain function"
        )
    if _is_called(function, inspect.isasyncgenfunction):
        raise BadOptionError(
            f"{what} is given {_name(function)}, an async generator, and nothing would iterate over it: "
            "gather its results in a list, make that call with map_async, and part the list with flat_map"
        )
    if does_yield(function) and not may_yield:
        raise BadOptionError(
            f"{what} is given {_name(function)}, which yields, and nothing would iterate over it: "
            "return the result, or make several records of one with flat_map"
        )


def is_async(function: Any) -> bool:
    """Whether calling it only makes a coroutine.

    >>> async def ask(record): ...
    >>> class Ask:
    ...     async def __call__(self, record): ...
    >>> is_async(ask), is_async(Ask()), is_async(lambda record: ask(record))
    (True, True, False)
    """
    return _is_called(function, inspect.iscoroutinefunction)


def does_yield(function: Any) -> bool:
    """Whether calling it only makes a generator, an async one included."""
    return any(_is_called(function, kind) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction))


def _is_called(function: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether the function is of a kind, or what is called where it is an object with a `__call__`."""
    return kind(function) or kind(type(function).__call__)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def check_initial(initial: Any, what: str) -> None:
    """Raise if it is what makes a state, and no state."""
    if isinstance(initial, type | GenericAlias):
        made = f"{initial.__name__}()"
    elif isinstance(initial, FunctionType | BuiltinFunctionType | MethodType | partial):
        made = "what it returns"
    else:
        return
    raise BadOptionError(
        f"{what} has initial={initial!r}, which would be the state itself: give the first state, {made}; "
        "each key has a copy of its own"
    )


HOOKS = (
    *("on_start", "on_record", "on_batch", "on_timer", "on_round_end", "on_end"),
    *("capture", "restore", "split", "merge", "close"),
)


def check_hooks(operator: type[Any]) -> None:
    """Raise if a hook of a process class would not run when it is called."""
    what = f"process class {operator.__name__}"
    for hook in HOOKS:
        function = getattr(operator, hook, None)
        if does_yield(function):
            raise BadOptionError(
                f"{what}: {hook} yields, so that calling it does nothing: send each record with ctx.emit(record)"
            )
        if is_async(function):
            raise BadOptionError(f"{what}: {hook} is async, and nothing would await it: make such calls with map_async")


def is_no_output(name: Any) -> bool:
    """Whether an operator's own output cannot be called that."""
    # "dead" is where records go whose call raised; "dead:LOOP" where those go that went round too often.
    return not isinstance(name, str) or name == "dead" or name_fault(name) is not None


def resources_of(given: Mapping[str, Any], what: str) -> Resources:
    """What a task needs of a machine; raises unless these are amounts of that."""
    for option, value in given.items():
        if option not in ("num_cpus", "num_gpus", "resources"):
            raise BadOptionError(
                f"{what} has no option {option!r}: it takes name, parallelism, num_cpus, num_gpus, resources "
                "and what its own signature says"
            )
        amounts = cast(Mapping[str, Any], value).values() if option == "resources" else [value]
        if not all(isinstance(amount, int | float) and amount >= 0 for amount in amounts):
            raise BadOptionError(f"{what} has {option}={value!r}: give amounts of 0 or more")
    return Resources(given.get("num_cpus"), given.get("num_gpus"), given.get("resources"))
