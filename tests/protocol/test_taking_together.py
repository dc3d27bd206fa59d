"""Batches that stand behind one another may be processed together, and nothing that comes between is passed over."""

from __future__ import annotations

from engine.batch import decode
from recovery.effects import Process
from tests.protocol.bench_of_cores import Bench, graph

LOOP = graph("items -> head", "head -> body", "body => head")


def records_taken(bench: Bench, channel: str) -> list[object]:
    """What one take and all that may follow it bring."""
    core, id = bench.core("head"), bench.channel(channel)
    (first,) = core.take(id)
    assert isinstance(first, Process)
    payloads = [first.payload]
    while (payload := core.take_more(id)) is not None:
        payloads.append(payload)
    core.on_processed(id)
    return [record for payload in payloads for record in decode(payload).records]


def test_all_that_has_arrived_is_taken_together():
    bench = Bench(LOOP)
    for record in ("a", "b", "c"):
        bench.emit("items->head", record)
        bench.deliver("items->head")
    assert records_taken(bench, "items->head") == ["a", "b", "c"]
    assert bench.core("head").inboxes[bench.channel("items->head")].consumed == 3


def test_a_barrier_is_never_passed_over():
    bench = Bench(LOOP)
    for record in ("before", "too"):
        bench.emit("items->head", record)
        bench.deliver("items->head")
    bench.trigger("items", 1)
    bench.deliver("items->head")
    bench.emit("items->head", "behind")
    bench.deliver("items->head")
    assert records_taken(bench, "items->head") == ["before", "too"]
    assert bench.core("head").take_more(bench.channel("items->head")) is None
