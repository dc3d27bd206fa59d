"""Cases that papers, manuals and other engines' tests tell, with their own figures."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.recovery.messages import Mode
from tests.protocol.bench_of_cores import Bench, graph

LOOP = graph("items -> head", "head -> body", "body => head")

# -- the running average: of 100 users, times that add up to 100,000 ------------------------------------------------


def seconds(offset: int) -> int:
    """The time on the page of the user at this offset; the first hundred add up to 100,000."""
    return 899 + 2 * offset


def average(state: dict[str, int], time: int) -> list[tuple[str, Any]]:
    state["users"] += 1
    state["times"] += time
    return []


def visits_bench(**restored: Any) -> Bench:
    states = {"visits": {"offset": 1}, "average": {"users": 0, "times": 0}}
    return Bench(graph("visits -> average"), {"average": average}, states, **restored)


def read_until(bench: Bench, offset: int) -> None:
    """The source goes on until it would read this offset next, and all of it is processed."""
    source = bench.states[bench.core("visits").task.id]
    while source["offset"] < offset:
        bench.emit("visits->average", seconds(source["offset"]))
        source["offset"] += 1
    bench.run()


def test_running_average_goes_on_from_offset_101_after_a_crash_at_120():
    first = visits_bench()
    read_until(first, 101)
    first.trigger("visits", 1)
    read_until(first, 120)
    cut = first.cut(1)
    assert first.state(1, "visits") == {"offset": 101}
    assert first.state(1, "average") == {"users": 100, "times": 100_000}

    second = visits_bench(restored=cut, attempt=2)
    read_until(second, 151)
    undisturbed = visits_bench()
    read_until(undisturbed, 151)
    assert second.states == undisturbed.states
    assert second.seen("average")[0] == seconds(101)


# -- two accounts --------------------------------------------------------------------------------------------------


def receive_money(account: dict[str, int], amount: int) -> list[tuple[str, Any]]:
    account["balance"] += amount
    return []


@pytest.mark.parametrize(
    ("edges", "mode"),
    [
        (("A -> B", "B => A"), Mode.ALIGNED),
        (("A -> B", "B => A"), Mode.UNALIGNED),
        (("A => B", "B -> A"), Mode.UNALIGNED),
    ],
)
def test_two_accounts_are_cut_with_the_transfers_in_flight(edges: tuple[str, str], mode: Mode):
    states = {"A": {"balance": 10_000}, "B": {"balance": 5_000}}
    bench = Bench(graph(*edges), {"A": receive_money, "B": receive_money}, states)

    def transfer(sender: str, receiver: str, amount: int) -> None:
        bench.states[bench.core(sender).task.id]["balance"] -= amount
        bench.emit(f"{sender}->{receiver}", amount)

    transfer("A", "B", 1_000)
    transfer("B", "A", 1_000)
    transfer("B", "A", 2_000)
    bench.trigger("A", 1, mode)
    bench.deliver("A->B")
    bench.take("A->B")
    bench.run()
    assert bench.state(1, "A") == {"balance": 9_000}
    assert bench.state(1, "B") == {"balance": 3_000}
    assert bench.log(1, "B->A") == [1_000, 2_000]
    assert bench.log(1, "A->B") == []


def test_unaligned_a_transfer_that_is_received_and_not_booked_is_in_the_channel_still():
    states = {"A": {"balance": 9_000}, "B": {"balance": 5_000}}
    bench = Bench(graph("A -> B", "B => A"), {"B": receive_money}, states)
    bench.emit("A->B", 1_000)
    bench.trigger("A", 1, Mode.UNALIGNED)
    bench.run()
    assert bench.state(1, "B") == {"balance": 5_000}
    assert bench.log(1, "A->B") == [1_000]


# -- the head of an iteration over a stream, as the tests of Flink ML have it ----------------------------------------


def test_head_restores_exactly_the_feedback_between_its_capture_and_its_barrier_in_order():
    bench = Bench(LOOP)
    bench.emit("body->head", 100)
    bench.deliver("body->head")
    bench.take("body->head")
    bench.trigger("items", 1)
    bench.trigger("head", 1)
    bench.deliver("items->head")
    assert bench.has_captured(1, "head")
    bench.emit("body->head", 101, 102, 103)
    bench.deliver("body->head", 3)
    bench.take("body->head", 3)
    assert not bench.is_sealed(1, "head")
    bench.run()
    assert bench.is_sealed(1, "head")

    restored = Bench(LOOP, restored=bench.cut(1), attempt=2)
    restored.run()
    assert restored.seen("head") == [101, 102, 103]
    assert bench.seen("head")[:1] == [100]


# -- two overlapping logs, as the tests of StateFun have it ----------------------------------------------------------


def start_epoch(bench: Bench, epoch: int) -> None:
    """Source and head are told, and the head captures; its barrier waits on the way to the body."""
    bench.trigger("items", epoch)
    bench.trigger("head", epoch)
    bench.deliver("items->head")
    assert bench.has_captured(epoch, "head")


def return_barrier(bench: Bench) -> None:
    """The oldest barrier that waits before the body goes through it and arrives at the head."""
    bench.deliver("head->body")
    bench.deliver("body->head")


def test_two_overlapping_logs_hold_what_came_during_each():
    bench = Bench(LOOP)
    start_epoch(bench, 1)
    bench.pass_on("body->head", "a")
    start_epoch(bench, 2)
    bench.pass_on("body->head", "b")
    return_barrier(bench)
    assert bench.is_sealed(1, "head") and not bench.is_sealed(2, "head")
    bench.pass_on("body->head", "c")
    return_barrier(bench)
    assert bench.log(1, "body->head") == ["a", "b"]
    assert bench.log(2, "body->head") == ["b", "c"]


def test_what_is_received_and_not_processed_belongs_to_the_second_log_as_well():
    bench = Bench(LOOP)
    start_epoch(bench, 1)
    bench.emit("body->head", "a")
    bench.deliver("body->head")
    start_epoch(bench, 2)
    return_barrier(bench)
    return_barrier(bench)
    assert bench.log(1, "body->head") == ["a"]
    assert bench.log(2, "body->head") == ["a"]
