"""An actor has a silent supervisor replaced, and ends with one that is gone for good."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from threading import enumerate as living_threads
from types import SimpleNamespace
from typing import Any

import pytest

from backedge.engine.on_ray.actor import supervisor_watch
from backedge.engine.on_ray.actor.supervisor_watch import GONE_LOOKS, PARTS, SupervisorWatch, end_with, replace_silent
from backedge.engine.on_ray.cluster import ActorName, RunSupervisor
from backedge.engine.on_ray.transport.control_messages import Leader
from tests.gates import HANG_S

NAME = "supervisor watch"


class Silent:
    """A supervisor that answers every `nth` look at it, or never: 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, looks: int) -> None:
        self.nth, self.looks_left = nth, looks
        self.replaced: list[Any] = []
        self.is_enough = Event()
        self.about = SimpleNamespace(remote=object)
        monkeypatch.setattr(supervisor_watch, "PART_S_MIN", 0.001)
        monkeypatch.setattr(supervisor_watch, "cluster", SimpleNamespace(is_over=self._is_over, replace=self._replace))

    def _is_over(self, asked: object, timeout_s: float) -> bool:
        self.looks_left -= 1
        if self.looks_left == 0:
            self.is_enough.set()
        return self.nth > 0 and self.looks_left % self.nth == 0

    def _replace(self, actor: Any) -> None:
        self.replaced.append(actor)
        self.is_enough.set()


def thread_of_watch() -> Any:
    (found,) = [thread for thread in living_threads() if thread.name == NAME]
    return found


def test_a_supervisor_that_never_answers_is_replaced_once(monkeypatch: pytest.MonkeyPatch):
    supervisor = Silent(monkeypatch, nth=0, looks=1_000)
    SupervisorWatch(Leader(supervisor, silence_ms=0))
    assert supervisor.is_enough.wait(HANG_S)
    assert supervisor.looks_left == 1_000 - PARTS
    assert supervisor.replaced == [supervisor]


def test_a_supervisor_that_answers_in_time_is_left_alone_and_watched_until_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
):
    supervisor = Silent(monkeypatch, nth=PARTS, looks=10 * PARTS)
    watch = SupervisorWatch(Leader(supervisor, silence_ms=0))
    thread = thread_of_watch()
    assert supervisor.is_enough.wait(HANG_S)
    watch.end()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert supervisor.replaced == []


@pytest.mark.parametrize(
    ("is_over", "succeeded", "is_replaced"),
    [
        pytest.param(False, False, True, id="stopped"),
        pytest.param(True, True, True, id="answers Ray and not its actors"),
        pytest.param(True, False, False, id="dead, and started again by Ray"),
    ],
)
def test_a_supervisor_that_ray_is_starting_again_is_not_ended_for_its_silence(
    monkeypatch: pytest.MonkeyPatch, is_over: bool, succeeded: bool, is_replaced: bool
):
    replaced: list[Any] = []
    supervisor = SimpleNamespace(about=SimpleNamespace(remote=object))
    known = SimpleNamespace(is_over=lambda *_: is_over, succeeded=lambda _: succeeded, replace=replaced.append)
    monkeypatch.setattr(supervisor_watch, "cluster", known)
    replace_silent(Leader(supervisor, silence_ms=0))
    assert replaced == [supervisor] * is_replaced


class Found:
    """A supervisor of this name: of our run, of the next one, or one that does not answer yet."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.leads = self

    def remote(self, run: str) -> bool | None:
        if self.run == "starts":
            self.run = run
            return None
        return run == self.run


class NoAnswerOfRayError(Exception):
    """Stands for an error of Ray."""


OURS, NEXT, STARTS = Found("77aa"), Found("88bb"), Found("starts")


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([None] * GONE_LOOKS, id="never there"),
        pytest.param([OURS, OURS, *[None] * GONE_LOOKS], id="gone"),
        pytest.param([OURS, *[NEXT] * GONE_LOOKS], id="its name belongs to the next run"),
        pytest.param([NEXT] * GONE_LOOKS, id="its name belonged to the next run before this process looked"),
        pytest.param([STARTS, STARTS, *[None] * GONE_LOOKS], id="it answers when it has started"),
        pytest.param([*[None] * (GONE_LOOKS - 1), OURS, *[None] * GONE_LOOKS], id="late"),
        pytest.param([OURS, *[NoAnswerOfRayError()] * 9, *[None] * GONE_LOOKS], id="no answer of the cluster"),
    ],
)
def test_an_actor_of_a_detached_run_ends_once_its_supervisor_is_gone(monkeypatch: pytest.MonkeyPatch, looks: list[Any]):
    left: Iterator[Any] = iter(looks)
    has_ended = Event()

    def find_actor(name: str, space: str) -> Any:
        assert (name, space) == ("trips", "backedge")
        found = next(left)
        if isinstance(found, NoAnswerOfRayError):
            raise found
        return found

    known = SimpleNamespace(
        find_actor=find_actor,
        is_over=lambda asked, timeout_s: asked is not None,
        get=lambda asked: asked,
        end_own_actor=has_ended.set,
        RayError=NoAnswerOfRayError,
    )
    monkeypatch.setattr(supervisor_watch, "cluster", known)
    monkeypatch.setattr(supervisor_watch, "GONE_LOOK_S", 0.001)
    end_with(RunSupervisor(ActorName("trips", "backedge"), "77aa"))
    assert has_ended.wait(HANG_S)
    assert list(left) == [], "not before"
