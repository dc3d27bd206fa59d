"""An actor that says nothing is reported with what it is doing; what happens then is an option."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Range, run, start
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.supervisor.silence import Doing, Silences, place_of
from tests.gates import Gate
from tests.on_ray.flows import expect, trips, trips_made, until
from tests.on_ray.leftovers import has_ended
from tests.on_ray.standing_still import let_stand_still
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


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_function_that_hangs_once_is_named_and_over_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flow = numbers_through(hanging_once(tmp_path / "hung"))
    options: dict[str, Any] = {"silence_timeout": LIMIT_S, "on_silence": "restart", "every": 0.1}
    result = run(flow, snapshots=tmp_path / "cuts", actors="task", **options)
    assert sorted(result.outputs["done"]) == list(range(400))
    assert (tmp_path / "hung").exists() and result.restores
    told = "actor step/0 has said nothing for 1 s: operator 'step' is busy: it is in hang_once, "
    assert any(told in line and f"{__file__}:" in line for line in capsys.readouterr().err.splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_process_that_is_stopped_is_reported_and_replaced_if_wanted(tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    options: dict[str, Any] = {"silence_timeout": LIMIT_S, "on_silence": "restart", "every": 0.2, "actors": "task"}
    job = start(trips(count=100, gate=gate), snapshots=tmp_path / "cuts", progress=False, **options)
    pid = until(job, lambda story: story.last_epoch, "a cut is complete").pids["grow/0"]
    let_stand_still([pid])
    later = until(job, lambda story: story.restarts and story.state == "running", "it is replaced")
    assert any("its process does not answer" in line for line in later.lines) and has_ended(pid)
    gate.open()
    expect(job.wait(), trips_made(100))
