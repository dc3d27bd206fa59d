"""The error of a connector that breaks its contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from backedge.engine.batches.differences import differences
from backedge.graphs.public import public
from backedge.graphs.task_errors import describe, show

_STORY_MAX = 40
_SHOWN_MAX = 3


@public
class ConnectorContractError(Exception):
    """A source or a sink does not do what runs rely on. The message says what, and lists the steps that led there.

    Fix: repair the source or sink: docs/extending.md has the rules that `check_source` and `check_sink` check.
    """


def broken(fault: str, seed: int | None = None, story: Sequence[str] = ()) -> ConnectorContractError:
    """The error for this fault, with the steps of the schedule that found it."""
    if seed is None:
        return ConnectorContractError(fault)
    steps = [f"{number:3} {step}" for number, step in enumerate(story, 1)][-_STORY_MAX:]
    return ConnectorContractError("\n".join([f"{fault}\nschedule {seed} (seeds=[{seed}] draws it again):", *steps]))


def unlike(expected: Iterable[Any], found: Iterable[Any]) -> str | None:
    """What lacks and what is too much, as multisets; None if nothing."""
    told = [
        f"{what} {', '.join(map(show, records[:_SHOWN_MAX]))}" + (f" ({len(records):,} in all)" if records[1:] else "")
        for what, records in zip(("lacking", "surplus"), differences(expected, found), strict=True)
        if records
    ]
    return "; ".join(told) or None


def in_another_process(described: Any) -> bytes:
    """A source or sink as a run sends it to its processes."""
    try:
        return cloudpickle.dumps(described)  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:
        raise broken(
            f"it cannot be sent to the processes of a run, since it does not pickle: {describe(error)}"
        ) from error
