"""Requests that a run refuses: whether they can succeed later, and that nothing has begun for them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor import supervising
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.crew import Crew, needs_of
from backedge.engine.on_ray.supervisor.rescaling import PROCESSES_PER_CPU_MAX, TOLD_MS, Rescaling
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import resized
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.protocol.requests import Reply, Request, RequestKind
from backedge.recovery.stores.run_status import RunStatus
from tests.on_ray.supervised import Supervised

ID = "a1"
CPUS = 4


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Supervised:
    """A run of one task on a cluster with four CPUs."""
    monkeypatch.setattr(cluster, "cpus", lambda: CPUS)
    bench = Supervised(monkeypatch)
    bench.begin()
    return bench


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of processes that rescales were prepared with; none of them ever comes up."""
    found: list[int] = []

    def prepare(self: Rescaling, request: Request, deployment: Deployment, now_ms: int) -> None:
        found.append(len(deployment.tasks))

    monkeypatch.setattr(Rescaling, "prepare", prepare)
    return found


def asked(
    bench: Supervised, parallelism: int | dict[str, int], kind: RequestKind = RequestKind.RESCALE
) -> Reply | None:
    """What a client is answered that has asked, waited for a turn, and asked again."""
    name = "mine" if kind is RequestKind.SAVEPOINT else None
    sizes = parallelism if kind is RequestKind.RESCALE else None
    bench.run.ask(ID, kind, name, sizes)
    bench.turn()
    return bench.run.ask(ID, kind, name, sizes)


def test_a_rescale_that_would_crowd_the_cluster_is_refused_before_a_process_starts(
    bench: Supervised, prepared: list[int]
):
    refused = asked(bench, 99)
    assert refused is not None and refused.error is not None and refused.is_for_good
    assert "99 processes on a cluster with 4 CPUs" in refused.error
    assert prepared == [] and bench.run.driver.deployment.parallelism == {"numbers": 1, "shown": 1}
    assert "the rescale was refused, and the run goes on as before" in bench.lines


def test_more_tasks_than_cpus_are_no_crowd(bench: Supervised, prepared: list[int]):
    assert asked(bench, CPUS * PROCESSES_PER_CPU_MAX) is None
    assert prepared == [CPUS * PROCESSES_PER_CPU_MAX]


@pytest.mark.parametrize("wrong", [{"nombers": 2}, 0, 1000])
def test_a_rescale_that_the_flow_cannot_have_is_refused_for_good(bench: Supervised, wrong: int | dict[str, int]):
    refused = asked(bench, wrong)
    assert refused is not None and refused.error is not None and refused.is_for_good


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.RESCALE])
def test_a_run_without_a_place_for_cuts_refuses_requests_for_good(bench: Supervised, kind: RequestKind):
    bench.run.driver.is_restorable = False
    refused = asked(bench, 2, kind)
    assert refused is not None and refused.error is not None and refused.is_for_good


def test_a_rescale_without_room_may_be_made_again(bench: Supervised, monkeypatch: pytest.MonkeyPatch):
    request = Request(ID, RequestKind.RESCALE, None, bench.run.spec.snapshots.mode)
    monkeypatch.setattr(Rescaling, "prepared", lambda self, now_ms: iter([(request, "given up after 600 s")]))
    bench.turn()
    refused = bench.run.ask(ID, RequestKind.RESCALE, None, 2)
    assert refused is not None and "given up after 600 s" in str(refused.error) and not refused.is_for_good


