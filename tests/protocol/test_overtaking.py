"""An aligned epoch that has waited long enough captures past the queues, and logs them."""

from __future__ import annotations

import pytest

from backedge.recovery.protocol.messages import Barrier, Mode
from backedge.recovery.protocol.orders import Trigger
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from tests.protocol.bench_of_cores import Bench, graph, task_id
from tests.protocol.desk import Desk, kinds

LINE = graph("items -> slow", "slow -> sink")
JOIN = graph("left -> slow", "right -> slow", "slow -> sink")
PATIENCE_MS = 100


def bench_with_a_barrier_behind_a_queue(patience_ms: int | None = PATIENCE_MS) -> Bench:
    bench = Bench(LINE)
    bench.emit("items->slow", 1, 2, 3)
    bench.trigger("items", 1, patience_ms=patience_ms)
    bench.deliver("items->slow", 4)
    return bench


def barrier_on(bench: Bench, channel: str) -> Barrier:
    return next(item for item in bench.wires[bench.channel(channel)] if isinstance(item, Barrier))


def test_a_task_whose_patience_is_over_captures_and_logs_what_is_queued():
    bench = bench_with_a_barrier_behind_a_queue()
    bench.take("items->slow")
    bench.tick("slow", PATIENCE_MS - 1)
    assert not bench.has_captured(1, "slow")
    bench.tick("slow", PATIENCE_MS)
    assert bench.log(1, "items->slow") == [2, 3]
    assert bench.has_overtaken(1, "slow")
    assert bench.acknowledged("slow") == [1]
    # The barrier stays in its place, and passes without effect: there is one, and one capture.
    assert bench.queued("items->slow") == [2, 3, "barrier 1"]
    bench.take("items->slow", 2)
    assert bench.queued("items->slow") == []
    assert bench.on_wire("slow->sink") == ["barrier 1"]


def test_it_captures_in_the_middle_of_a_batch():
    bench = Bench(LINE)
    bench.emit_batch("items->slow", 1, 2, 3)
    bench.trigger("items", 1, patience_ms=0)
    bench.deliver("items->slow", 2)
    bench.take_part("items->slow")
    bench.tick("slow", 0)
    assert bench.left(1, "items->slow") == [2, 3]


def test_what_is_sent_later_on_a_channel_without_a_barrier_goes_into_the_log_until_it_comes():
    bench = Bench(JOIN)
    bench.trigger("left", 1, patience_ms=PATIENCE_MS)
    bench.deliver("left->slow")
    bench.emit("right->slow", 1)
    bench.deliver("right->slow")
    bench.tick("slow", PATIENCE_MS)
    assert not bench.is_sealed(1, "slow")
    bench.pass_on("right->slow", 2)
    bench.trigger("right", 1)
    bench.deliver("right->slow")
    assert bench.log(1, "right->slow") == [1, 2]
    assert bench.log(1, "left->slow") == []
    bench.emit("right->slow", 3)
    bench.deliver("right->slow")
    assert bench.log(1, "right->slow") == [1, 2]


def test_an_overtaken_barrier_is_held_against_what_was_received():
    bench = Bench(JOIN)
    bench.trigger("left", 1, patience_ms=0)
    bench.deliver("left->slow")
    bench.tick("slow", 0)
    with pytest.raises(ChannelIntegrityError, match="says 1 batches"):
        bench.receive("right->slow", Barrier(1, Mode.ALIGNED, 1, 7))


def test_the_barrier_carries_the_patience_that_is_left():
    bench = bench_with_a_barrier_behind_a_queue()
    assert barrier_on(bench_waiting(30), "slow->sink").patience_ms == 70
    bench.tick("slow", 3 * PATIENCE_MS)
    assert barrier_on(bench, "slow->sink").patience_ms == 0
    bench.deliver("slow->sink")
    assert bench.acknowledged("sink") == [1]


