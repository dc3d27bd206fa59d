"""Unaligned epochs, as Chandy and Lamport have them: capture at the first barrier, log every other input."""

from __future__ import annotations

import pytest

from recovery.coordinator import Coordinator, SnapshotOptions
from recovery.messages import Mode
from recovery.orders import Trigger
from tests.protocol.bench_of_cores import Bench, graph, task_id

JOIN = graph("left -> join", "right -> join", "join -> out")
LOOP = graph("items -> head", "head -> body", "body => head")
U = Mode.UNALIGNED


def coordinator_of(bench: Bench) -> Coordinator:
    return Coordinator(bench.deployment, bench.attempt, SnapshotOptions(U), first_epoch=1)  # type: ignore[arg-type]


def test_a_task_captures_on_receipt_of_the_first_barrier_and_logs_every_other_input():
    bench = Bench(JOIN)
    bench.emit("right->join", "queued", "under way")
    bench.deliver("right->join")
    bench.trigger("left", 1, U)
    bench.deliver("left->join")
    assert bench.has_captured(1, "join")
    assert bench.on_wire("join->out") == ["barrier 1"]
    bench.trigger("right", 1, U)
    bench.run()
    assert bench.log(1, "right->join") == ["queued", "under way"]
    assert bench.log(1, "left->join") == []


def test_what_was_received_before_the_first_barrier_and_not_processed_is_logged_on_its_channel_too():
    bench = Bench(JOIN)
    bench.emit("left->join", "queued")
    bench.trigger("left", 1, U)
    bench.emit("left->join", "behind")
    bench.deliver("left->join", 3)
    bench.trigger("right", 1, U)
    bench.run()
    assert bench.log(1, "left->join") == ["queued"]


def test_nothing_is_held():
    bench = Bench(JOIN)
    bench.trigger("left", 1, U)
    bench.emit("left->join", "behind")
    bench.deliver("left->join", 2)
    bench.take("left->join")
    assert bench.seen("join") == ["behind"]
    assert bench.core("join").alignment.held == {}


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


def test_several_tasks_may_start_the_same_epoch_at_once():
    bench = Bench(LOOP)
    for task in ("body", "items", "head"):
        bench.trigger(task, 1, U)
    bench.run()
    assert bench.is_complete(1)
    assert bench.on_wire("head->body") == []


def test_an_end_stands_for_the_barrier_of_a_logged_channel():
    bench = Bench(JOIN)
    bench.trigger("left", 1, U)
    bench.deliver("left->join")
    bench.emit("right->join", "last")
    bench.exhaust("right")
    bench.deliver("right->join", 2)
    assert bench.log(1, "right->join") == ["last"]


def test_overlapping_unaligned_epochs_log_each_their_own():
    bench = Bench(JOIN)
    bench.trigger("left", 1, U)
    bench.deliver("left->join")
    bench.pass_on("right->join", "a")
    bench.trigger("left", 2, U)
    bench.deliver("left->join")
    bench.pass_on("right->join", "b")
    bench.trigger("right", 1, U)
    bench.emit("right->join", "c")
    bench.trigger("right", 2, U)
    bench.run()
    assert bench.log(1, "right->join") == ["a", "b"]
    assert bench.log(2, "right->join") == ["b", "c"]


def test_a_regular_log_is_replayed_before_what_comes_live():
    first = Bench(JOIN)
    first.trigger("left", 1, U)
    first.deliver("left->join")
    first.emit("right->join", "in the channel")
    first.trigger("right", 1, U)
    first.run()
    second = Bench(JOIN, restored=first.cut(1), attempt=2)
    second.emit("right->join", "live")
    second.run()
    assert second.seen("join") == ["in the channel", "live"]


def test_any_task_of_a_ring_reaches_all_of_it():
    ring = Bench(graph("a -> b", "b -> c", "c => a"))
    for epoch, task in enumerate(("a", "b", "c"), start=1):
        orders = coordinator_of(ring).request(U, 0, initiators=[task_id(task)])
        assert orders == [Trigger(task_id(task), 1, U)]
        ring.trigger(task, epoch, U)
        ring.run()
        assert ring.is_complete(epoch)


def test_initiators_that_do_not_reach_every_task_are_refused_by_name():
    with pytest.raises(ValueError, match=r"never reaches items/0, left/0"):
        bench = Bench(graph("items -> head", "left -> head", "head -> body", "body => head"))
        coordinator_of(bench).request(U, 0, initiators=[task_id("head")])


def test_initiators_of_their_own_are_for_unaligned_epochs_only():
    with pytest.raises(ValueError, match=r"policy 'aligned' starts at sources and loop heads"):
        coordinator_of(Bench(LOOP)).request(Mode.ALIGNED, 0, initiators=[task_id("items")])


def test_a_refused_request_opens_no_epoch():
    coordinator = coordinator_of(Bench(LOOP))
    with pytest.raises(ValueError, match=r"never reaches items/0"):
        coordinator.request(U, 0, initiators=[task_id("head")])
    assert coordinator.open == {} and coordinator.next_epoch == 1