@pytest.mark.parametrize(
    ("state", "kind", "answer"),
    [
        ("stopped", RequestKind.STOP, Reply(Epoch(3))),
        ("stopped", RequestKind.SAVEPOINT, Reply(Epoch(2))),
        ("failed", RequestKind.SAVEPOINT, Reply(Epoch(2))),
        ("finished", RequestKind.STOP, Reply(Epoch(3), is_apart=True)),
    ],
)
def test_a_supervisor_that_finds_its_run_ended_answers_what_its_predecessor_carried_out(
    monkeypatch: pytest.MonkeyPatch, state: str, kind: RequestKind, answer: Reply
):
    """That one died before the client had its answer, and the client asks again."""
    bench = Supervised(monkeypatch)
    asked_for = ID if kind is RequestKind.SAVEPOINT else "s1"
    taken = Manifest(Epoch(2), Attempt(1), Mode.ALIGNED, {}, {}, "mine", request=asked_for)
    for number, entry in enumerate([AttemptStart(Attempt(1), None), taken], start=1):
        bench.store.create(number, entry, {}, bench.run.spec.deployment)
    bench.run.earlier = RunStatus("supervised", "77aa", state, True, 0.0, 1.5, None, 1, 3, 1)
    bench.run.run()
    assert bench.run.ask(ID, kind, "mine", None) == answer
    assert len(bench.store.chain()) == 2, "nothing is claimed"


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.RESCALE])
def test_a_request_that_is_repeated_is_noted_and_checked_once(
    bench: Supervised, monkeypatch: pytest.MonkeyPatch, kind: RequestKind
):
    """The loop may wait ten minutes for a machine, and each client asks twenty times a second meanwhile."""
    sized: list[Deployment] = []
    monkeypatch.setattr(Crew, "prepare", lambda self, needs: {"count/1": Future()})
    monkeypatch.setattr(supervising, "resized", lambda deployment, sizes: sized.append(deployment) or deployment)
    bench.run.rescaling = Rescaling(Crew(ActorStarter("supervised"), 0, print, print), bench.run.say)
    sizes = 2 if kind is RequestKind.RESCALE else None
    for _ in range(3):
        for _ in range(100):
            assert bench.run.ask(ID, kind, "mine", sizes) is None
        assert len(bench.run.asked) <= 1
        bench.turn()
    assert not bench.run.asked and len(sized) == (2 if sizes else 0), "when it is asked, and when it is prepared"


def test_a_rescale_waits_for_a_process_that_another_one_has_taken_meanwhile(
    bench: Supervised, monkeypatch: pytest.MonkeyPatch
):
    starter = SimpleNamespace(job="supervised", first={}, start=lambda name, needs: MagicMock())
    monkeypatch.setattr(cluster, "future", lambda pending: Future())
    crew = Crew(cast("ActorStarter", starter), 0, print, print)
    rescaling = Rescaling(crew, bench.run.say)
    wider = resized(bench.run.spec.deployment, {"numbers": 2, "shown": 1})
    for id in ("first", "second"):
        rescaling.prepare(Request(id, RequestKind.RESCALE, None, Mode.ALIGNED, (("numbers", 2),)), wider, 0)
    crew.fill(needs_of(wider))
    assert list(rescaling.prepared(TOLD_MS)) == []
    assert bench.lines.count("has no process yet") == 2


def test_of_two_rescales_that_together_are_too_many_channels_the_second_is_refused_and_the_run_goes_on(
    bench: Supervised, monkeypatch: pytest.MonkeyPatch
):
    """Each alone was fine when it was asked for."""
    monkeypatch.setattr(bench.store, "manifest", lambda epoch: None)
    sizes = ("numbers", 1500), ("shown", 1600)
    wide = [Request(size[0], RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, (size,)) for size in sizes]
    for request in wide:
        bench.run.driver.ask(request)
    for _ in wide:
        bench.acknowledge(bench.run.driver.deployment.tasks)
        for _ in range(3):
            bench.turn()
    first, second = map(bench.run.driver.ask, wide)
    assert first is not None and first.error is None
    assert second is not None and "2,400,000 channels between its tasks" in str(second.error)
    assert not bench.run.driver.is_over and bench.run.driver.deployment.parallelism == {"numbers": 1500, "shown": 1}
    assert "the rescale was refused, and the run goes on as before" in bench.lines


def test_a_rescale_that_another_one_has_made_impossible_before_it_is_looked_at_is_refused(bench: Supervised):
    bench.run.ask(ID, RequestKind.RESCALE, None, {"shown": 1600})
    bench.run.driver.deployment = resized(bench.run.driver.deployment, {"numbers": 1500, "shown": 1})
    bench.turn()
    refused = bench.run.driver.requests.ask(Request(ID, RequestKind.RESCALE, None, Mode.ALIGNED, (("shown", 1600),)))
    assert refused is not None and "2,400,000 channels between its tasks" in str(refused.error)
    assert not bench.run.driver.is_over
