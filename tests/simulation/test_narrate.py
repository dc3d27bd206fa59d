"""narrate tells what a seed did; the example that `make demo` runs shows a loop log at work, and its lack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from backedge import Collect, Flow, Range, ScheduleError, narrate
from backedge.engine.simulation.telling import ToldWorld, tell_steps
from backedge.graphs.ids import TaskId
from examples.cyclic import retries

ROOT = Path(__file__).resolve().parents[2]


def test_a_good_run_is_told_from_its_beginning_to_its_end():
    run = narrate(retries.flow(), seed=3, crashes=0)
    assert run.turns[0] == "attempt 1 begins from nothing"
    assert run.turns[-1] == "the run is finished"
    assert (run.problem, run.lacking, run.surplus, run.restores) == (None, {}, {}, 0)
    assert len(run.expected["done"]) == 5


def test_a_run_that_simulate_refuses_is_told_instead():
    seen: list[int] = []

    def count(number: int) -> tuple[int, int]:
        seen.append(number)
        return number, len(seen)

    flow = Flow("counted")
    flow.read(Range(2), name="numbers").map(count, name="count").write(Collect(), name="out")
    run = narrate(flow, seed=1, crashes=0)
    assert run.lacking == {"out": [(0, 1), (1, 2)]}
    assert run.surplus == {"out": [(0, 3), (1, 4)]}


@pytest.mark.slow
def test_without_the_loop_log_orders_are_lost_and_the_checker_says_why():
    run, without = retries.telling_runs()
    assert (run.problem, run.lacking) == (None, {}) and run.restores_with_log
    assert without.lacking and not without.surplus
    assert "belong in the log; it holds []" in str(without.problem)


def test_every_step_of_a_schedule_has_words():
    steps = {name.removeprefix("_do_") for name in dir(ToldWorld) if name.startswith("_do_")}
    assert "call" in steps
    for step in steps - {"crash"}:
        assert tell_steps([(step, TaskId("ask", 0), 7)], retries.flow().plan(), {}), step


@pytest.mark.slow
def test_the_example_prints_graph_story_and_loss():
    command = [sys.executable, "-W", "error", "-m", "examples.cyclic.retries"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert 25 <= len(lines) <= 42
    assert any("==> attempts, by key id, the back edge of again" in line for line in lines)
    assert re.search(r"begins from cut \d+, which replays \d+ in loop 'again'", done.stdout)
    assert "nothing lost, nothing doubled" in done.stdout
    assert re.search(r"Lost: \w+ at try \d", done.stdout)
    assert ScheduleError.__name__ not in done.stdout
