"""Rule 7, one epoch: when a cut is complete, what follows, and what is committed."""

from __future__ import annotations

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Abort, AppendEntry, Complete, FailAttempt, Finished, GivenUp
from tests.protocol.bench_of_cores import graph, task_id
from tests.protocol.desk import ATTEMPT, Desk, kinds, manifest_in

PIPE = graph("source -> sink")
SOURCE, SINK = task_id("source"), task_id("sink")


def test_the_manifest_is_written_when_every_task_has_acknowledged():
    desk = Desk(PIPE)
    desk.request()
    assert desk.acknowledge("source", 1) == []
    manifest = manifest_in(desk.acknowledge("sink", 1, "tx"))
    assert (manifest.epoch, manifest.attempt, manifest.mode) == (1, ATTEMPT, Mode.ALIGNED)
    assert manifest.files == {SOURCE: 1, SINK: 1}
    assert manifest.transactions == {SOURCE: (), SINK: ("tx",)}


def test_sinks_commit_only_when_the_manifest_is_durable():
    desk = Desk(PIPE)
    desk.request()
    desk.acknowledge("source", 1)
    assert kinds(desk.acknowledge("sink", 1, "tx"), Complete) == []
    assert desk.write_manifest(1) == [Complete(SOURCE, 1, ()), Complete(SINK, 1, ("tx",))]


def test_an_ended_task_does_not_stand_with_its_last_state_for_what_it_had_captured():
    desk = Desk(PIPE)
    desk.request()
    desk.acknowledge("sink", 1)
    assert kinds(desk.end("source", captured=1), AppendEntry) == []
    assert manifest_in(desk.acknowledge("source", 1)).files == {SOURCE: 1, SINK: 1}


@pytest.mark.parametrize("probed", [0, 7])
def test_an_ended_task_stands_with_its_last_state_for_what_it_had_not_captured_though_it_had_a_probe(probed: int):
    desk = Desk(PIPE)
    desk.request()
    desk.acknowledge("sink", 1)
    assert manifest_in(desk.end("source", captured=0, probed=probed)).files == {SOURCE: None, SINK: 1}


@pytest.mark.parametrize("attempt", [0, 2])
def test_what_another_attempt_says_is_not_heard(attempt: int):
    desk = Desk(PIPE)
    desk.request()
    desk.acknowledge("source", 1)
    assert desk.acknowledge("sink", 1, attempt=attempt) == []
    assert desk.end("sink", attempt=attempt) == []
    assert desk.decline("sink", 1, attempt=attempt) == []
    assert desk.open_epochs() == [1]
    assert desk.coordinator.ended == {}


def test_a_declined_epoch_is_aborted_at_every_task():
    desk = Desk(PIPE)
    desk.request()
    orders = desk.decline("sink", 1)
    assert orders[:2] == [Abort(SOURCE, 1, Mode.ALIGNED), Abort(SINK, 1, Mode.ALIGNED)]
    assert orders[2:] == [GivenUp(1, "epoch 1 was declined by sink/0: the disk is full")]
    assert desk.open_epochs() == []


def test_an_epoch_whose_manifest_is_being_written_is_neither_timed_out_nor_declined():
    desk = Desk(PIPE, timeout_ms=300, interval_ms=10_000)
    desk.request()
    desk.acknowledge_all(1)
    assert desk.wait(301) == []
    assert desk.decline("sink", 1) == []
    assert kinds(desk.write_manifest(1), Complete)


def test_a_late_acknowledgement_of_an_aborted_epoch_is_not_heard():
    desk = Desk(PIPE)
    desk.request()
    desk.decline("sink", 1)
    assert desk.acknowledge("source", 1) == []


def test_more_failures_in_a_row_than_tolerated_fail_the_attempt():
    desk = Desk(PIPE, failures_tolerated=2)
    for epoch in (1, 2):
        desk.request()
        assert kinds(desk.decline("sink", epoch), FailAttempt) == []
    desk.request()
    (failed,) = kinds(desk.decline("sink", 3), FailAttempt)
    assert "cut_failures=2" in failed.reason
    assert "epoch 3 was declined by sink/0: the disk is full" in failed.reason


