"""What a run tells is read from another thread while it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.supervisor.status_keeper import WATCHED_MS
from backedge.graphs.expansion import resized
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.stores.run_status import RunStatus
from tests.on_ray.supervised import Supervised


class ReadMeanwhile(Mapping[str, int]):
    """Processes that note what a driver would see while they are put down."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.seen: list[tuple[str, dict[str, int]]] = []

    def __getitem__(self, actor: str) -> int:
        self.seen.append((self.story.state, self.story.pids))
        return 22

    def __iter__(self) -> Iterator[str]:
        return iter(["grow/0"])

    def __len__(self) -> int:
        return 1


def test_a_restore_that_was_killed_itself_is_told_without_seconds_and_its_time_counts_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
):
    clock_s = iter(range(100, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))
    story = Story("rank", attempt=1)
    story.on_restart("a process died")
    story.on_attempt(Attempt(2), Epoch(3), 0)
    story.on_restart("another died")
    story.on_attempt(Attempt(3), Epoch(3), 5)
    assert [restore["seconds"] for restore in story.restores] == [None, None]
    story.on_running({"grow/0": 1})
    assert [restore["seconds"] for restore in story.restores] == [None, 10]


def test_a_run_is_as_long_as_it_was_though_the_systems_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    story = Story("rank")
    assert 0 <= story.seconds < 60
    story.finish("finished")
    assert 0 <= story.seconds < 60


def test_who_sees_a_run_that_has_recovered_sees_its_new_processes():
    story = Story("rank", attempt=1, pids={"grow/0": 11})
    story.on_restart("the process of actor grow/0 died")
    found = ReadMeanwhile(story)
    story.on_running(found)
    assert found.seen == [("recovering", {"grow/0": 11})]
    assert (story.state, story.pids) == ("running", {"grow/0": 22})


def test_a_run_that_goes_on_with_the_tasks_of_a_rescale_says_so_once(monkeypatch: pytest.MonkeyPatch):
    bench = Supervised(monkeypatch)
    bench.run.driver.deployment = resized(bench.run.spec.deployment, {"numbers": 3, "shown": 1})
    bench.begin()
    bench.lose_a_process()
    bench.turn(10_000)
    bench.turn()
    assert bench.supervisor.attempt == 2
    assert bench.lines.count("the run goes on with the tasks that a rescale has given it: numbers has 3\n") == 1


def test_a_run_with_the_tasks_of_its_options_has_nothing_to_say_of_them(monkeypatch: pytest.MonkeyPatch):
    bench = Supervised(monkeypatch)
    bench.begin()
    assert "rescale" not in bench.lines


def test_a_watcher_that_fails_is_left_out_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []

    class Wrong:
        def on_status(self, status: RunStatus) -> None:
            raise UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range(128)")

    class Right:
        def on_status(self, status: RunStatus) -> None:
            told.append(status.state)

    supervised = Supervised(monkeypatch)
    supervised.run.statuses.watchers += [Wrong(), Right()]
    supervised.begin()
    supervised.turn(WATCHED_MS)
    supervised.turn(WATCHED_MS)
    assert len(told) >= 2
    said = [line for line in supervised.run.story.lines if "Wrong has failed, and is left out from now on" in line]
    assert len(said) == 1
