"""Savepoints and stops of a real run always return a result or raise an error that says why there is none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from backedge import RequestFailedError, start
from backedge.engine.on_ray import cluster
from tests.gates import HANG_S, Gate
from tests.on_ray.flows import expect, finish, trips, trips_made, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_a_savepoint_and_a_stop_that_are_requested_during_a_restart_are_taken_after_it(tmp_path: Path):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=50, gate=gate)
    job = start(flow, snapshots=cuts, every=0.1, actors="slice", progress=False)
    story = until(job, lambda story: story.snapshots >= 1, "a cut is complete")
    os.kill(story.pids["slice-0"], signal.SIGKILL)
    first = job.savepoint("first")
    until(job, lambda story: story.restarts == 1 and story.state == "running", "all tasks run again")
    os.kill(job.status().pids["slice-0"], signal.SIGKILL)
    stopped = job.stop("last")
    assert stopped.state == "stopped" and len(stopped.restores) == 2
    assert stopped.last_epoch is not None and first < stopped.last_epoch
    gate.open()
    _, result = finish(flow, snapshots=cuts, every=0.1, actors="slice", resume="latest")
    expect(result, trips_made(50))
    assert result.restores[0]["epoch"] == stopped.last_epoch


def test_a_savepoint_of_a_run_that_ends_first_is_its_final_cut_and_later_ones_are_refused(tmp_path: Path):
    job = start(trips(count=5), snapshots=tmp_path, every=None, actors="slice", progress=False)
    assert cluster.is_over(job._over, HANG_S)
    assert job.savepoint("late") == job.status().last_epoch
    job.wait()
    with pytest.raises(RequestFailedError, match=r"savepoint 'later' was not taken.*it has finished"):
        job.savepoint("later")


def test_a_savepoint_without_a_folder_is_refused(tmp_path: Path):
    job = start(trips(count=50, gate=Gate(tmp_path / "gate")), progress=False)
    with pytest.raises(RequestFailedError, match="savepoint 'mine' has no place: give it snapshots="):
        job.savepoint("mine")
    assert job.stop().state == "stopped"
