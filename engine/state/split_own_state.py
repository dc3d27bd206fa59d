"""Converts the tasks' own part of an operator's state to another number of tasks.

Random numbers restart and round-robin turns begin at the first task again; the highest hop count, the latest time, the
first number of a question and the round are the same for all tasks. What was paid for answers is added up. State that a
class captured itself is merged and split by the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from backedge.engine.state.capture import dump, load
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import USER_RAISED, MisuseError, show, user_error


def move_whole(operator: Operator, wholes: Sequence[bytes | None], parallelism: int) -> list[bytes | None]:
    """Convert `OperatorState.whole` of an operator's tasks for `parallelism` tasks. All of them must be movable.

    >>> from backedge.graphs.kinds import Map
    >>> move_whole(Operator("double", Map(abs)), [None, None], 3)
    [None, None, None]
    """
    parts: list[dict[str, Any]] = [load(operator.name, "its state", whole) for whole in wholes if whole is not None]
    common: dict[str, Any] = {}
    for name in ("hops_max", "now_ms", "first_number"):
        highest = max((part.get(name, 0) for part in parts), default=0)
        if highest:
            common[name] = highest
    for part in parts:
        if "round" in part:
            common["round"] = part["round"]
    moved: list[dict[str, Any]] = [dict(common) for _ in range(parallelism)]
    paid = [part["paid"] for part in parts if "paid" in part]
    if paid:
        moved[0]["paid"] = {name: sum(each[name] for each in paid) for name in paid[0]}
    own = [part["own"] for part in parts if "own" in part]
    if own:
        for part, state in zip(moved, _split_anew(operator, own, parallelism), strict=True):
            part["own"] = state
    return [dump(operator.name, "state", part) if part else None for part in moved]


def _split_anew(operator: Operator, own: list[Any], parallelism: int) -> list[Any]:
    try:
        states: object = cast(object, operator.kind.moved(own, parallelism))
    except USER_RAISED as error:
        raise user_error(operator.name, error, hook="merge or split", can_set_aside=False) from error
    if not isinstance(states, list) or len(cast("list[Any]", states)) != parallelism:
        raise MisuseError(
            f"operator {operator.name!r}: split returned {show(states)} for {parallelism} tasks: "
            f"return a list of {parallelism} states, one per task"
        )
    return cast("list[Any]", states)
