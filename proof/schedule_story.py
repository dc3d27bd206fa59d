"""Prints a schedule as readable lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from backedge.engine.simulation.world import Happening

LINES_MAX = 200


def tell(story: Sequence[Happening], lines_max: int = LINES_MAX) -> str:
    """The last steps, numbered; repeated steps are printed once."""
    lines: list[str] = []
    previous = ""
    repeated = 1
    for number, event in enumerate(story, 1):
        text = _line(event)
        if text == previous:
            repeated += 1
            lines[-1] = f"{lines[-1].split(' (')[0]} ({repeated} times)"
            continue
        previous, repeated = text, 1
        lines.append(f"{number:5} {text}")
    left_out = len(lines) - lines_max
    head = [f"      ({left_out} lines before this)"] if left_out > 0 else []
    return "\n".join(head + lines[-lines_max:])


def _line(event: Happening) -> str:
    return " ".join(word for part in event for word in _words(part))


def _words(part: Any) -> list[str]:
    if type(part) is tuple:
        return [str(item) for item in cast("tuple[Any, ...]", part)]
    return [str(part)]
