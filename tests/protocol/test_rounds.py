"""Rule 11: rounds. What comes early is set aside and not held; every head decides alike; iterations nest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.simulation.world.host import SpilledInMemory
from backedge.graphs.ids import ChannelId
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.messages import Data, Mode, marker_in
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from tests.protocol.bench_of_cores import Bench, Sends, graph, task_id

REPEAT = ("items -> repeat", "repeat -> body", "body => repeat", "repeat -> out")
ONE = graph(*REPEAT, iterations=["repeat"])
TWO = graph(*REPEAT, iterations=["repeat"], parallelism=2, items=1, out=1)
LANES = graph(*REPEAT, iterations=["repeat"], forward=["repeat -> body"], parallelism=2, items=1, out=1)


def send_back(state: Any, record: int) -> Sends:
    return [("repeat", record + 10)]


def send_across(state: Any, record: int) -> Sends:
    """Odd records go back to the second head, even ones to the first."""
    return [(f"repeat/{record % 2}", record + 10)]


def one(rounds: int = 3, **options: Any) -> Bench:
    return Bench(ONE, {"body": send_back}, rounds=rounds, **options)


def two(rounds: int = 3, **options: Any) -> Bench:
    return Bench(TWO, {"body": send_across}, rounds=rounds, **options)


def started_one(rounds: int = 3) -> Bench:
    """The start is complete, round 0 waits before the body."""
    bench = one(rounds)
    bench.pass_on("items->repeat", 1, 2)
    bench.exhaust("items")
    bench.deliver("items->repeat")
    return bench


def started_two(rounds: int = 3) -> Bench:
    bench = two(rounds)
    bench.pass_on("items->repeat/0", 2)
    bench.pass_on("items->repeat/1", 1)
    bench.exhaust("items")
    bench.deliver_each("items->repeat/0", "items->repeat/1")
    return bench


def pass_all(bench: Bench, *channels: str) -> None:
    """Everything on these wires is received and processed."""
    for name in channels:
        while bench.on_wire(name):
            bench.deliver(name)
        while bench.channel(name) in bench.core(name.split("->")[1]).ready():
            bench.take(name)


# -- one iteration ---------------------------------------------------------------------------------------------------


def test_so_many_rounds_are_run_and_the_result_is_what_the_body_returned_last():
    bench = started_one(rounds=3)
    bench.run()
    assert bench.seen("body") == [1, 2, 11, 12, 21, 22]
    assert bench.seen("out") == [31, 32]
    assert all(bench.has_ended(task) for task in ("items", "repeat", "body", "out"))


# -- several heads ---------------------------------------------------------------------------------------------------


def test_markers_go_to_every_head_and_every_head_decides_with_the_same_contributions():
    bench = started_two()
    bench.run()
    first, second = bench.decisions[task_id("repeat/0")], bench.decisions[task_id("repeat/1")]
    assert first == second
    assert first == [((number,), {"body/0": "body/0", "body/1": "body/1"}) for number in range(3)]
    assert sorted(bench.seen("out")) == [31, 32]


def slower_head() -> Bench:
    """The first head is in round 1 already; the second still waits for the marker of the second body."""
    bench = started_two()
    pass_all(bench, "repeat/0->body/0", "repeat/1->body/0", "repeat/0->body/1", "repeat/1->body/1")
    pass_all(bench, "body/0->repeat/0", "body/1->repeat/0", "body/0->repeat/1")
    assert (1,) in bench.on_wire("repeat/0->body/0")
    assert bench.decisions[task_id("repeat/1")] == []
    return bench


def ahead(bench: Bench) -> None:
    """The first body returns a record of round 1 to the second head, which is in round 0."""
    bench.emit("body/0->repeat/1", 77)
    bench.deliver("body/0->repeat/1")
    bench.take("body/0->repeat/1")


def test_a_batch_that_was_spilled_and_then_set_aside_is_in_the_cut():
    """What waits on disk is encoded already, and was encoded once more."""
    bench = slower_head()
    channel, core = bench.channel("body/0->repeat/1"), bench.core("repeat/1")
    bench.emit(channel, 77)
    item: Any = bench.wires[channel].popleft()
    core.receive(channel, bench.attempt, item, SpilledInMemory(item.payload))
    core.take(channel)
    assert [decode(payload).records for payload in core.rounds.snapshot(encode).aside[channel]] == [[77]]


def test_what_was_set_aside_is_processed_in_its_round():
    bench = slower_head()
    ahead(bench)
    bench.deliver("body/1->repeat/1", 2)
    bench.take("body/1->repeat/1", 2)
    assert bench.decisions[task_id("repeat/1")][-1][0] == (0,)
    assert bench.core("repeat/1").ready() == [bench.channel("body/0->repeat/1")]
    bench.take("body/0->repeat/1")
    assert bench.gathered[task_id("repeat/1")] == [77]
    bench.run()
    assert sorted(bench.seen("out")) == [31, 32, 87]


def test_what_is_set_aside_and_what_is_logged_of_a_channel_come_once_to_a_driver_that_takes_all_that_is_ready():
    """Both are of one channel: while the restored rest of it is ready, what was set aside comes through that."""
    bench = slower_head()
    ahead(bench)
    bench.emit("body/0->repeat/1", 79)
    bench.deliver("body/0->repeat/1")
    for head in ("repeat/0", "repeat/1"):
        bench.trigger(head, 1)
    bench.run()
    again = Bench(TWO, {"body": send_across}, restored=bench.cut(1), attempt=2, rounds=3)
    while again.moves():
        for core in again.cores.values():
            for channel in core.ready():
                again.take(channel)
        for what, channel in again.moves():
            if what == "deliver":
                again.deliver(channel)
    assert sorted(again.seen("out")) == sorted(bench.seen("out"))


def test_a_channel_that_is_ahead_is_not_held():
    """A marker before the barrier on one channel, behind it on another: holding would deadlock."""
    bench = two()
    bench.exhaust("items")
    bench.trigger("repeat/0", 1)
    bench.deliver_each("items->repeat/0", "items->repeat/1")
    bench.trigger("repeat/1", 1)
    assert bench.on_wire("repeat/0->body/0") == ["barrier 1", (0,)]
    assert bench.on_wire("repeat/1->body/0") == [(0,), "barrier 1"]
    pass_all(bench, "repeat/1->body/0")
    assert bench.core("body/0").rounds.given.keys() == {bench.channel("repeat/1->body/0")}
    bench.deliver("repeat/0->body/0")
    assert bench.has_captured(1, "body/0")
    bench.run()
    assert bench.is_complete(1) and bench.has_ended("out")


# -- a cut between two rounds ----------------------------------------------------------------------------------------


def test_every_head_captures_after_the_round_that_one_of_them_asked_for():
    bench = started_two()
    for head in ("repeat/0", "repeat/1"):
        bench.trigger(head, 1, Mode.BETWEEN_ROUNDS)
    assert not bench.has_captured(1, "repeat/0")
    bench.run()
    cut = bench.cut(1)
    rounds = [cut.snapshots[task_id(head)].rounds for head in ("repeat/0", "repeat/1")]
    assert [(r.current, r.phase.value) for r in rounds] == [((1,), "cut")] * 2
    assert all(r.aside == {} for r in rounds)
    assert [bench.log(1, f"body/{b}->repeat/{h}") for b in (0, 1) for h in (0, 1)] == [[]] * 4
    assert sorted(bench.seen("out")) == [31, 32]


def test_an_abort_of_the_cut_lets_the_heads_that_wait_for_it_decide():
    bench = started_two()
    bench.trigger("repeat/0", 1, Mode.BETWEEN_ROUNDS)
    bench.abort("repeat/1", 1, Mode.BETWEEN_ROUNDS)
    bench.abort("repeat/0", 1, Mode.BETWEEN_ROUNDS)
    bench.run()
    assert not any(epoch == 1 for epoch, _ in bench.captured)
    assert sorted(bench.seen("out")) == [31, 32]


def test_a_cut_that_is_asked_for_before_the_first_round_is_taken_where_the_iteration_starts():
    bench = one()
    bench.pass_on("items->repeat", 1)
    for task in ("items", "repeat"):
        bench.trigger(task, 1, Mode.BETWEEN_ROUNDS)
    bench.run()
    assert bench.is_complete(1)
    assert bench.cut(1).snapshots[task_id("repeat")].rounds.phase.value == "start"


def run_but(bench: Bench, waits: Callable[[str, ChannelId], bool]) -> None:
    """Everything happens that does not wait, first come, first served."""
    while moves := [move for move in bench.moves() if not waits(*move)]:
        name, channel = moves[0]
        getattr(bench, name)(channel)


def lanes_asked_for_a_cut() -> Bench:
    """Each head sends into its own task of the body. The cut is asked for in round 0, and comes after round 1."""
    bench = Bench(LANES, {"body": send_across}, rounds=4)
    bench.pass_on("items->repeat/0", 2)
    bench.pass_on("items->repeat/1", 1)
    bench.exhaust("items")
    bench.deliver_each("items->repeat/0", "items->repeat/1")
    for head in ("repeat/0", "repeat/1"):
        bench.trigger(head, 1, Mode.BETWEEN_ROUNDS)
    return bench


def the_cut_is_taken_after_round(bench: Bench, number: int) -> None:
    assert not any(isinstance(effect, Decline) for _, effect in bench.told)
    bench.run()
    cut = bench.cut(1)
    rounds = [cut.snapshots[task_id(head)].rounds for head in ("repeat/0", "repeat/1")]
    assert [(r.current, r.phase.value, r.aside) for r in rounds if r is not None] == [((number,), "cut", {})] * 2
    assert sorted(bench.seen("out")) == [41, 42]


def test_a_head_that_awaits_another_marker_waits_for_the_cut_whose_barrier_has_come_back():
    bench = lanes_asked_for_a_cut()
    slow = bench.channel("body/1->repeat/1")
    run_but(bench, lambda name, channel: channel == slow and bench.on_wire("body/1->repeat/1")[:1] == [(1,)])
    assert bench.has_captured(1, "repeat/0") and not bench.has_captured(1, "repeat/1")
    head = bench.core("repeat/1")
    assert head.alignment.held == {bench.channel("body/0->repeat/1"): 1}, "its barrier is back"
    assert head.rounds is not None and slow not in head.rounds.given
    the_cut_is_taken_after_round(bench, 1)


def test_a_head_whose_awaited_marker_is_set_aside_waits_for_the_cut_too():
    bench = lanes_asked_for_a_cut()
    fast, slow, head = bench.channel("body/0->repeat/1"), bench.channel("body/1->repeat/1"), bench.core("repeat/1")

    def waits(name: str, channel: ChannelId) -> bool:
        assert head.rounds is not None
        if channel == slow:
            return bench.on_wire("body/1->repeat/1")[:1] == [(0,)] and fast not in head.rounds.aside
        return name == "take" and channel == fast and head.rounds.current == (1,)

    run_but(bench, waits)
    assert head.alignment.held == {fast: 1}, "its barrier is back"
    assert head.rounds is not None and fast not in head.rounds.given and fast in head.rounds.aside
    the_cut_is_taken_after_round(bench, 1)


def test_a_request_for_a_cut_does_not_outlive_its_attempt_in_a_marker_that_was_logged():
    """It is aborted on its way; the next cut logs the marker that carries it."""
    carried = 0
    for steps in range(27, 40, 2):
        bench = started_two()
        for head in ("repeat/0", "repeat/1"):
            bench.trigger(head, 1, Mode.BETWEEN_ROUNDS)
        for _ in range(steps):
            for name, channel in bench.moves()[:1]:
                getattr(bench, name)(channel)
        for task in bench.cores:
            bench.abort(str(task), 1, Mode.BETWEEN_ROUNDS)
        for head in ("repeat/0", "repeat/1"):
            bench.trigger(head, 2)
        bench.run()
        cut = bench.cut(2)
        logged = [marker_in(entry.payload) for s in cut.snapshots.values() for r in s.inputs for entry in r.log]
        carried += any(marker is not None and marker.cut_after == 1 for marker in logged)
        again = two(restored=cut, attempt=2)
        again.run()
        assert {epoch for epoch, _ in again.captured} == {None}, f"aborted after {steps} steps"
    assert carried > 0


# -- nesting ---------------------------------------------------------------------------------------------------------

NESTED = graph(
    "items -> outer",
    "outer -> inner",
    "inner -> body",
    "body => inner",
    "inner -> tail",
    "tail => outer",
    "outer -> out",
    iterations=["outer", "inner"],
)


def nested(**options: Any) -> Bench:
    steps = {
        "body": lambda state, record: [("inner", record + 10)],
        "tail": lambda state, record: [("outer", record + 100)],
    }
    return Bench(NESTED, steps, rounds=2, **options)


def test_an_inner_iteration_runs_anew_in_every_round_of_the_outer_one():
    bench = nested()
    bench.emit("items->outer", 1)
    bench.exhaust("items")
    bench.run()
    assert bench.round_ends[task_id("body")] == [(0, 0), (0, 1), (0,), (1, 0), (1, 1), (1,)]
    assert bench.seen("tail") == [21, 141]
    assert bench.seen("out") == [241]


# -- batches in progress, and ends -----------------------------------------------------------------------------------


def test_a_restored_batch_in_progress_that_is_set_aside_goes_on_behind_the_records_that_are_done():
    bench = started_one()
    pass_all(bench, "repeat->body")
    bench.emit_batch("body->repeat", 21, 22, 23)
    bench.deliver("body->repeat", 4)
    bench.take("body->repeat", 2)
    bench.take("body->repeat")
    assert bench.on_wire("repeat->body") == [11, 12, (1,)], "the round is over: the batch is the next one's"
    bench.take_part("body->repeat")
    for task in ("items", "repeat", "body"):
        bench.trigger(task, 1)
    bench.deliver("repeat->body", 4)
    pass_all(bench, "repeat->body", "body->repeat", "repeat->out")
    assert bench.left(1, "body->repeat")[:2] == [22, 23]

    again = one(restored=bench.cut(1), attempt=2)
    assert not again.core("repeat").rounds.is_readable(again.channel("body->repeat")), "its start has not ended again"
    again.take("body->repeat (restored)")
    assert again.core("repeat").rounds.aside, "the batch was set aside"
    again.deliver("items->repeat")
    again.take("body->repeat (restored)")
    assert again.gathered[task_id("repeat")] == [21, 22, 23]


def test_the_last_state_of_a_head_is_final_when_its_body_has_ended():
    bench = started_one(rounds=1)
    pass_all(bench, "repeat->body", "body->repeat")
    assert bench.has_ended("repeat") and not bench.is_verified("repeat")
    bench.deliver_each("repeat->body", "body->repeat")
    assert bench.is_verified("repeat")


def test_a_batch_that_was_damaged_in_the_last_round_is_found_before_its_head_acknowledges():
    bench = started_one(rounds=1)
    bench.deliver("repeat->body", 2)
    bench.take("repeat->body", 2)
    sent = bench.wires[bench.channel("body->repeat")].popleft()
    assert isinstance(sent, Data)
    damaged = Batch([11, 11])
    bench.receive("body->repeat", sent._replace(payload=encode(damaged)))
    pass_all(bench, "repeat->body", "body->repeat")
    assert bench.core("repeat").ended, "rounds go by markers, and the markers are all there"
    bench.deliver("repeat->body")
    with pytest.raises(ChannelIntegrityError):
        bench.deliver("body->repeat")
    assert not bench.is_verified("repeat")
