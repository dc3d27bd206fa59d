"""A task that would have to log more bytes than its budget declines the epoch, and never writes the incomplete log."""

from __future__ import annotations

from backedge.engine.batches.batch import Batch, encode
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Decline, Write
from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import LOOP, Bench, graph

TWO_BACK_EDGES = graph("items -> head", "head -> left", "head -> right", "left => head", "right => head")
BATCH_BYTES = len(encode(Batch(["x"])))


def captured_head(bench: Bench, epoch: int = 1) -> None:
    bench.open_epoch(epoch)
    assert bench.has_captured(epoch, "head")


def declined(bench: Bench) -> list[Decline]:
    return [told for told in bench.tells("head") if isinstance(told, Decline)]


def test_a_batch_that_exceeds_the_budget_while_the_log_is_open_declines_the_epoch_once():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(2 * BATCH_BYTES)
    captured_head(bench)
    bench.emit("body->head", "a", "b", "c", "d")
    bench.deliver("body->head", 4)
    (decline,) = declined(bench)
    assert decline.epoch == 1 and decline.is_expected and "log_bytes" in decline.reason
    bench.run()
    assert not any(isinstance(told, Write) for told in bench.tells("head"))
    assert bench.seen("head") == ["a", "b", "c", "d"], "they are processed all the same"


def test_what_is_queued_at_the_capture_can_exceed_the_budget_by_itself():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(BATCH_BYTES)
    bench.emit("body->head", "a", "b")
    bench.deliver("body->head", 2)
    captured_head(bench)
    assert [decline.epoch for decline in declined(bench)] == [1]


def test_the_budget_is_shared_by_the_logs_of_a_task():
    bench = Bench(TWO_BACK_EDGES)
    bench.core("head").limit_logs(2 * BATCH_BYTES)
    captured_head(bench)
    bench.emit("left->head", "a")
    bench.emit("right->head", "b")
    bench.deliver_each("left->head", "right->head")
    assert declined(bench) == []
    bench.emit("right->head", "c")
    bench.deliver("right->head")
    assert len(declined(bench)) == 1


def test_the_epoch_after_an_abort_has_the_whole_budget_again():
    bench = Bench(LOOP)
    bench.core("head").limit_logs(BATCH_BYTES)
    captured_head(bench)
    bench.emit("body->head", "a", "b")
    bench.deliver("body->head", 2)
    assert len(declined(bench)) == 1
    for task in LOOP.tasks:
        bench.happen(task, bench.drivers[task].core.on_abort, Epoch(1), Mode.ALIGNED)
    bench.run()
    captured_head(bench, 2)
    bench.emit("body->head", "c")
    bench.run()
    assert bench.log(2, "body->head") == ["c"]
