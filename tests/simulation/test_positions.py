"""Positions that mean something to their source alone: tokens, numbers that decrease, dicts, None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge import Collect, Flow, Poll, simulate

NEXT = {"tok9": "tok3", "tok3": "tok7", "tok7": "tok1", "tok1": "end"}


def by_token(at: str) -> Any:
    return None if at == "end" else ([at], NEXT[at])


def downwards(at: int) -> Any:
    return None if at == 0 else ([at], at - 1)


def by_dict(at: dict[str, int]) -> Any:
    return None if at["n"] == 8 else ([at["n"]], {"n": at["n"] + 1})


def late() -> Callable[[Any], Any]:
    """Has nothing for some calls, at the position None."""
    calls: list[Any] = []

    def poll(at: int | None) -> Any:
        calls.append(at)
        if at is None and len(calls) % 30:
            return [], None
        return None if at == 8 else ([at or 0], (at or 0) + 1)

    return poll


@pytest.mark.parametrize(
    ("function", "start", "records"),
    [
        (by_token, "tok9", [*NEXT]),
        (downwards, 12, [*range(12, 0, -1)]),
        (by_dict, {"n": 0}, [*range(8)]),
        (late(), None, [*range(8)]),
    ],
    ids=["tokens", "downwards", "dicts", "None"],
)
def test_a_source_may_have_any_positions(function: Any, start: Any, records: list[Any]):
    flow = Flow("poll")
    flow.read(Poll(function, every=0.001, start=start, ends=True), name="polled").write(Collect(), name="out")
    result = simulate(flow, seeds=range(3, 5))
    assert sorted(result.outputs["out"], key=records.index) == records
    assert result.restores > 2
