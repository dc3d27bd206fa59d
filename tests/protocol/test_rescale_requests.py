"""A rescale of a living run: its cut ends the attempt, and the next one restores it with other numbers of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.chain_view import claimant_of
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, AttemptStart, Entry, Fenced, Manifest, Rescale
from backedge.recovery.protocol.requests import Reply, Request, RequestKind, Sizes
from backedge.recovery.protocol.supervisor import Beginning, Supervisor
from tests.every import every
from tests.protocol import chains
from tests.protocol.bench_of_cores import LOOP
from tests.protocol.chains import OURS, SUCCESSOR, claimed, numbered
from tests.protocol.desk import Desk, kinds, manifest_in

NOW: Sizes = tuple(LOOP.parallelism.items())
WIDER: Sizes = tuple((name, 3) for name, _ in NOW)
ASKED = Request("r1", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, WIDER)


def desk_with(*requests: Request) -> Desk:
    desk = Desk(LOOP, interval_ms=10**6)
    for request in requests:
        desk.coordinator.requests.ask(request)
    desk.wait(10)
    return desk


def start(attempt: int, restored: int | None = None, claimant: str = OURS, sizes: Sizes = ()) -> AttemptStart:
    return chains.start(attempt, restored, claimant, sizes=sizes, begun=NOW if sizes else ())


def manifest(epoch: int, claimant: str = OURS) -> Manifest:
    return chains.manifest(epoch, 1, claimant, mode=Mode.BETWEEN_ROUNDS, request="r1")


def claim(orders: list[Any]) -> AttemptStart:
    (order,) = orders
    return order.entry


def test_the_cut_of_a_rescale_ends_its_attempt_last_of_all():
    desk = desk_with(ASKED)
    assert manifest_in(desk.acknowledge_all(1)).mode is Mode.BETWEEN_ROUNDS
    orders = desk.write_manifest(1)
    assert orders[-1] == Rescale(ASKED, Epoch(1), WIDER)
    assert desk.coordinator.requests.ask(ASKED) is None, "it is answered when the new tasks run"


def test_a_rescale_to_what_there_is_already_takes_no_cut():
    same = Request("r2", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, NOW)
    desk = desk_with(same)
    assert desk.open_epochs() == []
    assert desk.coordinator.requests.ask(same) == Reply(None)


def test_a_rescale_is_superseded_by_the_end_of_the_run():
    stop = Request("s1", RequestKind.STOP, "stop", Mode.ALIGNED)
    desk = desk_with(stop)
    desk.coordinator.requests.ask(ASKED)
    desk.complete(1)
    answer: Any = desk.coordinator.requests.ask(ASKED)
    assert "superseded by the end of the run" in answer.error


def test_a_rescale_whose_cut_completes_while_the_run_ends_does_not_go_on():
    desk = desk_with(ASKED)
    desk.acknowledge_all(1)
    desk.coordinator.on_stop(Epoch(1))
    assert not kinds(desk.write_manifest(1), Rescale)


def test_the_next_attempt_restores_the_cut_of_the_rescale_and_its_claim_has_the_numbers_of_tasks():
    supervisor, _ = claimed([], supervisor=Supervisor(OURS, begun=NOW))
    supervisor.requests.ask(ASKED)
    supervisor.on_started(LOOP, 0)
    assert supervisor.coordinator is not None
    supervisor.coordinator.on_tick(10)
    assert Rescale(ASKED, Epoch(1), WIDER) in supervisor.on_appended(manifest(1))
    supervisor.leave()
    orders = supervisor.on_rescale(numbered(start(1), manifest(1)))
    assert claim(orders) == start(2, 1, sizes=WIDER)
    assert supervisor.restarts.count == 0, "it is no failure"
    assert list(supervisor.requests.unanswered) == ["r1"], "until an attempt has these tasks"


def test_rescales_of_different_operators_do_not_undo_each_other():
    """The second was asked for before the first was carried out, and still leaves what the first has changed."""
    first, second = (
        Request(id, RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, asked=((name, 3),))
        for id, name in (("r1", "head"), ("r2", "body"))
    )
    supervisor = Supervisor(OURS)
    for request in (first, second):
        supervisor.requests.ask(request)
    supervisor.begin([])
    supervisor.on_appended(start(1))
    supervisor.on_appended(manifest(1))
    supervisor.rescale(first, Epoch(1), LOOP.parallelism)
    then = dict(claim(supervisor.on_rescale(numbered(start(1), manifest(1)))).sizes)
    assert then == {**LOOP.parallelism, "head": 3} and first.is_met_by(then) and not second.is_met_by(then)
    assert dict(second.sizes_in(then)) == {**LOOP.parallelism, "head": 3, "body": 3}


def restoring() -> Supervisor:
    """A supervisor whose attempt restores the cut of a rescale."""
    supervisor = Supervisor(OURS, begun=NOW)
    supervisor.begin([])
    supervisor.requests.ask(ASKED)
    for entry in (start(1), manifest(1)):
        supervisor.on_appended(entry)
    supervisor.rescale(ASKED, Epoch(1), LOOP.parallelism)
    supervisor.on_rescale(numbered(start(1), manifest(1)))
    supervisor.on_appended(start(2, 1, sizes=WIDER))
    return supervisor


def test_a_rescale_that_cannot_be_restored_is_refused_and_the_next_attempt_has_the_former_tasks():
    supervisor = restoring()
    other = Request("r2", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, asked=NOW)
    supervisor.requests.ask(other)
    assert supervisor.gives_up_rescale("merge has raised")
    answer: Any = supervisor.requests.ask(ASKED)
    assert "goes on as before: merge has raised" in answer.error and answer.is_for_good
    assert supervisor.requests.ask(other) is None
    assert claim(supervisor.on_failure("merge has raised", [], 0)) == start(3, 1, sizes=NOW)
    supervisor.on_appended(start(3, 1, sizes=NOW))
    assert not supervisor.gives_up_rescale("it raises again"), "now the run has failed"


def test_an_attempt_that_cannot_be_restored_with_the_tasks_of_its_cut_is_no_rescale():
    supervisor = restoring()
    supervisor.on_appended(manifest(2))
    assert claim(supervisor.on_failure("a process died", [], 0)) == start(3, 2, sizes=WIDER)
    supervisor.on_appended(start(3, 2, sizes=WIDER))
    assert not supervisor.gives_up_rescale("a file is damaged")
    assert supervisor.chain.sizes == WIDER


def test_a_rescale_of_a_run_that_has_lost_the_job_is_fenced():
    supervisor, _ = claimed([])
    supervisor.on_appended(manifest(1))
    lost = numbered(start(1), manifest(1), start(2, 1, SUCCESSOR))
    assert supervisor.on_rescale(lost) == [Fenced(3)]


LATER, THIRD = claimant_of("another run", "first"), claimant_of("a third run", "first")
RESCALED = (start(1), manifest(1), start(2, 1, sizes=WIDER))
WITH_A_CUT = (*RESCALED, manifest(2))
CONTINUED: dict[str, tuple[str, Sizes, tuple[Entry, ...], Epoch | None, AttemptStart]] = {
    "a successor has those of the last claim": (SUCCESSOR, NOW, RESCALED, None, start(3, 1, SUCCESSOR, WIDER)),
    # Otherwise a cut in the middle of a round, which only the same tasks can restore, would be refused.
    "the same command again": (LATER, NOW, WITH_A_CUT, None, start(3, 2, LATER, WIDER)),
    "the same command a third time": (
        *(THIRD, NOW, (*WITH_A_CUT, start(3, 2, LATER, WIDER)), None),
        start(4, 2, THIRD, WIDER),
    ),
    # The new tasks may not have come to life: a function of the user's may raise where state is split.
    "the same command again, and the rescale has no cut yet": (LATER, NOW, RESCALED, None, start(3, 1, LATER)),
    "other options": (LATER, WIDER, WITH_A_CUT, None, start(3, 2, LATER)),
    "other operators": (LATER, NOW[:1], WITH_A_CUT, None, start(3, 2, LATER)),
    "no options": (LATER, (), WITH_A_CUT, None, start(3, 2, LATER)),
    "the former options again: the last cut counts": (
        *(THIRD, NOW, (*WITH_A_CUT, start(3, 2, LATER), manifest(3, LATER)), None),
        start(4, 3, THIRD),
    ),
    "one that goes back": (LATER, NOW, WITH_A_CUT, Epoch(1), start(3, 1, LATER)),
}


@every(("claimant", "begun", "chain", "epoch", "claims"), CONTINUED.values())
def test_a_later_run_has_the_tasks_of_a_rescale_or_its_own(
    claimant: str, begun: Sizes, chain: tuple[Entry, ...], epoch: Epoch | None, claims: AttemptStart
):
    assert claim(Supervisor(claimant, begun=begun).begin(numbered(*chain), Beginning(epoch))) == claims


@pytest.mark.parametrize("sizes", [NOW, WIDER])
def test_a_rescale_that_survives_its_attempt_is_answered_if_the_next_one_has_its_tasks(sizes: Sizes):
    supervisor = Supervisor(OURS)
    request = Request("r3", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, sizes)
    supervisor.requests.ask(request)
    supervisor.read(numbered(manifest(1, claimant=OURS)))
    coordinator = Coordinator(supervisor, LOOP)
    orders = coordinator.on_tick(10)
    assert not kinds(orders, AppendEntry)
    if sizes == NOW:
        assert supervisor.requests.ask(request) == Reply(Epoch(1))
    else:
        assert [cut.request for cut in coordinator.open.values()] == [request]
