"""Restarts that fail one after another are spread out, and only those of the recent past count against the limit."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.recovery.protocol.orders import Entry, FailRun, Fenced, Numbered, PauseRestart
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.supervisor import Stage, Supervisor
from tests.protocol.chains import manifest, start

SECOND_MS = 1_000


class Failing:
    """A run whose attempts fail again and again; it claims them in a chain of its own."""

    def __init__(self, seed: int = 0, **options: int | None) -> None:
        self.supervisor = Supervisor(f"run {seed}", RestartOptions(**options))  # type: ignore[arg-type]
        self.chain: list[Numbered] = []
        self.now_ms = 0
        self._claim(self.supervisor.begin([]))

    def _claim(self, orders: list[Any]) -> None:
        (append,) = orders
        self._append(append.entry)

    def _append(self, entry: Entry) -> None:
        self.chain.append(Numbered(len(self.chain) + 1, entry))
        self.supervisor.on_appended(entry)

    def complete(self, epoch: int) -> None:
        self._append(manifest(epoch, self.supervisor.attempt))

    def fail(self) -> int | None:
        """One failure; the pause before the next attempt, which is then claimed. None if the run has failed."""
        (order,) = self.supervisor.on_failure("no space left", self.chain, self.now_ms)
        if isinstance(order, FailRun):
            return None
        if not isinstance(order, PauseRestart):
            self._claim([order])
            return 0
        began_ms = self.now_ms
        while not self.supervisor.is_due(self.now_ms):
            self.now_ms += 1
        assert self.now_ms - began_ms == order.pause_ms
        self._claim(list(self.supervisor.resume(self.chain)))
        return order.pause_ms


def test_the_first_restart_is_immediate_and_each_one_after_it_waits_about_twice_as_long():
    run = Failing()
    pauses = [run.fail() for _ in range(10)]
    assert pauses[0] == 0
    for doublings, pause_ms in enumerate(pauses[1:]):
        longest_ms = min(100 * 2**doublings, 30_000)
        assert pause_ms is not None and longest_ms / 2 <= pause_ms <= longest_ms


def test_runs_that_fail_together_begin_again_at_different_times():
    runs = [Failing(seed) for seed in range(20)]
    for _ in range(8):
        for run in runs:
            run.fail()
    assert len({run.now_ms for run in runs}) > 15


def test_a_complete_cut_ends_the_row_of_failures():
    run = Failing()
    assert [run.fail() for _ in range(4)][-1]
    run.complete(1)
    assert run.fail() == 0


def test_ten_deaths_in_a_month_do_not_end_a_run():
    run = Failing(restarts_max=2, window_ms=60 * SECOND_MS)
    for epoch in range(1, 11):
        assert run.fail() == 0
        run.complete(epoch)
        run.now_ms += 31 * SECOND_MS


@pytest.mark.parametrize(("window_ms", "between_ms"), [(60 * SECOND_MS, 10 * SECOND_MS), (None, 10**9)])
def test_more_deaths_than_allowed_within_the_window_end_it_and_without_one_none_is_forgotten(
    window_ms: int | None, between_ms: int
):
    run = Failing(restarts_max=2, window_ms=window_ms)
    for epoch in (1, 2):
        assert run.fail() == 0
        run.complete(epoch)
        run.now_ms += between_ms
    assert run.fail() is None
    assert run.supervisor.stage is Stage.OVER


def test_a_fixed_pause_comes_before_each_restart_the_first_one_too():
    run = Failing(is_exponential=False, pause_ms=250)
    assert [run.fail() for _ in range(5)] == [250] * 5


def test_a_run_that_is_taken_over_during_a_pause_does_not_take_the_job_back():
    run = Failing()
    run.fail()
    assert isinstance(run.supervisor.on_failure("no space left", run.chain, run.now_ms)[0], PauseRestart)
    later = Numbered(len(run.chain) + 1, start(9))
    assert run.supervisor.resume([*run.chain, later]) == [Fenced(later.number)]
