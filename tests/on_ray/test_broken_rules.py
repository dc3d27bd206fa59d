"""A rule that tasks break on purpose shows what it is for: the same kill that loses nothing then loses records."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from backedge import BadOptionError
from tests.gates import HANG_S, Gate
from tests.on_ray.flows import begin, finish, trips, trips_made


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_without_a_loop_log_a_killed_run_loses_what_was_in_the_loop(tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    flow, kills = trips(count=100, gate=gate), ["head@epoch=3"]
    options = {"every": 0.2, "actors": "slice", "kills": kills, "broken_rule": "no-loop-log"}
    _, result = finish(flow, gate=gate, snapshots=tmp_path / "cuts", **options)
    found, wanted = Counter(result.outputs["done"]), Counter(trips_made(100))
    assert wanted - found == Counter([(0, 5)]), "what was in the loop at the cut is in no snapshot"
    assert not found - wanted
    assert [restore["in_loop_records"] for restore in result.restores] == [0]


@pytest.mark.parametrize("rule", ["gravity", "acknowledged-before-durable", "wall-clock-capture"])
def test_a_rule_that_tasks_cannot_break_is_refused_before_anything_starts(rule: str):
    with pytest.raises(BadOptionError, match=rf"broken_rule='{rule}' is not a rule .*; there are no-loop-log, "):
        begin(trips(count=1), broken_rule=rule)


@pytest.mark.slow
def test_what_runs_on_ray_does_not_load_the_simulator():
    code = (
        "import sys, backedge.engine.on_ray.actor.task_host, backedge.engine.on_ray.supervisor.supervising;"
        "print('backedge.engine.simulation' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert told.stdout == "False\n"


@pytest.mark.slow
def test_starting_an_actor_loads_nothing_of_a_run():
    """Otherwise the processes of the tasks start only after the supervisor has loaded its run."""
    code = (
        "import sys, backedge.engine.on_ray.supervisor.supervisor_actor;"
        "print({'backedge.graphs', 'backedge.recovery', 'zmq'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert told.stdout == "set()\n"
