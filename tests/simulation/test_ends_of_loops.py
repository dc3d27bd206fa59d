"""What an operator in a loop emits when its loop has ended: out of the loop it arrives, back into it it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.simulation.simulate import simulate
from engine.simulation.simulation import Run, Simulation
from engine.simulation.world_options import Parts
from engine.task import TaskCore
from engine.task_errors import MisuseError
from graphs import Collect, Flow, Items


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


def test_what_on_end_sends_out_of_its_loop_arrives():
    assert simulate(counting(), seeds=range(50)).outputs["done"] == [-1]


def test_what_on_end_sends_back_into_its_own_loop_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CountsToThree, "last", 1)
    with pytest.raises(MisuseError, match=r"loop 'again' had ended .* on_end"):
        simulate(counting())


def test_it_is_refused_in_every_schedule_because_the_last_state_of_a_head_waits(monkeypatch: pytest.MonkeyPatch):
    simulation = Simulation(counting(), None, 3, (1, 2), "aligned")
    assert simulation.faithful.drive() is None
    monkeypatch.setattr(CountsToThree, "last", 1)
    refused = [is_refused(simulation.run_seed(seed)) for seed in range(100, 170)]
    assert all(refused)
    refused = [is_refused(simulation.run_seed(seed, Parts(core=LastStateDoesNotWait))) for seed in range(100, 170)]
    assert not all(refused), "a run that does not wait may be over before the records are back"


class LastStateDoesNotWait(TaskCore):
    """A head whose last state stands for everything at once."""

    def _verified(self) -> None:
        return None


def is_refused(run: Run) -> bool:
    try:
        run.drive()
    except MisuseError:
        return True
    return False
