"""Whether the operators of a plan can travel to the processes that run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from engine.task_errors import describe
from graphs.graph_errors import BadOptionError
from graphs.plan import Plan


def _pickled(value: Any) -> bytes:
    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def check_pickles(plan: Plan, pickled: Callable[[Any], bytes] = _pickled) -> None:
    """Raise unless every operator can be pickled, with the functions that it was given."""
    for name, operator in plan.operators.items():
        try:
            pickled(operator)
        except Exception as error:
            raise BadOptionError(
                f"operator {name!r} of flow {plan.name!r} cannot travel to another process, because something that its "
                f"function refers to does not pickle ({describe(error)}): create it where it is used, in the on_start "
                "of a class for process()"
            ) from error
