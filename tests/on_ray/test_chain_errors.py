"""A store that fails around the chain: the supervisor repeats, claims later, and gives nothing up that may exist."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import CutView, UnknownTransactionError, UserFunctionError
from backedge.engine.on_ray.job_store import ChainInMemory
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.supervisor import supervising
from backedge.engine.on_ray.transport.control_messages import Outcome, TaskOptions
from backedge.engine.run.driver import StoreRetries
from backedge.engine.run.ports import RunEnding
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Abort, AttemptStart, Complete, Entry, Manifest, Numbered
from backedge.recovery.protocol.protocol_errors import FencedError
from backedge.recovery.protocol.supervisor import Beginning
from backedge.recovery.stores.store_errors import OutcomeUnknownError, SnapshotCorruptError, StoreError
from tests.on_ray.supervised import Supervised

PAUSE_MS, TRIES_MAX = StoreRetries().pause_ms, StoreRetries().tries_max
READS_MAX, READS_TOLD = StoreRetries().reads_max, StoreRetries().reads_told
EIO = OSError(errno.EIO, os.strerror(errno.EIO))
UNKNOWN = OutcomeUnknownError(errno.EIO, "whether it was created is unknown")


class Failing(ChainInMemory):
    """A store whose next answers the test decides: an error instead of the answer, after the deed or before it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[bool, Exception]] = []
        self.unreadable: list[Exception] = []
        self.unreadable_cuts: list[Exception] = []
        self.asked: list[tuple[int, Entry]] = []

    def create(self, number: int, entry: Entry, files: Any, deployment: Deployment) -> bool:
        self.asked.append((number, entry))
        happens, answer = self.answers.pop(0) if self.answers else (True, None)
        there = dict(self._entries)
        if happens and number not in there:
            self._entries.append(Numbered(number, entry))
        if answer is not None:
            raise answer
        return dict(self._entries)[number] == entry

    def chain(self) -> list[Numbered]:
        if self.unreadable:
            raise self.unreadable.pop(0)
        return super().chain()

    def manifest(self, epoch: Any) -> Any:
        if self.unreadable_cuts:
            raise self.unreadable_cuts.pop(0)
        return None


@pytest.fixture
def store() -> Failing:
    return Failing()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, store: Failing) -> Supervised:
    run = Supervised(monkeypatch, store)
    run.begin()
    return run


@pytest.mark.parametrize("happens", [True, False])
def test_a_manifest_whose_answer_is_lost_is_created_again_and_nothing_is_aborted(
    run: Supervised, store: Failing, happens: bool
):
    store.answers = [(happens, UNKNOWN), (False, UNKNOWN)]
    epoch = run.take_a_cut()
    assert "may or may not exist" in run.lines
    assert run.told(Complete) == run.told(Abort) == []
    run.turn(PAUSE_MS)
    assert run.told(Complete) == run.told(Abort) == []
    run.turn(PAUSE_MS)
    assert run.told(Complete) == [epoch]
    assert run.told(Abort) == []
    assert len(store.asked) == 4
    assert store.asked[1] == store.asked[2] == store.asked[3], "the same entry under the same number"
    assert [number for number, _ in store.chain()] == [1, 2]


def test_an_attempt_that_dies_while_its_manifest_may_exist_goes_on_from_it_if_it_does(run: Supervised, store: Failing):
    store.answers = [(False, UNKNOWN)]
    epoch = run.take_a_cut()
    manifest = store.asked[-1][1]
    # The put lands after the chain was read: the claim finds its number taken, by an entry of this run.
    read = store.chain

    def read_and_land() -> list[Numbered]:
        store.chain = read  # type: ignore[method-assign]
        chain = read()
        store._entries.append(Numbered(2, manifest))
        return chain

    store.chain = read_and_land  # type: ignore[method-assign]
    run.lose_a_process()
    starts = [entry for _, entry in store.chain() if isinstance(entry, AttemptStart)]
    assert [(start.attempt, start.restored) for start in starts] == [(1, None), (3, epoch)]
    assert run.run.story.error is None, "it is not fenced by its own entry"


def test_an_entry_whose_answer_never_comes_ends_the_attempt_and_not_the_run(run: Supervised, store: Failing):
    store.answers = [(False, UNKNOWN)] * (TRIES_MAX + 1)
    run.take_a_cut()
    for _ in range(TRIES_MAX):
        run.turn(PAUSE_MS)
    assert [attempt for attempt, _ in run.actors.attempts] == [1, 2]
    run.turn()
    assert run.take_a_cut() in run.told(Complete)


