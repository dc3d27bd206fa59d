"""Savepoints and stops belong to the run: they survive declines, aborts, failed attempts and restores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.chain_view import claimant_of
from backedge.recovery.protocol.coordinator import RETRY_PAUSE_MS, Coordinator
from backedge.recovery.protocol.effects import AcknowledgeEnd, Committed
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, DropCut, FailAttempt, FailRun, Fenced, Finished, Manifest
from backedge.recovery.protocol.requests import TRIES_MAX, Reply, Request, RequestKind, Requests, combined
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.supervisor import Supervisor
from tests.protocol import chains
from tests.protocol.bench_of_cores import LOOP
from tests.protocol.chains import OURS, SUCCESSOR, claimed, numbered, start
from tests.protocol.desk import Desk, kinds, manifest_in, report

MINE = Request("a1", RequestKind.SAVEPOINT, "mine", Mode.ALIGNED)
OTHER = Request("a2", RequestKind.SAVEPOINT, "other", Mode.ALIGNED)
CUT = Request("c1", RequestKind.CUT, None, Mode.ALIGNED)
STOP = Request("s1", RequestKind.STOP, "stop", Mode.ALIGNED)


def desk_with(*requests: Request, **options: int) -> Desk:
    desk = Desk(LOOP, interval_ms=10**6, **options)
    for request in requests:
        desk.coordinator.requests.ask(request)
    desk.wait(10)
    return desk


def answer_of(desk: Desk, request: Request) -> Any:
    return desk.coordinator.requests.ask(request)


def refused(reply: Any, *words: str, is_for_good: bool | None = None) -> bool:
    """Whether this is an error that has these words."""
    assert is_for_good is None or reply.is_for_good == is_for_good
    return reply.epoch is None and all(each in reply.error for each in words)


def test_a_request_is_answered_when_its_manifest_is_written_and_not_before():
    desk = desk_with(MINE)
    assert desk.open_epochs() == [1]
    desk.acknowledge_all(1)
    assert answer_of(desk, MINE) is None
    desk.write_manifest(1)
    assert answer_of(desk, MINE) == Reply(Epoch(1))


def test_the_manifest_names_the_request_and_its_savepoint():
    desk = desk_with(MINE)
    manifest = manifest_in(desk.acknowledge_all(1))
    assert (manifest.savepoint, manifest.request) == ("mine", "a1")


def test_a_requested_cut_without_a_name_is_answered_and_gives_way_to_later_cuts():
    desk = desk_with(CUT, keep=1)
    assert manifest_in(desk.acknowledge_all(1)).savepoint is None
    desk.write_manifest(1)
    assert answer_of(desk, CUT) == Reply(Epoch(1))
    desk.request()
    desk.acknowledge_all(2)
    assert kinds(desk.write_manifest(2), DropCut) == [DropCut(Epoch(1))]


def test_a_request_that_is_repeated_opens_no_second_epoch():
    desk = desk_with(MINE)
    answer_of(desk, MINE)
    desk.wait(10)
    assert desk.open_epochs() == [1]
    desk.complete(1)
    assert answer_of(desk, MINE) == answer_of(desk, MINE) == Reply(Epoch(1))
    desk.wait(10)
    assert desk.open_epochs() == []


def test_a_savepoint_that_a_later_cut_overtakes_is_taken_again():
    desk = desk_with(MINE)
    desk.request()
    desk.complete(2)
    assert desk.open_epochs() == []
    desk.wait(10)
    assert desk.open_epochs() == [3]


def test_a_request_that_fails_too_often_gets_an_error_with_the_last_reason():
    desk = desk_with(MINE, failures_tolerated=100)
    for epoch in range(1, TRIES_MAX + 1):
        assert answer_of(desk, MINE) is None
        desk.decline("head", epoch)
        desk.wait(10)
    assert refused(answer_of(desk, MINE), f"'mine' failed {TRIES_MAX} times", "the disk is full")
    assert desk.open_epochs() == []


def test_a_stop_ends_the_run_with_its_cut_once_its_output_is_published():
    desk = desk_with(STOP)
    desk.acknowledge_all(1)
    desk.write_manifest(1)
    assert answer_of(desk, STOP) is None, "its output is not published yet"
    orders = [order for task in LOOP.tasks for order in desk.report(task, Committed(Epoch(1)))]
    assert kinds(orders, Finished) == [Finished(Epoch(1), is_stopped=True)]
    assert answer_of(desk, STOP) == Reply(Epoch(1))


def test_a_stop_supersedes_a_savepoint_that_waits_and_answers_another_stop():
    again = replace(STOP, id="s2")
    desk = desk_with(STOP)
    for request in (MINE, again, CUT):
        desk.coordinator.requests.ask(request)
    desk.wait(10)
    desk.complete(1)
    assert refused(answer_of(desk, MINE), "superseded by a stop", is_for_good=True)
    assert answer_of(desk, again) == answer_of(desk, CUT) == Reply(Epoch(1))


@pytest.mark.parametrize("request_", [MINE, CUT])
def test_a_cut_in_the_chain_answers_its_request_whatever_the_end_of_the_run(request_: Request):
    """As after the death of a supervisor that has recorded it and told nobody: its successor reads that, and ends."""
    stopped, failed = Requests(), Requests()
    for requests in (stopped, failed):
        requests.on_recorded(request_.id, Epoch(4))
    stopped.on_finished(Epoch(7), is_stopped=True)
    failed.on_failed("processes died too often")
    assert stopped.ask(request_) == failed.ask(request_) == Reply(Epoch(4))


def test_the_final_cut_stands_for_savepoints_and_stops_that_wait():
    desk = Desk(LOOP, interval_ms=10**6)
    for task in LOOP.tasks:
        desk.end(task.name)
    desk.coordinator.requests.ask(MINE)
    desk.coordinator.requests.ask(STOP)
    desk.wait(10)
    desk.complete(1)
    assert answer_of(desk, MINE) == answer_of(desk, STOP) == Reply(Epoch(1), is_apart=True)
    assert answer_of(desk, OTHER) == Reply(Epoch(1), is_apart=True), "whoever asks later is answered as well"


# -- beyond one attempt --------------------------------------------------------------------------------------------


def manifest(epoch: int, request: str | None = None, claimant: str = OURS, **more: Any) -> Manifest:
    return chains.manifest(epoch, 1, claimant, request=request, savepoint=None if request is None else "mine", **more)


def coordinator_of(supervisor: Supervisor) -> Coordinator:
    supervisor.on_started(LOOP, 0)
    assert supervisor.coordinator is not None
    return supervisor.coordinator


def test_an_open_request_waits_again_when_its_attempt_fails():
    supervisor, _ = claimed([])
    supervisor.requests.ask(MINE)
    coordinator_of(supervisor).on_tick(10)
    supervisor.on_failure("a process died", numbered(start(1, None, OURS)), 0)
    assert list(supervisor.requests.unanswered) == ["a1"]
    coordinator = coordinator_of(supervisor)
    coordinator.on_tick(10)
    assert [cut.request for cut in coordinator.open.values()] == [MINE]


def test_another_supervisor_finds_the_cut_of_a_repeated_request_in_the_chain():
    supervisor, _ = claimed([start(1, None, OURS), manifest(1, "a1"), manifest(2)])
    assert supervisor.requests.ask(MINE) == Reply(Epoch(1))


STOPPED = manifest(1, "s1", stops=True)


def successor(*later: Manifest, claimant: str = SUCCESSOR) -> Supervisor:
    """A supervisor that takes over a run of which a cut, the first of these, has stopped it."""
    return claimed([start(1, None, OURS), STOPPED, *later], supervisor=Supervisor(claimant))[0]


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_successor_ends_the_run_with_the_cut_of_a_stop_that_its_predecessor_answered(is_asked_again: bool):
    supervisor = successor()
    assert supervisor.restored_from == 1
    if is_asked_again:
        supervisor.requests.ask(STOP)
    assert coordinator_of(supervisor).on_tick(10) == [Finished(Epoch(1), is_stopped=True)]
    assert supervisor.requests.ask(STOP) == Reply(Epoch(1))


def test_a_stop_that_found_all_tasks_at_their_ends_is_no_less_one():
    supervisor = successor()
    coordinator = coordinator_of(supervisor)
    for task in LOOP.tasks:
        coordinator.on_report(task, supervisor.attempt, AcknowledgeEnd(report(), Epoch(1), Epoch(0)), 1)
    assert coordinator.on_tick(10) == [Finished(Epoch(1), is_stopped=True)]


def test_a_stop_ends_the_run_with_a_later_cut_that_completed_beside_it():
    coordinator = coordinator_of(successor(manifest(2)))
    assert coordinator.on_tick(10) == [Finished(Epoch(2), is_stopped=True)]


def test_a_run_that_is_stopped_by_its_request_does_not_stop_the_run_that_goes_on_from_there():
    coordinator = coordinator_of(successor(claimant=claimant_of("later", "1")))
    assert not kinds(coordinator.on_tick(10), Finished)


@pytest.mark.parametrize("request_", [MINE, STOP])
def test_a_run_that_fails_answers_with_its_error_and_takes_no_cut_any_more(request_: Request):
    supervisor = Supervisor(OURS, RestartOptions(restarts_max=0))
    supervisor.begin([])
    supervisor.requests.ask(request_)
    assert isinstance(supervisor.on_failure("out of memory", [], 0)[0], FailRun)
    assert refused(supervisor.requests.ask(request_), "out of memory", is_for_good=True)


def test_a_run_that_is_fenced_answers_that_another_has_the_job():
    supervisor, _ = claimed([])
    supervisor.requests.ask(MINE)
    assert supervisor.on_taken(AppendEntry(2, start(1)), numbered(start(1, None, OURS), start(2))) == [Fenced(2)]
    assert refused(supervisor.requests.ask(MINE), "another run has taken over")


def rescale(*asked: tuple[str, int]) -> Request:
    return Request("r1", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, asked)


def answered(
    of_finite: Request, of_living: Request, happens: Callable[[Requests], None], is_stopped: bool = False
) -> Reply:
    """The answer of a run of which one pipeline has ended, with a higher epoch than the other, which goes on, has."""
    finite, living = Requests(), Requests()
    finite.on_finished(Epoch(41), is_stopped=is_stopped)
    living.ask(of_living)
    happens(living)
    replies = [finite.ask(of_finite), living.ask(of_living)]
    return combined([reply for reply in replies if reply is not None])


def records(living: Requests) -> None:
    living.on_recorded(MINE.id, Epoch(14))


def stops(living: Requests) -> None:
    living.on_recorded(STOP.id, Epoch(14))
    living.on_finished(Epoch(14), is_stopped=True)


def rescales(living: Requests) -> None:
    living.on_rescaled(rescale(("sum", 3)), Epoch(14))


@pytest.mark.parametrize(
    ("of_finite", "of_living", "happens"),
    [
        (MINE, MINE, records),
        (STOP, STOP, stops),
        (rescale(), rescale(("sum", 3)), rescales),
        (rescale(("count", 3)), rescale(("sum", 3)), rescales),
    ],
    ids=["savepoint", "stop", "rescale", "rescale of both"],
)
def test_the_answer_is_that_of_the_pipelines_that_go_on(of_finite: Request, of_living: Request, happens: Any):
    assert answered(of_finite, of_living, happens) == Reply(Epoch(14))


def test_a_rescale_of_a_pipeline_that_has_ended_is_refused_though_another_goes_on():
    reply = answered(rescale(("count", 3)), rescale(), lambda living: None)
    assert refused(reply, "41", is_for_good=True)


def test_a_savepoint_that_a_stop_superseded_in_one_pipeline_is_refused():
    assert refused(answered(MINE, MINE, records, is_stopped=True), "stop")


def test_the_first_end_of_a_run_counts():
    requests = Requests()
    requests.on_finished(Epoch(4), is_stopped=False)
    requests.on_failed("its supervisor failed")
    assert requests.ask(MINE) == Reply(Epoch(4), is_apart=True)


def test_a_stop_aborts_the_epochs_that_are_open_beside_it():
    desk = desk_with(STOP)
    desk.request()
    orders = desk.complete(1)
    assert not desk.open_epochs() and not kinds(orders, AppendEntry)[1:]


def test_a_cut_between_two_rounds_that_is_declined_waits_a_moment_and_is_no_failure_of_the_attempt():
    between = replace(MINE, mode=Mode.BETWEEN_ROUNDS)
    desk = desk_with(between, failures_tolerated=0)
    for epoch in range(1, TRIES_MAX):
        assert {cut.mode for cut in desk.coordinator.open.values()} == {Mode.BETWEEN_ROUNDS}
        orders = desk.decline("body", epoch)
        assert not any(isinstance(order, FailAttempt) for order in orders)
        desk.wait(RETRY_PAUSE_MS - 10)
        assert desk.open_epochs() == []
        desk.wait(10)
        assert desk.open_epochs() == [epoch + 1]
    desk.decline("body", TRIES_MAX)
    assert refused(answer_of(desk, between), f"failed {TRIES_MAX} times")
