"""Cases that papers, manuals and other engines' tests tell, with their own figures."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import Bench, graph

LOOP = graph("items -> head", "head -> body", "body => head")


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
