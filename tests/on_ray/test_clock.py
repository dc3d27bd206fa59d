"""Timers and progress go on when the system's clock is set back, and a timer in a cut means the same afterwards."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Range
from backedge.engine.on_ray.actor.run_clock import RunClock
from backedge.engine.on_ray.transport.control_messages import Progress
from backedge.engine.state.split_own_state import move_whole
from backedge.graphs.expansion import expand
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.restored import TaskRestore
from tests.on_ray.in_process import Attending, options
from tests.runtime.tasks import Tasks

HOUR_MS = 3_600_000


class Hands:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.system_ms = 1_000_000_000
        self.monotonic_ms = 77

    def pass_by(self, ms: int) -> None:
        self.system_ms += ms
        self.monotonic_ms += ms

    def clock(self) -> RunClock:
        return RunClock(lambda: self.system_ms, lambda: self.monotonic_ms * 1_000_000)


def now_ms(clock: RunClock) -> int:
    """The time of the next turn."""
    clock.begin_turn()
    return clock.now_ms


def test_it_starts_at_the_systems_time_and_takes_no_notice_when_that_is_set():
    hands = Hands()
    clock = hands.clock()
    assert now_ms(clock) == 1_000_000_000
    hands.pass_by(10)
    assert clock.now_ms == 1_000_000_000, "it stands still within a turn"
    assert now_ms(clock) == 1_000_000_010
    for step_ms in (-HOUR_MS, 2 * HOUR_MS):
        hands.system_ms += step_ms
        before_ms = now_ms(clock)
        hands.pass_by(5)
        assert now_ms(clock) == before_ms + 5


@pytest.mark.parametrize(("passed_ms", "set_ms", "later_ms"), [(0, -HOUR_MS, 0), (HOUR_MS, 0, HOUR_MS)])
def test_the_next_process_goes_on_where_the_cut_was_taken_or_later_if_the_run_was_down(
    passed_ms: int, set_ms: int, later_ms: int
):
    """Though the system's clock was set back. A timer for 10 s ahead is due after 10 s, or at once."""
    hands = Hands()
    captured_ms = now_ms(hands.clock())
    hands.pass_by(passed_ms)
    hands.system_ms += set_ms
    clock = hands.clock()
    clock.at_least(captured_ms)
    assert now_ms(clock) == captured_ms + later_ms
    hands.pass_by(10_000)
    assert now_ms(clock) == captured_ms + later_ms + 10_000


class Later:
    """Emits each record some time after it came."""

    def on_record(self, ctx: Any, value: int) -> None:
        ctx.state.set(value)
        ctx.set_timer(ctx.now + 300)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit(ctx.state.get())


def waiting() -> Flow:
    flow = Flow("waiting")
    numbers = flow.read(Range(10), name="numbers").key_by(abs)
    numbers.process(Later, name="later").rebalance().write(Collect(), name="kept")
    return flow


@pytest.mark.slow
def test_timers_fire_and_progress_is_told_though_the_systems_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    set_back_ns, system_ns = [0], time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: system_ns() - set_back_ns[0])
    with Attending(waiting(), options=options()) as run:
        run.begin()
        run.until(
            lambda: bool(run.loops["later/0"].tasks.drivers[TaskId("later", 0)].runtime.next_timer_ms), "a timer is set"
        )
        set_back_ns[0] = HOUR_MS * 1_000_000
        told = len([report for _, report in run.reports if isinstance(report, Progress)])
        run.until(run.have_ended, "all have ended")
        run.complete(1)
        run.until(lambda: len(run.published()) == 10, "all is published")
        run.until(
            lambda: len([report for _, report in run.reports if isinstance(report, Progress)]) > told + 3, "progress"
        )


def test_a_cut_says_when_its_timers_were_set_and_an_actor_goes_on_from_there():
    ahead_ms = time.time_ns() // 1_000_000 + HOUR_MS
    flow = waiting()
    tasks = Tasks(flow)
    tasks.feed("later", [5], now_ms=ahead_ms)
    state = tasks.capture()[TaskId("later", 0)]
    whole = state["later"].whole
    assert whole is not None
    assert pickle.loads(whole)["now_ms"] == ahead_ms
    moved = move_whole(flow.plan().operators["later"], [whole, None], 3)
    assert [pickle.loads(part)["now_ms"] for part in moved if part is not None] == [ahead_ms] * 3

    restored = {task.id: None for task in expand(flow.plan()).tasks.values()}
    parts: dict[TaskId, Any] = {**restored, TaskId("later", 0): TaskRestore(operators=state)}
    with Attending(flow, options=options(), parts=parts) as run:
        run.begin()
        run.until(lambda: "later/0" in run.loops and bool(run.loops["later/0"].tasks.drivers), "it is set up")
        assert run.loops["later/0"].clock.now_ms >= ahead_ms
        run.until(run.have_ended, "its timer has fired, and all have ended")


def test_a_state_without_timers_holds_no_time():
    flow = Flow("plain")

    class Keep:
        def on_record(self, ctx: Any, value: int) -> None:
            ctx.state.set(value)

    flow.read(Items([]), name="numbers").key_by(abs).process(Keep, name="keep").rebalance().write(Collect())
    tasks = Tasks(flow)
    tasks.feed("keep", [5], now_ms=7)
    assert tasks.capture()[TaskId("keep", 0)]["keep"].whole is None
