"""The head of an iteration, and what its body measures."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.batches.batch import Batch
from backedge.graphs.ids import TaskId
from backedge.graphs.task_errors import MisuseError
from tests.runtime.tasks import Tasks, by_receiver, records_of

HERE, THERE = TaskId("body", 0), TaskId("body", 1)


def iterating(parallelism: int = 1, **rule: Any) -> Tasks:
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()

    def body(stream: Stream[int]) -> Stream[int]:
        return stream.key_by(abs).flat_map(lambda n: [n + 1], name="body").key_by(abs)

    flow.iterate(start, body, name="head", **rule).rebalance().write(Collect(), name="sink")
    return Tasks(flow, parallelism)


def test_the_start_goes_into_the_body_at_once_and_what_comes_back_waits():
    tasks = iterating(rounds=3)
    assert by_receiver(tasks.feed("head", [1, 2], input="start")) == {"body/0": [1, 2]}
    assert tasks.feed("head", [2, 3], input="returned", hops=1) == []
    assert by_receiver(tasks.home("head").release_round()) == {"body/0": [2, 3]}
    assert tasks.home("head").release_round() == []


def test_the_result_is_what_came_back_last():
    tasks = iterating(rounds=3)
    tasks.feed("head", [2, 3], input="returned")
    assert by_receiver(tasks.home("head").release_result()) == {"sink/0": [2, 3]}
    assert tasks.home("head").release_round() == []


def test_rounds_bounds_their_number_and_an_inner_one_is_counted_by_the_innermost_number_of_its_path():
    head = iterating(rounds=3).home("head")
    assert [head.decide((number,), {HERE: 5}) for number in range(4)] == [True, True, False, False]
    assert head.decide((7, 1), {HERE: 5}) is True


def test_an_empty_round_is_the_last_and_without_a_rule_nothing_else_is():
    for rule in ({}, {"rounds": 3}, {"until": lambda total: False}):
        head = iterating(**rule).home("head")
        assert head.decide((0,), {}) is False
        assert head.decide((0,), {HERE: None}) is False
    assert iterating().home("head").decide((1000,), {HERE: 1, THERE: None}) is True


def test_until_is_asked_about_the_contributions_folded_in_the_order_of_the_tasks():
    asked: list[str] = []

    def until(total: str) -> bool:
        asked.append(total)
        return total == "ab"

    head = iterating(until=until, measure=str).home("head")
    assert head.decide((0,), {THERE: "b", HERE: "a"}) is False
    assert head.decide((0,), {THERE: "x", HERE: "y"}) is True
    assert asked == ["ab", "yx"]


def test_what_the_body_sends_back_is_measured_at_the_sender_until_it_is_taken():
    body = iterating(until=lambda total: False, measure=lambda n: n * 10).home("body")
    channel = body.task.inputs[0]
    body.process(channel, Batch([1, 2]), 0)
    body.process(channel, Batch([3], [4]), 0)
    assert body.take_contributions("head") == 20 + 30 + 40
    assert body.take_contributions("head") is None
    assert body.take_contributions("somewhere else") is None


def test_reduce_says_how_measures_are_folded():
    tasks = iterating(until=lambda most: most > 100, measure=abs, reduce=max)
    tasks.feed("body", [5, 8])
    tasks.feed("body", [-7])
    assert tasks.home("body").take_contributions("head") == 9
    head = tasks.home("head")
    assert head.decide((0,), {HERE: 9, THERE: 101}) is False


def test_a_task_that_sends_back_by_two_operators_contributes_both():
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()

    def body(stream: Stream[int]) -> Stream[int]:
        odd, even = stream.map(lambda n: n, name="body").split(lambda n: n % 2)
        return odd.map(lambda n: n).merge(even)

    flow.iterate(start, body, until=lambda total: False, measure=abs, name="head").write(Collect())
    tasks = Tasks(flow)
    tasks.feed("body", [1, 2, 3, 4])
    assert tasks.home("body").take_contributions("head") == 10


def test_a_measure_that_is_none_is_refused_for_it_would_end_the_iteration():
    with pytest.raises(MisuseError, match="iteration 'head': measure or reduce returned None for 2, but None means"):
        iterating(until=bool, measure=lambda n: None).feed("body", [1])


def test_only_a_head_decides():
    with pytest.raises(RuntimeError, match="task body/0 is not the head of an iteration"):
        iterating(rounds=1).home("body").release_round()


def test_hooks_of_the_body_see_the_round():
    class Rounds:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.emit(("record", ctx.round))

        def on_round_end(self, ctx: Any) -> None:
            ctx.emit(("end", ctx.round))

    flow = Flow("nested")

    def inner(stream: Stream[Any]) -> Stream[Any]:
        return stream.process(Rounds, name="op").rebalance()

    def outer(stream: Stream[Any]) -> Stream[Any]:
        return flow.iterate(stream, inner, rounds=3, name="inner")

    flow.iterate(flow.read(Items([]), name="source"), outer, rounds=2, name="outer").write(Collect(), name="sink")
    tasks = Tasks(flow)
    home = tasks.home("op")

    assert records_of(tasks.feed("op", [1])) == [("record", (0, 0))]
    assert records_of(home.on_round_end((0, 0), 0)) == [("end", (0, 0))]
    assert records_of(tasks.feed("op", [1])) == [("record", (0, 1))]
    assert records_of(home.on_round_end((0,), 0)) == [("end", (0,))]
    assert records_of(tasks.feed("op", [1])) == [("record", (1, 0))]