def test_a_claim_that_fails_is_made_again_and_counts_as_a_restart(monkeypatch: pytest.MonkeyPatch, store: Failing):
    store.answers = [(False, OSError(errno.ENOSPC, "No space left on device"))]
    run = Supervised(monkeypatch, store)
    run.begin()
    run.turn()
    assert len(run.actors.attempts) == run.supervisor.restarts.count == 1
    assert "the start of attempt 1 could not be recorded" in run.lines


def test_a_claim_whose_answer_is_lost_is_created_again(monkeypatch: pytest.MonkeyPatch, store: Failing):
    store.answers = [(True, UNKNOWN)]
    run = Supervised(monkeypatch, store)
    run.begin()
    assert run.actors.attempts == []
    run.turn(PAUSE_MS)
    assert [attempt for attempt, _ in run.actors.attempts] == [Attempt(1)]
    assert len(store.chain()) == 1


def test_a_chain_that_cannot_be_read_for_a_while_delays_a_restart(run: Supervised, store: Failing):
    store.unreadable = [EIO, EIO]
    run.lose_a_process()
    assert [attempt for attempt, _ in run.actors.attempts] == [1]
    assert "the chain of the job could not be read" in run.lines
    for _ in range(2):
        run.turn(PAUSE_MS)
    assert [attempt for attempt, _ in run.actors.attempts] == [1, 2]
    assert run.supervisor.restarts.count == 1


def test_a_chain_that_cannot_be_read_is_awaited_for_minutes_and_then_fails_the_run_with_both_reasons(
    run: Supervised, store: Failing
):
    store.unreadable = [EIO] * (READS_MAX + 1)
    run.lose_a_process()
    for _ in range(READS_MAX):
        assert not run.run.driver.is_over
        run.turn(PAUSE_MS)
    assert run.lines.count("the chain of the job could not be read") == 1 + READS_MAX / READS_TOLD
    said = str(run.run.story.error)
    assert "the process of actor" in said and "the chain of the job could not be read" in said


def test_a_cut_that_cannot_be_read_for_a_while_costs_a_restart_and_not_the_run(run: Supervised, store: Failing):
    epoch = run.take_a_cut()
    store.unreadable_cuts = [EIO]
    run.lose_a_process()
    run.turn()
    run.turn(run.supervisor.restarts.options.pause_ms)
    starts = [entry for _, entry in store.chain() if isinstance(entry, AttemptStart)]
    assert [(start.attempt, start.restored) for start in starts] == [(1, None), (2, epoch), (3, epoch)]
    assert [attempt for attempt, _ in run.actors.attempts] == [1, 3]
    assert f"epoch {epoch} could not be read" in run.lines


def test_a_cut_that_stop_when_cannot_read_ends_neither_the_run_nor_is_it_the_users_error(
    monkeypatch: pytest.MonkeyPatch, store: Failing
):
    run = Supervised(monkeypatch, store, stop_when=lambda view: True)
    run.begin()
    store.unreadable_cuts = [EIO]
    epoch = run.take_a_cut()
    assert not store.unreadable_cuts
    assert run.told(Complete) == [epoch]
    assert f"stop_when could not read the cut of epoch {epoch}" in run.lines
    assert run.run.driver.ending is None


def test_a_condition_that_raises_fails_the_run_and_is_named(monkeypatch: pytest.MonkeyPatch, store: Failing):
    def fails(view: CutView) -> bool:
        raise SystemExit(3)

    monkeypatch.setattr(supervising, "CutView", lambda *_: None)
    monkeypatch.setattr(store, "manifest", lambda epoch: SimpleNamespace(outline=None))
    monkeypatch.setattr(store, "files", lambda cut: None)
    run = Supervised(monkeypatch, store, stop_when=fails)
    run.begin()
    epoch = run.take_a_cut()
    error = run.run.story.error
    assert isinstance(error, UserFunctionError)
    assert f"stop_when of flow 'supervised' raised SystemExit: 3 at cut {epoch}" in str(error)
    assert ", in fails" in str(error) and "/engine/on_ray/" not in str(error)


