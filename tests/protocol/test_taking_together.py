"""Batches that stand behind one another may be processed together, and nothing that comes between is passed over."""

from __future__ import annotations

from tests.protocol.bench_of_cores import LOOP, Bench


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