def test_a_cut_that_a_limit_of_the_user_forbids_is_no_failure_of_the_attempt():
    desk = Desk(PIPE, failures_tolerated=0)
    desk.request()
    orders = desk.report(SINK, Decline(Epoch(1), "over budget", is_expected=True))
    assert kinds(orders, FailAttempt) == [] and kinds(orders, GivenUp)
    assert desk.open_epochs() == []


def test_a_completed_epoch_makes_earlier_failures_forgotten():
    desk = Desk(PIPE, failures_tolerated=1)
    for epoch in (1, 3, 5):
        desk.request()
        assert kinds(desk.decline("sink", epoch), FailAttempt) == []
        desk.request()
        desk.complete(epoch + 1)


def test_failures_of_all_kinds_are_counted_together():
    desk = Desk(PIPE, failures_tolerated=2, timeout_ms=100, interval_ms=10**6)
    desk.request()
    desk.decline("sink", 1)
    desk.request()
    desk.wait(100)
    desk.request()
    desk.acknowledge_all(3)
    assert kinds(desk.fail_manifest(3), FailAttempt)


def test_when_all_tasks_have_ended_their_last_states_are_the_final_cut_whose_output_ends_the_run():
    desk = Desk(PIPE)
    desk.end("source")
    desk.end("sink", "last")
    manifest = manifest_in(desk.wait(0))
    assert manifest.files == {SOURCE: None, SINK: None}
    assert kinds(desk.write_manifest(1), Complete) == [Complete(SOURCE, 1, ()), Complete(SINK, 1, ("last",))]
    assert desk.commit("source", 1) == []
    assert desk.commit("sink", 1) == [Finished(1)]
    assert desk.commit("sink", 1) == []


def test_the_final_cut_waits_for_an_epoch_that_is_still_open():
    desk = Desk(PIPE)
    desk.request()
    desk.end("source", captured=1)
    desk.end("sink", captured=1)
    assert desk.wait(0) == []
    desk.acknowledge("source", 1)
    desk.acknowledge("sink", 1)
    desk.write_manifest(1)
    assert manifest_in(desk.wait(0)).epoch == 2


def test_a_final_cut_that_could_not_be_written_is_tried_again():
    desk = Desk(PIPE)
    desk.end("source")
    desk.end("sink")
    desk.wait(0)
    desk.fail_manifest(1)
    assert manifest_in(desk.wait(0)).epoch == 2
    assert kinds(desk.write_manifest(2), Complete)


@pytest.fixture
def overlapping() -> Desk:
    """Cut 1 is complete, and cut 2, which began before that, is being recorded."""
    desk = Desk(PIPE)
    desk.request()
    desk.request(savepoint="mine")
    desk.acknowledge_all(1)
    desk.acknowledge_all(2)
    desk.write_manifest(1)
    return desk


def test_a_run_does_not_stop_before_a_later_cut_that_is_complete_is_published(overlapping: Desk):
    overlapping.write_manifest(2)
    overlapping.coordinator.on_stop(1)
    assert overlapping.commit("source", 1) + overlapping.commit("sink", 1) == []
    assert overlapping.commit("source", 2) == []
    assert overlapping.commit("sink", 2) == [Finished(2)]


def test_a_run_does_not_stop_while_a_later_cut_is_being_recorded(overlapping: Desk):
    overlapping.coordinator.on_stop(1)
    assert overlapping.commit("source", 1) + overlapping.commit("sink", 1) == []
    overlapping.write_manifest(2)
    assert overlapping.commit("source", 2) == []
    assert overlapping.commit("sink", 2) == [Finished(2)]


def test_a_run_stops_once_a_later_cut_could_not_be_recorded(overlapping: Desk):
    overlapping.coordinator.on_stop(1)
    assert overlapping.commit("source", 1) + overlapping.commit("sink", 1) == []
    assert kinds(overlapping.fail_manifest(2), Finished) == [Finished(1)]


@pytest.mark.parametrize("fails", [False, True])
def test_manifests_are_written_one_at_a_time_also_when_one_fails(fails: bool):
    desk = Desk(PIPE)
    desk.request()
    desk.request(savepoint="mine")
    desk.acknowledge_all(1)
    assert kinds(desk.acknowledge_all(2), AppendEntry) == []
    assert manifest_in(desk.fail_manifest(1) if fails else desk.write_manifest(1)).epoch == 2
