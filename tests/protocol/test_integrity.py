"""Rule 6: a channel that delivers something else than was sent is found out at the next barrier or END."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backedge.engine.batches.batch import Batch, encode
from backedge.recovery.protocol.messages import Barrier, Data, Item, Mode
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from tests.every import every
from tests.protocol.bench_of_cores import Bench, graph, task_id

PIPE = graph("source -> sink")
CHANNEL = "source->sink"


def lose_first(items: list[Item]) -> None:
    del items[0]


def lose_last(items: list[Item]) -> None:
    del items[2]


def double(items: list[Item]) -> None:
    items.insert(1, items[0])


def swap(items: list[Item]) -> None:
    items[0], items[1] = items[1], items[0]


def damage(items: list[Item]) -> None:
    items[1] = items[1]._replace(payload=encode(Batch(["other"])))


def lose_and_renumber(items: list[Item]) -> None:
    """What a transport does that numbers for itself: the count is right, the content is not."""
    items[:3] = [items[1], items[0]._replace(seq=2), items[2]]
    items[0] = items[0]._replace(seq=1)


def disturbed(disturb: Callable[[list[Item]], None], mark: str) -> Bench:
    """Three batches and a mark are on the wire; one thing is wrong."""
    bench = Bench(PIPE)
    bench.emit(CHANNEL, "one", "two", "three")
    if mark == "END":
        bench.exhaust("source")
    else:
        bench.trigger("source", 1, Mode(mark))
    wire = bench.wires[bench.channel(CHANNEL)]
    items = list(wire)
    disturb(items)
    wire.clear()
    wire.extend(items)
    return bench


@every("mark", ["aligned", "unaligned", "probe", "END"])
@every("disturb", [lose_first, lose_last, double, swap, damage, lose_and_renumber])
def test_a_disturbed_channel_fails_at_the_latest_at_the_next_mark(disturb: Callable[[list[Item]], None], mark: str):
    bench = disturbed(disturb, mark)
    with pytest.raises(ChannelIntegrityError, match=r"source\.out0->sink\.from_source.*restored from its last cut"):
        bench.deliver(CHANNEL, len(bench.wires[bench.channel(CHANNEL)]))
    assert not bench.has_captured(1, "sink") and not bench.has_ended("sink")


def test_the_barrier_of_an_aborted_epoch_is_compared_all_the_same():
    bench = disturbed(damage, "aligned")
    bench.abort("sink", 1)
    bench.deliver(CHANNEL, 3)
    with pytest.raises(ChannelIntegrityError):
        bench.deliver(CHANNEL)


def test_an_ended_task_still_compares_what_comes_over_its_back_edge():
    bench = Bench(graph("head -> body", "body => head"))
    bench.tell_to_end("head")
    with pytest.raises(ChannelIntegrityError):
        bench.receive("body->head", Data(2, b"", None))


def test_within_an_actor_batches_are_counted_and_not_digested():
    bench = Bench(graph("source -> sink", actors="slice"))
    channel = bench.channel(CHANNEL)
    bench.emit(CHANNEL, "one", "two")
    bench.trigger("source", 1)
    assert bench.wires[channel][2] == Barrier(1, Mode.ALIGNED, 2, 0)
    del bench.wires[channel][1]
    bench.deliver(CHANNEL)
    with pytest.raises(ChannelIntegrityError, match=r"says 2 batches .* but 1 with digest .* were received"):
        bench.deliver(CHANNEL)


def test_count_and_digest_of_both_ends_go_into_the_cut():
    bench = Bench(PIPE)
    bench.pass_on(CHANNEL, "one", "two")
    bench.trigger("source", 1)
    bench.run()
    sent = bench.records[1, task_id("source")].outputs[0]
    consumed = bench.records[1, task_id("sink")].inputs[0]
    assert (sent.sent, sent.digest) == (consumed.consumed, consumed.digest)
    assert sent.sent == 2 and sent.digest != 0


def test_each_log_entry_carries_the_digest_before_and_after_it():
    bench = Bench(graph("head -> body", "body => head"))
    bench.pass_on("body->head", "consumed")
    bench.trigger("head", 1)
    bench.emit("body->head", "first", "second")
    bench.run()
    record = bench.records[1, task_id("head")].inputs[0]
    first, second = record.log
    assert (record.consumed, first.seq, second.seq) == (1, 2, 3)
    assert (record.digest, first.digest_after) == (first.digest_before, second.digest_before)
    assert second.digest_after == bench.records[1, task_id("body")].outputs[0].digest
