"""What an operator in a loop emits when its loop has ended: out of the loop it arrives, back into it it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.simulation.simulate import simulate
from backedge.graphs.task_errors import MisuseError


class CountsToThree:
    """Sends numbers round until they are 3, and `last` when nothing will come any more."""

    last = -1

    def on_record(self, ctx: Any, number: int) -> None:
        if number < 3:
            ctx.emit(number + 1)

    def on_end(self, ctx: Any) -> None:
        ctx.emit(self.last)


def counting() -> Flow:
    flow = Flow("counting")
    again = flow.loop("again", of=int)
    stepped = flow.read(Items([1]), name="one").merge(again).process(CountsToThree, name="step", parallelism=1)
    negative, rest = stepped.split(lambda number: number < 0, name="is_negative")
    again.feed(rest)
    negative.write(Collect(), name="done")
    return flow


@pytest.mark.slow
def test_what_on_end_sends_out_of_its_loop_arrives():
    assert simulate(counting(), seeds=range(12)).outputs["done"] == [-1]


def test_what_on_end_sends_back_into_its_own_loop_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CountsToThree, "last", 1)
    with pytest.raises(MisuseError, match=r"loop 'again' had ended .* on_end"):
        simulate(counting())


class WakesAfterTheLastRound:
    """Emits from a timer that it sets at the end of each round."""

    def on_record(self, ctx: Any, number: int) -> None:
        ctx.emit(number)

    def on_round_end(self, ctx: Any) -> None:
        ctx.set_timer(ctx.now + 5)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit(0)


@pytest.mark.parametrize("seeds", [[seed] for seed in range(3)])
def test_a_timer_of_the_last_round_end_that_sends_back_is_named(seeds: list[int]):
    flow = Flow("waking")
    start = flow.read(Items([1, 2]), name="numbers")
    flow.iterate(start, lambda s: s.process(WakesAfterTheLastRound, name="wakes"), rounds=2).write(Collect())
    with pytest.raises(MisuseError, match=r"loop 'iterate' had ended .*\bon_timer\b.*\bon_round_end\b"):
        simulate(flow, seeds=seeds)


@pytest.mark.slow
def test_after_the_last_round_a_timer_may_emit_what_leaves_the_iteration():
    flow = Flow("leaving")
    start = flow.read(Items([1, 2]), name="numbers")

    def body(stream: Any) -> Any:
        woken = stream.process(WakesAfterTheLastRound, name="wakes")
        woken.filter(lambda number: number == 0, name="zeros").write(Collect(), name="late")
        return woken.filter(lambda number: number > 0, name="others")

    flow.iterate(start, body, rounds=1).write(Collect(), name="out")
    assert simulate(flow, seeds=range(8), parallelism=1).outputs["late"] == [0]
