"""Rules 2 and 3: what a loop log holds, where it begins and ends, and a barrier that comes back early."""

from __future__ import annotations

from typing import Any

from backedge.engine.batches.batch import decode
from tests.protocol.bench_of_cores import LOOP, Bench, Sends, graph, task_id

SHUFFLED = graph("items -> head", "head -> body", "body => head", items=1, head=2, body=2)
TWO_BACK_EDGES = graph("items -> head", "head -> left", "head -> right", "left => head", "right => head")

TWO_LOOPS = graph(
    "a -> fast", "b -> slow", "fast -> one", "slow -> two", "one => fast", "one => slow", "two => fast", "two => slow"
)


def mark(state: Any, record: list[str]) -> Sends:
    record.append("processed")
    return []


def capture_at_head(bench: Bench, epoch: int = 1) -> None:
    bench.open_epoch(epoch)
    assert bench.has_captured(epoch, "head")


def test_the_log_begins_with_what_was_received_and_not_processed():
    bench = Bench(LOOP)
    bench.emit("body->head", "processed", "queued", "queued too")
    bench.deliver("body->head", 3)
    bench.take("body->head")
    capture_at_head(bench)
    bench.run()
    assert bench.log(1, "body->head") == ["queued", "queued too"]


def test_a_log_with_nothing_in_it_is_sealed_by_the_barrier_alone():
    bench = Bench(LOOP)
    capture_at_head(bench)
    assert not bench.is_sealed(1, "head")
    bench.run()
    assert bench.log(1, "body->head") == []


def test_head_stops_logging_when_its_barrier_returns_whatever_is_queued_before_it():
    bench = Bench(LOOP)
    capture_at_head(bench)
    bench.emit("body->head", "before")
    bench.deliver("head->body")
    bench.emit("body->head", "behind")
    bench.deliver("body->head", 3)
    assert bench.log(1, "body->head") == ["before"]
    assert bench.seen("head") == []


def test_the_state_does_not_hold_what_the_log_holds():
    bench = Bench(LOOP, {"head": lambda state, record: state.append(record) or ()}, {"head": []})
    bench.pass_on("body->head", "in the state")
    bench.emit("body->head", "in the log")
    bench.deliver("body->head")
    capture_at_head(bench)
    bench.run()
    assert bench.state(1, "head") == ["in the state"]
    assert bench.log(1, "body->head") == ["in the log"]


def test_a_log_entry_is_encoded_before_user_code_sees_the_record():
    bench = Bench(graph("items -> head", "head -> body", "body => head", actors="slice"), {"head": mark})
    capture_at_head(bench)
    bench.pass_on("body->head", ["fresh"])
    bench.run()
    assert bench.seen("head") == [["fresh", "processed"]]
    assert bench.log(1, "body->head") == [["fresh"]]


def test_the_bytes_on_the_wire_are_the_bytes_in_the_log():
    bench = Bench(LOOP)
    capture_at_head(bench)
    bench.emit("body->head", "once")
    sent = bench.wires[bench.channel("body->head")][0].payload
    bench.run()
    entries = next(r.log for r in bench.records[1, task_id("head")].inputs if r.is_back)
    assert [entry.payload for entry in entries] == [sent]
    assert decode(sent).records == ["once"]


def test_logging_ends_channel_by_channel_where_a_back_edge_is_shuffled():
    bench = Bench(SHUFFLED)
    bench.trigger("items", 1)
    for index in (0, 1):
        bench.trigger(f"head/{index}", 1)
        bench.deliver(f"items->head/{index}")
    for head in ("head/0", "head/1"):
        bench.deliver(f"{head}->body/0")
        bench.deliver(f"{head}->body/1")
    bench.deliver("body/0->head/0")
    bench.emit("body/0->head/0", "behind the barrier")
    bench.emit("body/1->head/0", "behind the barrier too")
    bench.deliver("body/0->head/0")
    assert not bench.is_sealed(1, "head")
    bench.deliver("body/1->head/0")
    assert bench.is_sealed(1, "head")
    assert bench.log(1, "body/0->head/0") == bench.log(1, "body/1->head/0") == []
    assert not bench.is_sealed(1, "head/1")


def test_with_two_back_edges_each_is_logged_until_its_own_barrier():
    bench = Bench(TWO_BACK_EDGES)
    capture_at_head(bench)
    bench.deliver_each("head->left", "left->head")
    bench.pass_on("left->head", "too late")
    bench.pass_on("right->head", "in time")
    assert not bench.is_sealed(1, "head")
    bench.run()
    assert bench.log(1, "left->head") == []
    assert bench.log(1, "right->head") == ["in time"]


def test_an_end_seals_the_log_as_a_barrier_does():
    bench = Bench(graph("first => head", "second -> head", "head -> out", "out => first"))
    bench.trigger("head", 1)
    bench.trigger("second", 1)
    bench.deliver("second->head")
    bench.emit("first->head", "in flight")
    bench.tell_to_end("first")
    bench.deliver("first->head", 2)
    assert bench.log(1, "first->head") == ["in flight"]


# -- two overlapping logs --------------------------------------------------------------------------------------------


def return_barrier(bench: Bench) -> None:
    """The oldest barrier that waits before the body goes through it and arrives at the head."""
    bench.deliver_each("head->body", "body->head")


def test_two_overlapping_logs_hold_what_came_during_each():
    bench = Bench(LOOP)
    capture_at_head(bench)
    bench.pass_on("body->head", "a")
    capture_at_head(bench, 2)
    bench.pass_on("body->head", "b")
    return_barrier(bench)
    assert bench.is_sealed(1, "head") and not bench.is_sealed(2, "head")
    bench.pass_on("body->head", "c")
    return_barrier(bench)
    assert bench.log(1, "body->head") == ["a", "b"]
    assert bench.log(2, "body->head") == ["b", "c"]


def test_what_is_received_and_not_processed_belongs_to_the_second_log_as_well():
    bench = Bench(LOOP)
    capture_at_head(bench)
    bench.emit("body->head", "a")
    bench.deliver("body->head")
    capture_at_head(bench, 2)
    return_barrier(bench)
    return_barrier(bench)
    assert bench.log(1, "body->head") == bench.log(2, "body->head") == ["a"]


# -- rule 3: the barrier is back before the head has captured -------------------------------------------------------


def early_return() -> Bench:
    """Two heads with a body each, and from each body a back edge to both: one head's barrier is back at the other."""
    bench = Bench(TWO_LOOPS)
    bench.trigger("a", 1)
    bench.trigger("b", 1)
    bench.trigger("fast", 1)
    bench.deliver("a->fast")
    bench.emit("one->slow", "before")
    bench.deliver("fast->one")
    bench.emit("one->slow", "behind")
    bench.deliver("one->slow", 3)
    return bench


def test_a_barrier_that_returns_before_the_capture_is_waited_behind():
    bench = early_return()
    assert bench.queued("one->slow") == ["before", "barrier 1", "behind"]
    bench.take("one->slow")
    assert bench.core("slow").ready() == []
    assert not bench.has_captured(1, "slow")


def test_a_head_whose_barrier_returned_early_logs_only_what_came_before_it():
    bench = early_return()
    bench.trigger("slow", 1)
    bench.deliver("b->slow")
    assert bench.has_captured(1, "slow")
    bench.run()
    assert bench.log(1, "one->slow") == ["before"]
    assert bench.log(1, "two->slow") == []
    assert bench.seen("slow") == ["before", "behind"]
