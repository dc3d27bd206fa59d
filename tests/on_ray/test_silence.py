"""An actor that says nothing is reported with what it is doing; what happens then is an option."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Job, Range, start
from engine.on_ray.run_options import RunOptions
from engine.on_ray.supervisor.silence import Doing, Silences, place_of
from tests.on_ray.flows import expect, trips, trips_made, until
from tests.on_ray.supervised import Supervised

LIMIT_S = 1.0


def test_an_actor_that_is_heard_is_not_silent():
    silences = Silences(limit_ms=1_000)
    silences.begin(["a", "b"], now_ms=0)
    silences.on_heard("a", 900)
    assert [silent.actor for silent in silences.due(1_500)] == ["b"]
    assert silences.longest_ms(1_500) == 1_500
    assert [silent.actor for silent in silences.due(2_000)] == ["a"]


def test_silence_is_reported_again_whenever_it_has_doubled():
    silences = Silences(limit_ms=1_000)
    silences.begin(["a"], now_ms=0)
    reported = [now_ms for now_ms in range(0, 20_000, 100) if silences.due(now_ms)]
    assert reported == [1_000, 2_000, 4_000, 8_000, 16_000]


def test_who_has_left_an_attempt_is_silent_no_more():
    silences = Silences(limit_ms=1_000)
    silences.begin(["a"], now_ms=0)
    silences.begin((), now_ms=500)
    silences.on_heard("a", 600)
    assert silences.due(9_000) == []


def test_a_thread_outside_of_any_operator_is_placed_by_its_function():
    begun, done = threading.Event(), threading.Event()

    def waiting() -> None:
        begun.set()
        done.wait()

    thread = threading.Thread(target=waiting)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    assert place_of(thread.ident).told.startswith("it is in ")
    done.set()
    thread.join()
    assert place_of(thread.ident) == Doing("it has left the attempt")


def hanging_once(marker: Path):
    def hang_once(number: int) -> int:
        if number == 200 and not marker.exists():
            marker.touch()
            while True:
                pass
        return number

    return hang_once


def numbers_through(function: Any) -> Flow:
    flow = Flow("silent")
    flow.read(Range(400), name="numbers").rebalance().map(function, name="step", parallelism=1).write(
        Collect(), name="done"
    )
    return flow


@pytest.mark.parametrize(
    ("doing", "attempts"),
    [
        (Doing("operator 'shown' is busy: it is in on_start", is_operator=True), [1, 2]),
        (Doing("it is in Backedge itself, in read of stored.py"), [1]),
    ],
)
def test_an_actor_that_is_silent_while_it_is_restored_is_named_and_only_a_function_is_restarted(
    monkeypatch: pytest.MonkeyPatch, doing: Doing, attempts: list[int]
):
    run = Supervised(monkeypatch, run=RunOptions(on_silence="restart", silence_timeout=LIMIT_S))
    run.run.driver.begin()
    run.turn()
    run.actors.waiting.clear()  # the actor does not say that its tasks are restored
    run.actors.crew.doing = doing
    run.turn(int(LIMIT_S * 1000))
    run.turn()
    assert f"said nothing for 1 s: {doing.told}" in run.lines
    assert [attempt for attempt, _ in run.actors.attempts] == attempts


def lines_of(job: Job, word: str) -> list[str]:
    return [line for line in job.status().lines if word in line]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_function_that_never_returns_is_named_without_snapshots_too(tmp_path: Path):
    job = start(
        numbers_through(hanging_once(tmp_path / "hung")), actors="task", silence_timeout=LIMIT_S, progress=False
    )
    until(job, lambda story: any("has said nothing" in line for line in story.lines), "the silence is reported")
    (told,) = lines_of(job, "has said nothing")
    assert "actor step/0 has said nothing for 1 s: operator 'step' is busy: it is in hang_once, " in told
    assert f"{__file__}:" in told
    job.cancel()
    assert job.wait().state == "cancelled"


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_function_that_hangs_once_is_over_after_a_restart(tmp_path: Path):
    flow = numbers_through(hanging_once(tmp_path / "hung"))
    options: dict[str, Any] = {"silence_timeout": LIMIT_S, "on_silence": "restart", "every": 0.1}
    job = start(flow, snapshots=tmp_path / "cuts", actors="task", progress=False, **options)
    result = job.wait()
    assert sorted(result.outputs["done"]) == list(range(400))
    assert (tmp_path / "hung").exists() and len(result.restores) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("on_silence", ["report", "restart"])
def test_a_process_that_is_stopped_is_reported_and_replaced_if_wanted(tmp_path: Path, on_silence: Any):
    flow = trips(count=300, rate=100)
    options: dict[str, Any] = {"silence_timeout": LIMIT_S, "on_silence": on_silence, "every": 0.2}
    job = start(flow, snapshots=tmp_path, actors="task", progress=False, **options)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    pid = job.status().pids["grow/0"]
    os.kill(pid, signal.SIGSTOP)
    until(job, lambda story: any("its process does not answer" in line for line in story.lines), "it is reported")
    if on_silence == "report":
        os.kill(pid, signal.SIGCONT)
    result = job.wait()
    expect(result, trips_made(300))
    assert len(result.restores) == (on_silence == "restart")
    if on_silence == "restart":
        assert not is_running(pid)


def is_running(pid: int) -> bool:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.05)
    return True
