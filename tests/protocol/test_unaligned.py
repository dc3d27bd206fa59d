"""Unaligned epochs, as Chandy and Lamport have them: capture at the first barrier, log every other input."""

from __future__ import annotations

import pytest

from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import JOIN, LOOP, Bench

U = Mode.UNALIGNED


@pytest.mark.parametrize("queued", [(), ("queued",)])
def test_a_task_captures_on_receipt_of_the_first_barrier_and_logs_every_other_input_and_what_was_queued_before(
    queued: tuple[str, ...],
):
    bench = Bench(JOIN)
    bench.emit("right->join", "queued", "under way")
    bench.deliver("right->join")
    bench.emit("left->join", *queued)
    bench.trigger("left", 1, U)
    bench.emit("left->join", "behind")
    bench.deliver("left->join", len(queued) + 2)
    assert bench.has_captured(1, "join")
    assert bench.on_wire("join->out") == ["barrier 1"]
    bench.trigger("right", 1, U)
    bench.run()
    assert bench.log(1, "right->join") == ["queued", "under way"]
    assert bench.log(1, "left->join") == [*queued]


def test_the_first_barrier_may_come_over_a_back_edge():
    bench = Bench(LOOP)
    bench.trigger("body", 1, U)
    bench.emit("items->head", "on its way")
    bench.deliver("body->head")
    assert bench.has_captured(1, "head")
    bench.trigger("items", 1, U)
    bench.run()
    assert bench.is_complete(1)
    assert bench.log(1, "items->head") == ["on its way"]


def test_a_trigger_after_the_first_barrier_does_nothing():
    bench = Bench(LOOP)
    bench.trigger("items", 1, U)
    bench.deliver("items->head")
    captured = dict(bench.captured)
    bench.trigger("head", 1, U)
    assert bench.captured == captured
    assert bench.on_wire("head->body") == ["barrier 1"]


def test_an_end_stands_for_the_barrier_of_a_logged_channel():
    bench = Bench(JOIN)
    bench.trigger("left", 1, U)
    bench.deliver("left->join")
    bench.emit("right->join", "last")
    bench.exhaust("right")
    bench.deliver("right->join", 2)
    assert bench.log(1, "right->join") == ["last"]
