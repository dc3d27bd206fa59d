"""Rule 4: epochs overlap, numbers have gaps, and an abort may come before, between or after trigger and barriers."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.recovery.protocol.effects import AcknowledgeEnd, Discard
from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import JOIN, LOOP, Bench


def loop_bench(**options: Any) -> Bench:
    return Bench(LOOP, **options)


def run_epoch(bench: Bench, epoch: int) -> None:
    """An epoch that nothing disturbs, through the whole loop."""
    bench.trigger("items", epoch)
    bench.trigger("head", epoch)
    bench.run()


def assert_goes_on(bench: Bench, epoch: int) -> None:
    """The next epoch completes, and the aborted ones are not in anybody's way."""
    bench.pass_on("items->head", "next")
    bench.emit("body->head", "logged")
    bench.open_epoch(epoch)
    bench.run()
    assert bench.is_complete(epoch)
    assert bench.log(epoch, "body->head") == ["logged"]
    assert bench.core("head").alignment.held == {} and bench.core("head").logs.epochs == {}


def test_an_abort_before_trigger_and_barriers_leaves_the_epoch_uncaptured():
    bench = loop_bench()
    for task in ("items", "head", "body"):
        bench.abort(task, 1)
    run_epoch(bench, 1)
    assert bench.captured == {}
    assert_goes_on(bench, 2)


def test_an_abort_while_a_head_waits_releases_what_it_held():
    bench = loop_bench()
    bench.trigger("items", 1)
    bench.emit("items->head", "held")
    bench.deliver("items->head", 2)
    assert bench.core("head").ready() == []
    bench.abort("head", 1)
    assert bench.core("head").ready() == [bench.channel("items->head")]
    bench.take("items->head")
    bench.trigger("head", 1)
    assert not bench.has_captured(1, "head")
    bench.abort("items", 1)
    bench.abort("body", 1)
    assert_goes_on(bench, 2)


def test_an_abort_while_a_join_waits_for_the_second_barrier_releases_and_ignores_it():
    bench = Bench(JOIN)
    bench.trigger("left", 1)
    bench.emit("left->join", "held")
    bench.deliver("left->join", 2)
    bench.abort("join", 1)
    bench.take("left->join")
    bench.trigger("right", 1)
    bench.emit("right->join", "behind")
    bench.run()
    assert bench.seen("join") == ["held", "behind"]
    assert not bench.has_captured(1, "join")
    assert bench.on_wire("join->out") == []


def test_an_abort_after_the_capture_stops_the_log_and_discards():
    bench = loop_bench()
    bench.open_epoch(1)
    bench.abort("head", 1)
    assert bench.tells("head") == [Discard(1)]
    bench.run()
    assert not bench.is_sealed(1, "head")
    for task in ("items", "body"):
        bench.abort(task, 1)
    assert_goes_on(bench, 2)


def test_an_abort_that_is_said_twice_after_the_capture_forgets_only_that_epoch():
    bench = loop_bench()
    for epoch in (1, 2):
        bench.open_epoch(epoch)
    bench.abort("head", 1)
    bench.abort("head", 1)
    bench.pass_on("body->head", "in flight")
    bench.run()
    assert not bench.is_sealed(1, "head")
    assert bench.log(2, "body->head") == ["in flight"]


def test_an_abort_of_the_later_of_two_overlapping_epochs_leaves_the_earlier_one_alone():
    bench = Bench(JOIN)
    for source in ("left", "right"):
        bench.trigger(source, 1)
        bench.trigger(source, 2)
    bench.deliver("left->join", 2)
    bench.abort("join", 2)
    bench.deliver("right->join", 2)
    assert bench.has_captured(1, "join") and not bench.has_captured(2, "join")
    assert bench.core("join").alignment.held == {}


def test_an_abort_of_a_snapshot_is_no_abort_of_the_probe_of_that_number():
    bench = Bench(JOIN)
    bench.abort("join", 1, Mode.ALIGNED)
    for source in ("left", "right"):
        bench.trigger(source, 1, Mode.PROBE)
    bench.run()
    assert bench.acknowledged("join") == [1]


def test_a_task_that_skipped_an_epoch_captures_the_next_although_barriers_of_the_first_still_come():
    bench = Bench(JOIN)
    bench.trigger("left", 1)
    bench.trigger("left", 2)
    bench.deliver("left->join", 2)
    bench.abort("join", 1)
    bench.trigger("right", 1)
    bench.trigger("right", 2)
    bench.deliver("right->join", 2)
    assert bench.has_captured(2, "join")


@pytest.mark.parametrize("aborted", [False, True])
def test_an_ended_task_says_again_that_it_has_ended_when_an_epoch_is_aborted(aborted: bool):
    bench = Bench(JOIN)
    bench.exhaust("left")
    if aborted:
        bench.abort("left", 5)
    ends = [effect for effect in bench.tells("left") if isinstance(effect, AcknowledgeEnd)]
    assert len(ends) == 1 + aborted


def test_completing_an_epoch_discards_the_open_ones_before_it():
    bench = loop_bench()
    for epoch in (1, 2):
        bench.open_epoch(epoch)
    bench.complete("head", 2)
    assert Discard(1) in bench.tells("head")
    bench.run()
    assert not bench.is_sealed(1, "head") and bench.is_sealed(2, "head")
