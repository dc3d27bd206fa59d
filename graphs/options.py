"""The options of operators, and checks of their values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType
from typing import Any, Literal, TypedDict, TypeGuard, cast, get_args

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.naming import name_fault
from backedge.graphs.plan import Resources

BatchFormat = Literal["records", "numpy", "pandas", "polars", "pyarrow"]
BATCH_FORMATS: tuple[str, ...] = get_args(BatchFormat)
OnError = Literal["fail", "dead_letter"]


class Placing(TypedDict, total=False):
    """The options of every operator: its name, its number of tasks, and the resources that one task needs."""

    name: str
    parallelism: int
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float]


class Step(Placing, total=False):
    """The options of an operator that calls a user's function. `on_error`: where a record goes if its call raises."""

    on_error: OnError


def check_count(value: object, option: str, what: str) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if not is_whole(value) or value < 1:
        raise BadOptionError(f"{what} has {option}={value!r}: give an integer of at least 1")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_above_zero(value: object) -> bool:
    """Whether it is a number above 0 that a float can hold.

    >>> is_above_zero(0.5), is_above_zero(float("nan")), is_above_zero("1"), is_above_zero(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def check_choice(value: object, choices: tuple[str, ...], option: str, what: str) -> None:
    """Raise unless `value` is one of the choices."""
    if value not in choices:
        raise BadOptionError(f"{what} has {option}={value!r}: give one of {', '.join(map(repr, choices))}")


def check_function(function: object, what: str, *, may_await: bool = False, may_yield: bool = False) -> None:
    """Raise unless it can be called and returns its result when called."""
    if not callable(function):
        raise BadOptionError(f"{what} got {function!r}, which cannot be called: give a function")
    if is_async(function) and not may_await:
        raise BadOptionError(
            f"{what} got {_name(function)}, which is async, but nothing would await it: "
            "make such calls with map_async, or give a plain function"
        )
    if _is_called(function, inspect.isasyncgenfunction):
        raise BadOptionError(
            f"{what} got {_name(function)}, an async generator, but nothing would iterate over it: "
            "collect its results in a list, make that call with map_async, and unpack the list with flat_map"
        )
    if does_yield(function) and not may_yield:
        raise BadOptionError(
            f"{what} got {_name(function)}, which yields, but nothing would iterate over it: "
            "return the result, or use flat_map to return several records"
        )


def check_called_class(function: Any, what: str, *, is_instantiated: bool) -> None:
    """Raise if `on_start` or `close` of a class of calls would not run."""
    hooks = [hook for hook in ("on_start", "close") if callable(getattr(function, hook, None))]
    if is_instantiated:
        for hook in ("__call__", *hooks):
            if does_yield(getattr(function, hook)):
                raise BadOptionError(f"{what}: {hook} of class {function.__name__} yields: return the result instead")
    elif isinstance(function, type) and hooks:
        raise BadOptionError(
            f"{what} got class {function.__name__} with {hooks[0]}, but nothing to call for a record: "
            "give it `async def __call__(self, record)`"
        )
    elif not isinstance(function, type) and "on_start" in hooks:
        raise BadOptionError(
            f"{what} got an object of class {type(function).__name__}, whose on_start nothing would call: "
            "give the class, and each task makes an instance"
        )


def is_async(function: Any) -> bool:
    """Whether calling it only creates a coroutine.

    >>> async def ask(record): ...
    >>> class Ask:
    ...     async def __call__(self, record): ...
    >>> is_async(ask), is_async(Ask()), is_async(lambda record: ask(record))
    (True, True, False)
    """
    return _is_called(function, inspect.iscoroutinefunction)


def does_yield(function: Any) -> bool:
    """Whether calling it only creates a generator, async or not."""
    return any(_is_called(function, kind) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction))


def _is_called(function: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether the function is of this kind, or the `__call__` of an object is."""
    return kind(function) or kind(type(function).__call__)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def check_initial(initial: Any, what: str) -> None:
    """Raise if it is a function or class that makes a state instead of a state."""
    if isinstance(initial, type | GenericAlias):
        made = f"{initial.__name__}()"
    elif isinstance(initial, FunctionType | BuiltinFunctionType | MethodType | partial):
        made = "its result"
    else:
        return
    raise BadOptionError(
        f"{what} has initial={initial!r}, which would be the state itself: give the first state, {made}; "
        "each key gets its own copy"
    )


HOOKS = (
    *("on_start", "on_record", "on_batch", "on_timer", "on_round_end", "on_end"),
    *("capture", "restore", "split", "merge", "upgrade", "upgrade_own", "close"),
)


def check_hooks(operator: type[Any]) -> None:
    """Raise if calling a hook of a process class would not run it."""
    what = f"process class {operator.__name__}"
    for hook in HOOKS:
        function = getattr(operator, hook, None)
        if does_yield(function):
            raise BadOptionError(
                f"{what}: {hook} yields, so calling it does nothing: send each record with ctx.emit(record)"
            )
        if is_async(function):
            raise BadOptionError(f"{what}: {hook} is async, but nothing would await it: make such calls with map_async")


def is_no_output(name: Any) -> bool:
    """Whether an operator's output must not have this name."""
    # "dead" receives the records whose call raised, "dead:LOOP" those that went round too often.
    return not isinstance(name, str) or name == "dead" or name_fault(name) is not None


def resources_of(given: Mapping[str, Any], what: str) -> Resources:
    """The resources that a task needs; raises if an amount is not valid."""
    for option, value in given.items():
        if option not in ("num_cpus", "num_gpus", "resources"):
            raise BadOptionError(
                f"{what} has no option {option!r}: it takes name, parallelism, num_cpus, num_gpus, resources "
                "and the parameters of its own signature"
            )
        amounts: list[Any] = [value]
        if option == "resources":
            if not isinstance(value, Mapping):
                raise BadOptionError(f'{what} has resources={value!r}: give a dict of amounts, such as {{"tpu": 1}}')
            amounts = list(cast("Mapping[str, Any]", value).values())
        if not all(isinstance(amount, int | float) and amount >= 0 for amount in amounts):
            raise BadOptionError(f"{what} has {option}={value!r}: give amounts of 0 or more")
    return Resources(given.get("num_cpus"), given.get("num_gpus"), given.get("resources"))
