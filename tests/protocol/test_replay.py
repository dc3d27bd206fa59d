"""Rule 8: a restored log stands in front of its channel, and is a channel of its own until it is drained."""

from __future__ import annotations

from typing import Any

from backedge.recovery.protocol.messages import Data, Mode
from tests.protocol.bench_of_cores import LOOP, Bench, Sends, task_id

LOGGED = ["one", "two", "three"]
BACK = "body->head"
RESTORED = "body->head (restored)"


def keep(state: list[Any], record: Any) -> Sends:
    state.append(record)
    return []


def with_log(*records: str) -> Bench:
    """A run whose epoch 1 holds these in the loop, restored."""
    bench = Bench(LOOP, {"head": keep}, {"head": []})
    bench.open_epoch(1)
    bench.emit(BACK, *records)
    bench.run()
    assert bench.log(1, BACK) == list(records)
    return Bench(LOOP, {"head": keep}, restored=bench.cut(1), attempt=2)


def start_epoch(bench: Bench, epoch: int, mode: Mode = Mode.ALIGNED) -> None:
    bench.open_epoch(epoch, mode)


def test_a_restored_log_is_processed_first_and_in_order_and_live_batches_wait_behind_it():
    bench = with_log(*LOGGED)
    bench.emit(BACK, "live")
    bench.deliver(BACK)
    for count in (2, 1):
        assert bench.core("head").ready() == [bench.channel(RESTORED)]
        bench.take(RESTORED, count)
    assert bench.core("head").ready() == [bench.channel(BACK)]
    bench.take(BACK)
    assert bench.seen("head") == bench.states[task_id("head")] == [*LOGGED, "live"]


def test_a_snapshot_half_way_through_a_replay_logs_exactly_the_rest():
    bench = with_log(*LOGGED)
    bench.take(RESTORED)
    start_epoch(bench, 2)
    bench.emit(BACK, "live")
    bench.run()
    assert bench.state(2, "head") == ["one"]
    assert bench.log(2, RESTORED) == ["two", "three"]
    assert bench.log(2, BACK) == ["live"]

    again = Bench(LOOP, {"head": keep}, restored=bench.cut(2), attempt=3)
    again.run()
    assert again.states[task_id("head")] == ["one", "two", "three", "live"]
    assert again.seen("head") == ["two", "three", "live"]


def test_a_probe_half_way_through_a_replay_counts_the_rest_as_in_flight():
    bench = with_log(*LOGGED)
    bench.take(RESTORED)
    start_epoch(bench, 2, Mode.PROBE)
    bench.run()
    report = next(e.report for e in bench.tells("head") if getattr(e, "epoch", None) == 2)
    assert report.in_flight == {bench.channel(RESTORED): 2}


def test_a_barrier_on_the_live_channel_waits_behind_the_restored_one():
    bench = with_log(*LOGGED)
    start_epoch(bench, 2)
    bench.deliver("head->body")
    bench.emit(BACK, "behind the barrier")
    bench.deliver(BACK, 2)
    assert bench.is_sealed(2, "head")
    bench.run()
    assert bench.seen("head") == [*LOGGED, "behind the barrier"]
    assert bench.log(2, RESTORED) == LOGGED and bench.log(2, BACK) == []


def test_what_an_earlier_or_a_later_attempt_sends_is_counted_and_dropped():
    bench = with_log()
    first = Bench(LOOP)
    first.emit(BACK, "stale")
    first.trigger("body", 1, Mode.UNALIGNED)
    for item in first.wires[first.channel(BACK)]:
        bench.receive(BACK, item, attempt=1)
    bench.receive(BACK, Data(7, b"", None), attempt=3)
    assert (bench.core("head").stale_items, bench.core("head").attempt) == (3, 2)
    assert bench.moves() == []
    bench.emit(BACK, "fresh")
    bench.run()
    assert bench.seen("head") == ["fresh"]
