"""A task that waits for a timer when all that send to it have ended takes part in cuts all the same."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Range, simulate
from backedge.engine.simulation.world.world_ports import BEGINNING_MS


class Late:
    """Holds what comes for a minute."""

    def on_record(self, ctx: Any, record: int) -> None:
        ctx.state.set([*(ctx.state.get() or []), record])
        ctx.set_timer(BEGINNING_MS + 60_000)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        for record in ctx.state.get():
            ctx.emit(record)


@pytest.mark.slow
def test_cuts_are_taken_while_a_task_waits_for_a_timer_behind_inputs_that_have_ended():
    held: list[int] = []
    flow = Flow("late")
    numbers = flow.read(Range(6), name="numbers").key_by(lambda n: n % 2)
    numbers.process(Late, name="late").write(Collect(), name="out")
    result = simulate(flow, seeds=range(10), invariant=lambda cut: held.append(len(cut.output("out"))))
    assert sorted(result.outputs["out"]) == [0, 1, 2, 3, 4, 5]
    assert held.count(0) > 20
    assert result.restores > 2
