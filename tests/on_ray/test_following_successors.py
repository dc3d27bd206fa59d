"""A process that follows a run adds up what its supervisors report, each once, whatever it hears of first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.on_ray.supervisor.run_story import Story


@dataclass
class Method:
    """A method of an actor, and a call of it. The answer is found out when somebody waits for it."""

    answer: Callable[..., Any]
    is_over: Callable[[], bool] = lambda: True
    arguments: tuple[Any, ...] = ()

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, *arguments: Any) -> Method:
        return replace(self, arguments=arguments)


@dataclass
class Supervisors:
    """A run whose supervisor dies after a number of looks; Ray starts the successor before it reports the death."""

    looks_left: list[int]
    stories: list[Story]
    is_over: bool = False
    deaths_told: int = 0

    @property
    def leading(self) -> int:
        return next((index for index, left in enumerate(self.looks_left) if left), len(self.stories) - 1)

    @property
    def look(self) -> Method:
        return Method(self._look)

    @property
    def run(self) -> Method:
        of = self.deaths_told
        return Method(lambda: self._end_of(of), lambda: self.is_over)

    def _look(self, told_from: int, printed_from: int) -> Story:
        leading = self.leading
        self.looks_left[leading] = max(0, self.looks_left[leading] - 1)
        self.is_over = not any(self.looks_left)
        story = self.stories[leading]
        return structs.replace(story, told=story.told.since(told_from))

    def _end_of(self, supervisor: int) -> Story:
        if supervisor < len(self.stories) - 1:
            self.deaths_told += 1
            raise cluster.ActorUnavailableError("its process died", None)
        return self.stories[-1]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Supervisors], Job]:
    """A process that follows these supervisors. It hears of deaths only after the last look."""

    def follow(supervisors: Supervisors) -> Job:
        monkeypatch.setattr(cluster, "get", lambda call, *_: call.answer(*call.arguments))
        monkeypatch.setattr(cluster, "is_over", lambda call, _: call.is_over())
        monkeypatch.setattr(cluster, "kill", lambda _: None)
        return Job(supervisors, "two supervisors", progress=True)

    return follow


def of_supervisor(name: str, *, snapshots: int) -> Story:
    story = Story("job", snapshots=snapshots)
    story.say(f"{name} began")
    story.say(f"{name} went on")
    story.restores.append({"epoch": snapshots, "attempt": snapshots, "in_loop_records": 0, "seconds": None})
    story.finish("finished")
    return story


def test_a_successor_that_answers_before_the_death_is_known_counts_once(
    follow: Callable[[Supervisors], Job], capsys: pytest.CaptureFixture[str]
):
    supervisors = Supervisors([2, 2], [of_supervisor("first", snapshots=3), of_supervisor("second", snapshots=5)])
    job = follow(supervisors)
    result = job.wait()
    assert supervisors.deaths_told == 1
    assert result.snapshots == 8
    assert [restore["epoch"] for restore in result.restores] == [3, 5]
    told = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["two supervisors", "first began", "first went on", "second began", "second went on"]


def test_a_successor_that_was_never_looked_at_counts_once(follow: Callable[[Supervisors], Job]):
    supervisors = Supervisors([1, 0], [of_supervisor("first", snapshots=3), of_supervisor("second", snapshots=5)])
    assert follow(supervisors).wait().snapshots == 8


def test_a_late_report_of_the_supervisor_before_changes_nothing(follow: Callable[[Supervisors], Job]):
    first, second = of_supervisor("first", snapshots=3), of_supervisor("second", snapshots=5)
    job = follow(Supervisors([0, 9], [first, second]))
    assert job._note(first) and job._note(second)
    assert not job._note(first)
    assert job.status().snapshots == 8


def test_a_process_that_follows_late_is_told_how_many_messages_were_not_kept(
    follow: Callable[[Supervisors], Job], capsys: pytest.CaptureFixture[str]
):
    story = of_supervisor("first", snapshots=1)
    story.told.forget_before(1)
    follow(Supervisors([0], [story])).wait()
    told = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["two supervisors", "1 message before these were not kept", "first went on"]


def test_a_run_whose_successor_another_thread_has_followed_is_not_over(
    follow: Callable[[Supervisors], Job], monkeypatch: pytest.MonkeyPatch
):
    """While one thread waits for the end of a run, another asks the dead supervisor, and hears of its death first."""
    supervisors = Supervisors([9, 9], [of_supervisor("first", snapshots=3), of_supervisor("second", snapshots=5)])
    job = follow(supervisors)
    first, alone = job._over, cluster.is_over
    supervisors.is_over = True

    def beside_another(call: Any, timeout_s: float) -> bool:
        monkeypatch.setattr(cluster, "is_over", alone)
        was_over = alone(call, timeout_s)
        assert job._follow_successor(first)
        supervisors.is_over = False
        return was_over

    monkeypatch.setattr(cluster, "is_over", beside_another)
    assert not job._is_over(0)
    assert supervisors.deaths_told == 1


class Silent:
    """A supervisor that answers once, and is then silent for a number of looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.answered = 0
        self.run = Method(lambda: None, lambda: False)
        self.look = Method(self._look, self._answers)

    def _look(self, *_: int) -> Story:
        self.answered += 1
        return Story("job")

    def _answers(self) -> bool:
        if self.answered == 0:
            return True
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(("looks", "may_replace", "replaced"), [(100, True, 1), (79, True, 0), (100, False, 0)])
def test_a_supervisor_that_is_silent_for_twice_the_timeout_is_replaced_once(
    monkeypatch: pytest.MonkeyPatch, looks: int, may_replace: bool, replaced: int
):
    supervisor = Silent(looks)
    kills: list[object] = []
    monkeypatch.setattr(cluster, "get", lambda call, *_: call.answer(*call.arguments))
    monkeypatch.setattr(cluster, "is_over", lambda call, _: call.is_over())
    monkeypatch.setattr(cluster, "replace", kills.append)
    job = Job(supervisor, "one supervisor", progress=False, silence_s=10.0, may_replace=may_replace)
    for _ in range(2):
        job.status()
    assert kills == [supervisor] * replaced
