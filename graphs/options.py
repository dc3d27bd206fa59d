"""What operators can be told, and the checks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, TypeGuard, cast

from graphs.errors import BadOptionError
from graphs.naming import name_fault

BatchFormat = Literal["records", "numpy", "pandas", "pyarrow"]
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


def check_function(function: object, what: str) -> None:
    """Raise unless it can be called."""
    if not callable(function):
        raise BadOptionError(f"{what} is given {function!r}, which cannot be called: give a function")


def is_no_output(name: Any) -> bool:
    """Whether an operator's own output cannot be called that."""
    # "dead" is where records go whose call raised; "dead:LOOP" where those go that went round too often.
    return not isinstance(name, str) or name == "dead" or name_fault(name) is not None


def check_resources(given: Mapping[str, Any], what: str) -> None:
    """Raise unless these are amounts of what a task needs of a machine."""
    for option, value in given.items():
        if option not in ("num_cpus", "num_gpus", "resources"):
            raise BadOptionError(
                f"{what} has no option {option!r}: it takes name, parallelism, num_cpus, num_gpus, resources "
                "and what its own signature says"
            )
        amounts = cast(Mapping[str, Any], value).values() if option == "resources" else [value]
        if not all(isinstance(amount, int | float) and amount >= 0 for amount in amounts):
            raise BadOptionError(f"{what} has {option}={value!r}: give amounts of 0 or more")
