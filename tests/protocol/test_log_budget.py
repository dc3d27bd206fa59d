"""A task that would have to log more bytes than its budget declines the epoch, and never writes the incomplete log."""

from __future__ import annotations

from backedge.engine.batches.batch import Batch, encode
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Decline, Write
from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import LOOP, Bench, graph, task_id

TWO_BACK_EDGES = graph("items -> head", "head -> left", "head -> right", "left => head", "right => head")
BATCH_BYTES = len(encode(Batch(["x"])))


def captured_head(bench: Bench, epoch: int = 1) -> None:
    bench.open_epoch(epoch)
    assert bench.has_captured(epoch, "head")


def declined(bench: Bench, epoch: int) -> list[Decline]:
    return [told for task, told in bench.told if task == task_id("head") and isinstance(told, Decline)]


def test_a_batch_that_exceeds_the_budget_while_the_log_is_open_declines_the_epoch_once():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(2 * BATCH_BYTES)
    captured_head(bench)
    bench.emit("body->head", "a", "b", "c", "d")
    bench.deliver("body->head", 4)
    (decline,) = declined(bench, 1)
    assert decline.epoch == 1 and decline.is_expected and "log_bytes" in decline.reason
    bench.run()
    assert not any(task == task_id("head") and isinstance(told, Write) for task, told in bench.told)


def test_what_is_queued_at_the_capture_can_exceed_the_budget_by_itself():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(BATCH_BYTES)
    bench.emit("body->head", "a", "b")
    bench.deliver("body->head", 2)
    captured_head(bench)
    assert [decline.epoch for decline in declined(bench, 1)] == [1]


def test_the_budget_is_shared_by_the_logs_of_a_task():
    bench = Bench(TWO_BACK_EDGES)
    bench.core("head").limit_logs(2 * BATCH_BYTES)
    captured_head(bench)
    bench.emit("left->head", "a")
    bench.emit("right->head", "b")
    bench.deliver_each("left->head", "right->head")
    assert declined(bench, 1) == []
    bench.emit("right->head", "c")
    bench.deliver("right->head")
    assert len(declined(bench, 1)) == 1


def test_the_epoch_after_an_abort_has_the_whole_budget_again():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(BATCH_BYTES)
    captured_head(bench)
    bench.emit("body->head", "a", "b")
    bench.deliver("body->head", 2)
    assert len(declined(bench, 1)) == 1
    for task in LOOP.tasks:
        bench.happen(task, bench.drivers[task].core.on_abort, Epoch(1), Mode.ALIGNED)
    bench.run()
    captured_head(bench, 2)
    bench.emit("body->head", "c")
    bench.run()
    assert bench.log(2, "body->head") == ["c"]


def test_records_that_exceed_the_budget_are_still_processed():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(0)
    captured_head(bench)
    bench.emit("body->head", "a", "b")
    bench.run()
    assert bench.processed[task_id("head")] == ["a", "b"]
