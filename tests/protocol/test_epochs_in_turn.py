"""Rule 7, many epochs: when the next one starts, which overlap, which are discarded, and which cuts are kept."""

from __future__ import annotations

import pytest

from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import DropCut, Trigger
from tests.protocol.bench_of_cores import graph, task_id
from tests.protocol.desk import Desk, kinds

PIPE = graph("source -> sink")
SOURCE = task_id("source")


def started(orders: list[object]) -> list[int]:
    return [order.epoch for order in orders if isinstance(order, Trigger) and order.task == SOURCE]


def test_epochs_start_at_the_interval():
    desk = Desk(PIPE, interval_ms=100)
    assert started(desk.wait(99)) == []
    assert started(desk.wait(1)) == [1]
    desk.complete(1)
    assert started(desk.wait(99)) == []
    assert started(desk.wait(1)) == [2]


def test_an_epoch_that_starts_late_does_not_put_off_the_next():
    desk = Desk(PIPE, interval_ms=100)
    assert started(desk.wait(120)) == [1]
    desk.complete(1)
    assert started(desk.wait(79)) == [] and started(desk.wait(1)) == [2]
    assert started(desk.wait(400)) == []
    desk.complete(2)
    assert started(desk.wait(0)) == [3]
    desk.complete(3)
    assert started(desk.wait(49)) == [], "half of the interval is left in any case"
    assert started(desk.wait(1)) == [4]


@pytest.mark.parametrize("epochs_max", [1, 2, 3])
def test_so_many_epochs_are_open_and_no_more(epochs_max: int):
    desk = Desk(PIPE, interval_ms=10, open_epochs_max=epochs_max)
    for _ in range(6):
        desk.wait(10)
    assert desk.open_epochs() == list(range(1, 1 + epochs_max))


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_minimum_pause_lies_between_the_end_of_one_and_the_start_of_the_next(is_aborted: bool):
    desk = Desk(PIPE, interval_ms=100, pause_ms_min=50)
    desk.wait(100)
    desk.wait(200)
    if is_aborted:
        desk.decline("sink", 1)
    else:
        desk.complete(1)
    assert started(desk.wait(49)) == []
    assert started(desk.wait(1)) == [2]


def test_a_savepoint_overlaps_the_periodic_epochs_and_is_not_counted_among_them():
    desk = Desk(PIPE, interval_ms=100)
    desk.wait(100)
    assert started(desk.request(savepoint="mine")) == [2]
    assert desk.open_epochs() == [1, 2]
    desk.complete(1)
    assert desk.open_epochs() == [2]
    assert started(desk.wait(100)) == [3]


def test_no_periodic_epoch_starts_while_a_cut_between_rounds_is_open():
    desk = Desk(PIPE, interval_ms=100)
    desk.request(Mode.BETWEEN_ROUNDS, savepoint="mine")
    assert started(desk.wait(100)) == []
    desk.complete(1)
    assert started(desk.wait(0)) == [2]


def test_a_discarded_epoch_is_no_failure():
    desk = Desk(PIPE, interval_ms=10, open_epochs_max=2, failures_tolerated=0)
    desk.wait(10)
    desk.wait(10)
    desk.acknowledge_all(2)
    desk.write_manifest(2)
    assert desk.open_epochs() == [] and desk.coordinator.failures == 0


def test_savepoints_are_kept_whatever_the_retention():
    desk = Desk(PIPE, keep=1)
    dropped: list[int] = []
    for epoch, name in ((1, "mine"), (2, None), (3, None)):
        desk.request(savepoint=name)
        dropped += [order.epoch for order in kinds(desk.complete(epoch), DropCut)]
    assert dropped == [2]
    assert desk.supervisor.chain.cuts == [1, 3]


def test_cuts_of_earlier_attempts_are_dropped_in_their_turn():
    desk = Desk(PIPE, completed=[4, 6], keep=2)
    assert started(desk.request()) == [7]
    assert kinds(desk.complete(7), DropCut) == [DropCut(4)]
