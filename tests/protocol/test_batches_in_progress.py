"""A batch may be processed in parts. It stays at the front of its channel until its last record is done, and a capture
between two parts says in the log how much of it the state holds already.
"""

from __future__ import annotations

import pytest

from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.protocol_errors import ProtocolError
from tests.protocol.bench_of_cores import LOOP, Bench, graph

LINE = graph("items -> middle", "middle -> sink")


def bench_in_the_middle_of_a_batch() -> Bench:
    bench = Bench(LOOP)
    bench.emit_batch("body->head", 1, 2, 3, 4)
    bench.deliver("body->head")
    bench.take_part("body->head")
    return bench


def test_a_batch_in_progress_is_not_consumed_until_its_last_record_is_done():
    bench = bench_in_the_middle_of_a_batch()
    inbox = bench.core("head").inboxes[bench.channel("body->head")]
    assert bench.seen("head") == [1]
    assert (inbox.consumed, inbox.consumed_digest, len(inbox.queue)) == (0, 0, 1)
    bench.take_part("body->head", 2)
    assert bench.seen("head") == [1, 2, 3] and inbox.consumed == 0
    bench.take("body->head")
    assert bench.seen("head") == [1, 2, 3, 4]
    assert (inbox.consumed, inbox.skip, len(inbox.queue)) == (1, 0, 0)


def test_a_capture_in_the_middle_of_a_batch_logs_all_of_it_and_how_much_is_done():
    bench = bench_in_the_middle_of_a_batch()
    bench.trigger("items", 1)
    bench.deliver("items->head")
    bench.trigger("head", 1)
    bench.take("body->head")
    bench.trigger("body", 1)
    bench.deliver_each("head->body", "body->head")
    assert bench.left(1, "body->head") == [2, 3, 4]
    record = next(r for r in bench.records[1, bench.channel("body->head").receiver].inputs if r.is_back)
    (entry,) = record.log
    assert entry.skip == 1
    assert entry.digest_after == bench.core("head").inboxes[record.channel].consumed_digest, "of the whole batch"


def test_a_second_cut_in_a_restored_batch_counts_from_its_start():
    bench = bench_in_the_middle_of_a_batch()
    bench.open_epoch(1)
    bench.deliver_each("head->body", "body->head")
    again = Bench(LOOP, restored=bench.cut(1), attempt=2)
    again.take_part("body->head (restored)")
    again.open_epoch(2)
    again.deliver_each("head->body", "body->head")
    assert again.left(2, "body->head (restored)") == [3, 4]
    third = Bench(LOOP, restored=again.cut(2), attempt=3)
    third.take("body->head (restored)")
    assert third.seen("head") == [3, 4]


def test_a_log_that_is_routed_anew_leaves_out_what_is_done():
    bench = bench_in_the_middle_of_a_batch()
    bench.open_epoch(1)
    bench.deliver_each("head->body", "body->head")
    wide = graph("items -> head", "head -> body", "body => head", parallelism=2)
    again = Bench(wide, restored=bench.cut(1), attempt=2)
    again.run()
    assert sorted(again.seen("head") + again.seen("head/1")) == [2, 3, 4]


ROUNDS = graph("items -> head", "head -> body", "side -> body", "body => head", "head -> out", iterations=("head",))


def bench_in_the_middle_of_a_batch_set_aside() -> Bench:
    """`body` sets aside what its head sends until its side input has ended."""
    bench = Bench(ROUNDS)
    bench.emit_batch("head->body", 1, 2, 3)
    bench.deliver("head->body")
    bench.take("head->body")
    assert bench.seen("body") == [] and bench.queued("head->body") == []
    bench.exhaust("side")
    bench.deliver("side->body")
    bench.take_part("head->body", 2)
    return bench


def test_a_cut_in_the_middle_of_a_batch_set_aside_restores_the_rest():
    bench = bench_in_the_middle_of_a_batch_set_aside()
    bench.open_epoch(1)
    bench.deliver_each("head->body", "body->head", "head->out")
    again = Bench(ROUNDS, restored=bench.cut(1), attempt=2)
    again.deliver("side->body")
    again.take("head->body")
    assert again.seen("body") == [3]


def test_an_unaligned_cut_logs_the_rest_of_a_regular_channel():
    bench = Bench(LINE)
    bench.emit_batch("items->middle", 1, 2, 3)
    bench.deliver("items->middle")
    bench.take_part("items->middle", 2)
    bench.trigger("items", 1, Mode.UNALIGNED)
    bench.deliver("items->middle")
    assert bench.left(1, "items->middle") == [3]


@pytest.mark.parametrize("until", [1, 0, -1])
def test_a_part_without_records_is_refused_and_changes_nothing(until: int):
    bench = bench_in_the_middle_of_a_batch()
    with pytest.raises(ProtocolError, match="can be taken"):
        bench.core("head").take(bench.channel("body->head"), until)
    assert bench.core("head").inboxes[bench.channel("body->head")].skip == 1