def bench_waiting(waited_ms: int) -> Bench:
    bench = bench_with_a_barrier_behind_a_queue()
    bench.tick("slow", waited_ms)
    bench.take("items->slow", 3)
    return bench


def test_the_first_of_several_barriers_starts_the_clock():
    bench = Bench(JOIN)
    bench.trigger("left", 1, patience_ms=PATIENCE_MS)
    bench.deliver("left->slow")
    bench.tick("slow", 60)
    bench.emit("right->slow", 1)
    bench.trigger("right", 1, patience_ms=PATIENCE_MS)
    bench.deliver("right->slow", 2)
    bench.tick("slow", PATIENCE_MS)
    assert bench.has_overtaken(1, "slow")


def test_a_head_overtakes_from_its_trigger_on_and_logs_regular_inputs_and_back_edges():
    bench = Bench(graph("items -> head", "head -> body", "body => head"))
    bench.emit("items->head", 1)
    bench.emit("body->head", 2)
    bench.deliver_each("items->head", "body->head")
    bench.trigger("head", 1, patience_ms=PATIENCE_MS)
    bench.tick("head", PATIENCE_MS)
    bench.trigger("items", 1)
    bench.deliver_each("items->head", "head->body", "body->head")
    assert bench.log(1, "items->head") == [1]
    assert bench.log(1, "body->head") == [2]


def test_a_task_that_aligns_in_time_overtakes_nothing():
    bench = bench_waiting(50)
    bench.tick("slow", PATIENCE_MS)
    assert not bench.has_overtaken(1, "slow")
    assert bench.log(1, "items->slow") == []


@pytest.mark.parametrize("mode", [Mode.BETWEEN_ROUNDS, Mode.PROBE])
def test_cuts_between_rounds_and_probes_are_never_overtaken(mode: Mode):
    bench = Bench(LINE)
    bench.emit("items->slow", 1)
    bench.trigger("items", 1, mode, patience_ms=0)
    bench.deliver("items->slow", 2)
    bench.tick("slow", 10**9)
    assert not bench.acknowledged("slow")
    assert bench.queued("items->slow")[-1] == "barrier 1"


def test_an_aborted_epoch_is_not_captured_when_its_patience_is_over():
    bench = bench_with_a_barrier_behind_a_queue()
    bench.abort("slow", 1)
    bench.tick("slow", PATIENCE_MS)
    assert not bench.has_captured(1, "slow")
    assert not bench.core("slow").awaits_time


def test_a_head_that_was_told_to_end_waits_no_longer():
    """Otherwise its process would look at the clock all the time."""
    bench = Bench(graph("items -> head", "head -> inner", "inner => head", "head -> body", "body => inner"))
    bench.trigger("inner", 1, patience_ms=PATIENCE_MS)
    assert bench.core("inner").awaits_time
    bench.perform(task_id("inner"), bench.core("inner").on_told_to_end())
    assert not bench.core("inner").awaits_time


def test_an_epoch_before_the_one_that_is_due_is_captured_first():
    bench = Bench(LINE)
    bench.emit("items->slow", 1)
    bench.trigger("items", 1, patience_ms=10 * PATIENCE_MS)
    bench.trigger("items", 2, patience_ms=PATIENCE_MS)
    bench.deliver("items->slow", 3)
    bench.tick("slow", PATIENCE_MS)
    assert bench.acknowledged("slow") == [1, 2]
    assert bench.log(1, "items->slow") == bench.log(2, "items->slow") == [1]


def test_the_coordinator_gives_patience_to_aligned_epochs_alone():
    desk = Desk(LINE, patience_ms=PATIENCE_MS, interval_ms=10**6)
    assert kinds(desk.request(), Trigger) == [Trigger(task_id("items"), 1, Mode.ALIGNED, PATIENCE_MS)]
    assert kinds(desk.request(Mode.UNALIGNED), Trigger)[0].patience_ms is None
