"""The policy `drain`: stop what comes in, let the loops run dry, capture without a log."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from recovery.messages import Mode
from recovery.orders import Abort, Trigger
from tests.protocol.bench_of_cores import Sends, graph
from tests.protocol.conducted import Conducted

LOOP = graph("items -> head", "head -> body", "body => head", "body -> out")


def hop(state: Any, left: int) -> Sends:
    return [("head", left - 1)] if left else [("out", left)]


def pass_on(state: Any, record: int) -> Sends:
    return [("body", record)]


def loop() -> Conducted:
    """A loop with a record in it that goes round three times, and a drain that has begun."""
    bench = Conducted(LOOP, {"head": pass_on, "body": hop}, mode=Mode.DRAIN)
    bench.pass_on("items->head", 3)
    bench.request(Mode.DRAIN)
    bench.emit("items->head", 0)
    return bench


def drain(bench: Conducted) -> None:
    """Everything happens until the drain is complete."""
    for _ in range(10):
        bench.run()
        bench.wait(10)


def test_sources_are_triggered_at_once_and_heads_only_when_their_loop_is_dry():
    bench = loop()
    drains = [order.task.name for order in bench.ordered(Trigger) if order.mode is Mode.DRAIN]
    assert drains == ["items"]
    bench.run()
    assert not bench.has_captured(1, "head")
    drain(bench)
    drains = [order.task.name for order in bench.ordered(Trigger) if order.mode is Mode.DRAIN]
    assert drains == ["items", "head"]


def test_what_comes_from_outside_is_held_while_the_loop_runs_dry():
    bench = loop()
    bench.run()
    assert bench.seen("head") == [3, 2, 1, 0]
    assert bench.queued("items->head") == ["barrier 1", 0]


def test_channels_held_for_a_drain_count_as_having_given_the_probe():
    bench = loop()
    bench.run()
    bench.wait(10)
    bench.run()
    probe = next(order.epoch for order in bench.ordered(Trigger) if order.mode is Mode.PROBE)
    assert probe in bench.acknowledged("head")


def test_the_cut_of_a_drain_has_no_log_and_the_run_goes_on_behind_it():
    bench = loop()
    drain(bench)
    assert bench.is_complete(1)
    assert bench.log(1, "body->head") == []
    assert bench.seen("head") == [3, 2, 1, 0, 0]
    assert [manifest.mode for manifest in bench.manifests] == [Mode.DRAIN]


def test_a_drain_that_takes_too_long_is_aborted_and_releases_what_it_held():
    bench = loop()
    bench.set_busy("body", True)
    bench.run()
    bench.wait(1000)
    assert {order.epoch for order in bench.ordered(Abort) if order.mode is Mode.DRAIN} == {1}
    bench.run()
    assert bench.seen("head") == [3, 2, 1, 0, 0]
    assert not bench.has_captured(1, "head")


def test_a_loop_that_a_drain_holds_is_not_told_to_end():
    bench = loop()
    bench.exhaust("items")
    for _ in range(2):
        bench.run()
        bench.wait(10)
    assert bench.told_to_end() == []
    bench.finish()
    assert bench.told_to_end() == ["head"]
    assert bench.seen("out") == [0, 0]


def test_a_probe_that_is_not_for_the_drain_does_not_pass_what_the_drain_holds():
    bench = loop()
    bench.run()
    for task in ("items", "head"):
        bench.trigger(task, 9, Mode.PROBE)
    bench.run()
    assert bench.acknowledged("items") == [1, 9]
    assert bench.acknowledged("head") == []


def test_what_is_asked_for_while_a_drain_is_open_waits_until_it_is_over():
    bench = loop()
    bench.request(savepoint="mine")
    assert not any(order.mode is Mode.ALIGNED for order in bench.ordered(Trigger))
    drain(bench)
    assert [(manifest.mode, manifest.savepoint) for manifest in bench.manifests] == [
        (Mode.DRAIN, None),
        (Mode.ALIGNED, "mine"),
    ]


def test_loops_are_drained_upstream_first():
    chain = graph("items -> first", "first -> one", "one => first", "one -> second", "second -> two", "two => second")
    bench = Conducted(chain, mode=Mode.DRAIN)
    bench.request(Mode.DRAIN)
    drain(bench)
    drains = [order.task.name for order in bench.ordered(Trigger) if order.mode is Mode.DRAIN]
    assert drains == ["items", "first", "second"]
    assert bench.is_complete(1)


def test_a_drain_of_an_iteration_is_refused_by_name():
    bench = Conducted(graph("items -> repeat", "repeat -> body", "body => repeat", iterations=["repeat"]))
    with pytest.raises(ValueError, match=r"loop 'repeat' is an iteration.*policy 'aligned'"):
        bench.request(Mode.DRAIN)


def test_a_drain_of_an_endless_loop_is_refused_by_name():
    deployment = replace(LOOP, components=tuple(replace(c, endless=True) for c in LOOP.components))
    with pytest.raises(ValueError, match=r"loop 'body=>head' is endless.*policy 'aligned'"):
        Conducted(deployment).request(Mode.DRAIN)


def test_an_endless_loop_is_never_probed():
    bench = Conducted(replace(LOOP, components=tuple(replace(c, endless=True) for c in LOOP.components)))
    bench.exhaust("items")
    bench.run()
    bench.wait(100)
    assert bench.ordered(Trigger) == []
