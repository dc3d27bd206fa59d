"""Whether the operators of a plan can travel to the processes that run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.kinds import OfClass
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.task_errors import describe


def _pickled(value: Any) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def check_pickles(plan: Plan, pickled: Callable[[Any], bytes] = _pickled) -> None:
    """Raise unless every operator can be pickled, with the functions and values that it was given."""
    for name, operator in plan.operators.items():
        if (whole := _fault(operator, pickled)) is None:
            continue
        parts = _parts(operator)
        faults = ((what, _fault(value, pickled)) for what, value in parts.items())
        what, error = next(((what, error) for what, error in faults if error is not None), ("it", whole))
        verb = "refers to something that does not pickle" if callable(parts.get(what)) else "does not pickle"
        raise BadOptionError(
            f"operator {name!r} of flow {plan.name!r} cannot travel to another process, because {what} {verb} "
            f"({describe(error)}): give values that pickle, and create locks, connections and the like where they are "
            "used, in the on_start of a class for process()"
        ) from error


def _fault(value: Any, pickled: Callable[[Any], bytes]) -> Exception | None:
    try:
        pickled(value)
    except Exception as error:  # noqa: BLE001  # pickling calls code of the user's
        return error
    return None


def _parts(operator: Operator) -> dict[str, Any]:
    """What the user has given an operator, each with its name in words."""
    kind = operator.kind
    of, holder = (type(kind.subject).__name__, kind.subject) if kind.is_source or kind.is_sink else (kind.word, kind)
    names = [field.name for field in fields(holder)] if is_dataclass(holder) else []
    given = {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    if isinstance(kind, OfClass):
        given |= given.pop("arguments")
    keys = {f"the key of its input {name!r}": key for name, key in operator.keys.items()}
    return keys | {f"argument {name!r} of {of}": value for name, value in given.items()}
