"""Rule 1: when a task captures, what it holds until then, and what it passes on."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import JOIN, LOOP, Bench, Sends, graph


def collect(state: list[Any], record: Any) -> Sends:
    state.append(record)
    return []


def join_bench() -> Bench:
    return Bench(JOIN, {"join": collect}, {"join": []})


def test_a_source_captures_on_the_trigger_and_sends_the_barrier_behind_what_it_sent():
    bench = join_bench()
    bench.emit("left->join", "before")
    bench.trigger("left", 1)
    bench.emit("left->join", "after")
    assert bench.has_captured(1, "left")
    assert bench.on_wire("left->join") == ["before", "barrier 1", "after"]


def test_a_task_captures_when_every_live_regular_input_has_given_the_barrier():
    bench = join_bench()
    bench.trigger("left", 1)
    bench.trigger("right", 1)
    bench.deliver("left->join")
    assert not bench.has_captured(1, "join")
    bench.deliver("right->join")
    assert bench.has_captured(1, "join")
    assert bench.on_wire("join->out") == ["barrier 1"]


def test_what_comes_behind_the_barrier_is_held_and_the_other_input_goes_on():
    bench = join_bench()
    bench.trigger("left", 1)
    bench.emit("left->join", "held")
    bench.deliver("left->join", 2)
    assert bench.core("join").ready() == []
    bench.pass_on("right->join", "goes on")
    bench.trigger("right", 1)
    bench.deliver("right->join")
    assert bench.state(1, "join") == ["goes on"]
    assert bench.core("join").ready() == [bench.channel("left->join")]
    bench.take("left->join")
    assert bench.seen("join") == ["goes on", "held"]


def test_a_barrier_takes_effect_only_when_what_was_received_before_it_is_processed():
    bench = join_bench()
    bench.trigger("left", 1)
    bench.deliver("left->join")
    bench.emit("right->join", "before")
    bench.trigger("right", 1)
    bench.deliver("right->join", 2)
    assert not bench.has_captured(1, "join")
    bench.take("right->join")
    assert bench.state(1, "join") == ["before"]


@pytest.mark.parametrize("comes_last", [False, True])
def test_a_channel_that_has_ended_counts_as_having_given_every_barrier(comes_last: bool):
    bench = join_bench()
    bench.exhaust("left")
    bench.trigger("right", 1)
    for channel in ("right->join", "left->join") if comes_last else ("left->join", "right->join"):
        assert not bench.has_captured(1, "join")
        bench.deliver(channel)
    assert bench.has_captured(1, "join") and not bench.has_ended("join")


def test_an_end_behind_unprocessed_batches_does_not_count_yet():
    bench = join_bench()
    bench.emit("left->join", "before")
    bench.exhaust("left")
    bench.deliver("left->join", 2)
    bench.trigger("right", 1)
    bench.deliver("right->join")
    assert not bench.has_captured(1, "join")
    bench.take("left->join")
    assert bench.state(1, "join") == ["before"]


def test_the_trigger_is_a_regular_input_of_a_head_and_its_back_edges_are_not_waited_for():
    for way in (1, -1):
        bench = Bench(LOOP)
        bench.trigger("items", 1)
        for what, where in [(bench.trigger, ("head", 1)), (bench.deliver, ("items->head",))][::way]:
            assert not bench.has_captured(1, "head")
            what(*where)
        assert bench.has_captured(1, "head")
        assert bench.on_wire("head->body") == ["barrier 1"]
        assert not bench.is_sealed(1, "head")


def test_a_head_whose_other_inputs_have_ended_still_captures_on_the_trigger():
    bench = Bench(LOOP)
    bench.exhaust("items")
    bench.deliver("items->head")
    bench.trigger("head", 1)
    assert bench.has_captured(1, "head")


def test_a_head_whose_other_inputs_are_just_ending_captures_when_they_have():
    bench = Bench(LOOP)
    bench.emit("items->head", 1)
    bench.exhaust("items")
    bench.trigger("head", 1)
    assert not bench.has_captured(1, "head")
    bench.run()
    assert bench.has_captured(1, "head")
    assert bench.log(1, "body->head") == []


def test_a_head_that_only_its_own_loop_enters_captures_on_the_trigger_alone():
    bench = Bench(graph("ring -> next", "next => ring"))
    bench.trigger("ring", 7)
    bench.run()
    assert bench.is_complete(7)


def test_a_late_trigger_of_an_epoch_that_was_captured_changes_nothing():
    bench = join_bench()
    bench.trigger("left", 1)
    bench.trigger("left", 1)
    assert bench.on_wire("left->join") == ["barrier 1"]


def test_a_probe_is_forwarded_and_acknowledged_and_captures_nothing():
    bench = join_bench()
    for source in ("left", "right"):
        bench.trigger(source, 1, Mode.PROBE)
    bench.run()
    assert [bench.acknowledged(task) for task in ("left", "right", "join", "out")] == [[1]] * 4
    assert bench.captured == {} and bench.records == {}


def test_probes_and_snapshots_do_not_outdate_each_other():
    bench = join_bench()
    for source in ("left", "right"):
        bench.trigger(source, 2, Mode.PROBE)
        bench.trigger(source, 1)
    bench.run()
    assert bench.is_complete(1)
    assert bench.acknowledged("out") == [2, 1]


# -- batches that stand behind one another -----------------------------------------------------------------------


def records_taken(bench: Bench) -> list[object]:
    before = len(bench.seen("head"))
    driver = bench.driver("head")
    bench.happen(driver.id, driver.take, bench.channel("items->head"), 8)
    return bench.seen("head")[before:]


def test_all_that_has_arrived_is_taken_together_and_a_barrier_is_never_passed_over():
    bench = Bench(LOOP)
    bench.emit("items->head", "a", "b", "c")
    bench.trigger("items", 1)
    bench.emit("items->head", "behind")
    bench.deliver("items->head", 5)
    assert records_taken(bench) == ["a", "b", "c"]
    assert bench.core("head").inboxes[bench.channel("items->head")].consumed == 3
    assert bench.core("head").front(bench.channel("items->head")) is None
