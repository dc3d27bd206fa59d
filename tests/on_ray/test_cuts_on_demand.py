"""Cuts that only a request takes, and cuts that a log budget forbids, on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge import RequestFailedError, start
from backedge.engine.on_ray import cluster
from tests.gates import HANG_S, Gate
from tests.on_ray.flows import expect, trips, trips_made, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_a_savepoint_of_a_run_that_ends_first_is_its_final_cut_and_later_ones_are_refused(tmp_path: Path):
    job = start(trips(count=5), snapshots=tmp_path, every=None, actors="slice", progress=False)
    assert cluster.is_over(job._over, HANG_S)
    assert job.savepoint("late") == job.status().last_epoch
    job.wait()
    with pytest.raises(RequestFailedError, match=r"savepoint 'later' was not taken.*it has finished"):
        job.savepoint("later")


def test_a_cut_that_would_log_more_than_its_budget_fails_by_name_and_the_run_goes_on(tmp_path: Path):
    """This policy logs every channel, and those of the loop always hold a record."""
    gate = Gate(tmp_path / "gate")
    options = {"policy": "unaligned", "every": None, "log_bytes": 1, "actors": "slice", "progress": False}
    job = start(trips(count=50, gate=gate), snapshots=tmp_path / "cuts", **options)
    until(job, lambda story: story.total().hops > 0, "records circulate")
    with pytest.raises(RequestFailedError, match=r"requested cut failed 10 times.*log_bytes="):
        job.cut()
    gate.open()
    result = job.wait()
    expect(result, trips_made(50))
    assert result.restores == ()
