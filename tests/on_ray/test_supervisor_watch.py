"""Between two attempts, an actor has a supervisor replaced that answers nothing."""

from __future__ import annotations

from threading import Event
from threading import enumerate as living_threads
from types import SimpleNamespace
from typing import Any

import pytest

from engine.on_ray.actor import supervisor_watch
from engine.on_ray.actor.supervisor_watch import PARTS, SupervisorWatch
from engine.on_ray.transport.control_messages import Leader

DEADLINE_S = 10.0
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
    assert supervisor.is_enough.wait(DEADLINE_S)
    assert supervisor.looks_left == 1_000 - PARTS
    assert supervisor.replaced == [supervisor]


def test_a_supervisor_that_answers_in_time_is_left_alone_and_watched_until_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
):
    supervisor = Silent(monkeypatch, nth=PARTS, looks=10 * PARTS)
    watch = SupervisorWatch(Leader(supervisor, silence_ms=0))
    thread = thread_of_watch()
    assert supervisor.is_enough.wait(DEADLINE_S)
    watch.end()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert supervisor.replaced == []