def test_a_failure_after_a_takeover_is_reported_as_the_takeover_alone(run: Supervised, store: Failing):
    """The other run has removed the files of this one, whose absence is no failure to report."""
    store._entries.append(Numbered(2, AttemptStart(Attempt(2), None, claimant="another run")))
    run.lose_a_process()
    assert run.lines == ""
    assert isinstance(run.run.story.error, FencedError)


def test_the_slower_of_two_runs_that_begin_at_once_is_fenced_and_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, store: Failing, tmp_path: Path
):
    run = Supervised(monkeypatch, store, options=TaskOptions(job="supervised", root=str(tmp_path)))
    run.run.driver.begin(Beginning(anew=True))
    store._entries.append(Numbered(1, AttemptStart(Attempt(1), None, claimant="another run")))
    run.turn()
    assert isinstance(run.run.story.error, FencedError)
    assert str(tmp_path) in str(run.run.story.error) and "--resume latest" in str(run.run.story.error)


def test_a_failure_is_reported_though_the_chain_cannot_be_read(run: Supervised, store: Failing):
    store.unreadable = [EIO]
    run.lose_a_process()
    assert "attempt 1 failed: the process of actor actor died" in run.lines
    assert "the chain of the job could not be read" in run.lines
    assert run.run.story.error is None


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    "missing",
    [
        SnapshotCorruptError("state.parquet is missing"),
        UnknownTransactionError("shown.0 is neither staged nor published"),
    ],
)
def test_what_is_missing_because_another_run_has_the_job_is_told_as_that(
    run: Supervised, store: Failing, missing: Exception, is_lost: bool
):
    """The supervisor has slept; the other run has dropped the cut that is being restored, or rolled back output."""
    if is_lost:
        store.create(2, AttemptStart(Attempt(2), None, "another.supervisor"), {}, run.run.driver.deployment)
    run.actors.overs.append(("actor", run.supervisor.attempt, Outcome("broken", str(missing), error=missing)))
    run.turn()
    assert run.run.driver.ending is (RunEnding.FENCED if is_lost else RunEnding.FAILED)
    assert isinstance(run.run.story.error, FencedError if is_lost else type(missing))


def test_an_actor_that_leaves_an_attempt_without_an_order_fails_it(run: Supervised):
    """As when its process was told by a supervisor that woke up late: the run would go on without it, and never end."""
    attempt = run.supervisor.attempt
    run.actors.overs.append(("actor", attempt, Outcome("stopped")))
    run.turn()
    run.turn()
    assert run.supervisor.attempt > attempt
    assert run.run.story.restarts == 1


@pytest.mark.parametrize(
    ("successor", "is_superseded"),
    [
        pytest.param("{run}.successor", True, id="of this run"),
        pytest.param("another.supervisor", False, id="of another run, which has actors of its own"),
        pytest.param(None, False, id="none"),
    ],
)
def test_actors_are_left_to_a_successor_of_the_same_run_alone(
    run: Supervised, store: Failing, successor: str | None, is_superseded: bool
):
    if successor is not None:
        claimant = successor.format(run=run_of(run.run.common.claimant))
        store.create(2, AttemptStart(Attempt(2), None, claimant), {}, run.run.driver.deployment)
    run.run.is_cancelled = True
    run.run.run()
    assert run.actors.crew.is_superseded is is_superseded


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_run_that_goes_back_in_vain_does_not_change_which_cut_is_latest(
    monkeypatch: pytest.MonkeyPatch, store: Failing, is_lost: bool
):
    deployment = Supervised(monkeypatch).run.spec.deployment
    cuts = [Manifest(Epoch(epoch), Attempt(1), Mode.ALIGNED, {}, {}) for epoch in (3, 5)]
    for number, entry in enumerate([AttemptStart(Attempt(1), None), *cuts], start=1):
        store.create(number, entry, {}, deployment)
    store.unreadable_cuts = [StoreError("cut 3 is of another version")]
    run = Supervised(monkeypatch, store, resume_from=Epoch(3), run=RunOptions(resume=3)).run
    if is_lost:
        store.answers = [(True, None), (False, EIO)]
    assert run.run().state == "failed"
    (*_, last) = store.chain()
    assert isinstance(last.entry, AttemptStart) and last.entry.restored == (3 if is_lost else 5)
    assert any("by the number" in line for line in run.story.lines) == is_lost
