"""Versions in the simulator: what is read is what this attempt, or the one of its cut, has published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Process, ScheduleError, simulate
from backedge.recovery.protocol.versions import Shelf


def learning(keep: int = 50, steps: int = 12) -> tuple[Flow, Any]:
    """A loop: the learner publishes, workers read and send back what they have made of it."""
    flow = Flow("learning")
    weights = flow.versions("weights", keep=keep)

    class Learn(Process[Any, Any]):
        def on_record(self, ctx: Any, record: Any) -> None:
            seen = (*ctx.state.get(()), record)[-3:]
            ctx.state.set(seen)
            number = ctx.publish(weights, {"seen": seen, "array": np.arange(len(seen))})
            ctx.emit((number, seen))

    back = flow.loop("back", of=tuple)
    steps_ = flow.read(Items([(step, 0) for step in range(steps)]), name="steps")
    told = steps_.merge(back).process(Learn, name="learn", parallelism=1)

    def work(record: Any) -> tuple[Any, int]:
        number, seen = record
        value = weights[number]
        trips = seen[-1][1] + 1
        return (number, value["seen"] == seen and len(value["array"]) == len(seen)), trips

    worked = told.rebalance().map(work, name="work")
    again, done = worked.split(lambda made: made[1] < 3)
    back.feed(again.map(lambda made: (made[0][0], made[1])))
    done.map(lambda made: made[0][1]).write(Collect(), name="done")
    told.map(lambda record: record[0]).write(Collect(), name="numbers")
    return flow, weights


@pytest.mark.slow
def test_no_reader_sees_what_a_lost_attempt_has_published(tmp_path: Any):
    flow, _ = learning()
    result = simulate(flow, seeds=range(12), crashes=3, snapshots=str(tmp_path))
    assert result.outputs["done"] == [True] * 12
    assert sorted(result.outputs["numbers"]) == list(range(1, 37))
    assert result.crashes > 12 and result.restores_with_log > 5 and result.rescaled > 0


def in_turn(steps: int = 12) -> Flow:
    """A loop with one record, which carries the number of the version before: that is read, and one is kept."""
    flow = Flow("in_turn")
    weights = flow.versions("weights", keep=1)

    class Learn(Process[Any, Any]):
        def on_record(self, ctx: Any, record: Any) -> None:
            number, step, is_right = record
            is_right = is_right and (not number or weights[number].tolist() == [step] * 9)
            ctx.emit((ctx.publish(weights, np.full(9, step + 1)), step + 1, is_right))

    back = flow.loop("back", of=tuple)
    told = flow.read(Items([(0, 0, True)]), name="begin").merge(back).process(Learn, name="learn", parallelism=1)
    again, done = told.split(lambda record: record[1] < steps)
    back.feed(again)
    done.map(lambda record: record[1:]).write(Collect(), name="done")
    return flow


@pytest.mark.slow
def test_memory_is_not_filled_again_while_a_cut_is_written_from_it(tmp_path: Any, monkeypatch: Any):
    options: Any = {"crashes": 3, "snapshots": str(tmp_path)}
    result = simulate(in_turn(), seeds=range(20), **options)
    assert result.outputs["done"] == [(12, True)] and result.restores_with_log > 5

    def may_take(shelf: Any, memory: Any) -> bool:
        return memory not in shelf._at.values()

    monkeypatch.setattr(Shelf, "may_take", may_take)
    with pytest.raises(ScheduleError, match=r"False"):
        simulate(in_turn(), seeds=range(60), **options)
