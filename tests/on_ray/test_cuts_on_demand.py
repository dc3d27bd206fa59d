"""Cuts that only a request takes, and cuts that a log budget forbids, on Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from backedge import RequestFailedError, start
from tests.gates import Gate
from tests.on_ray.flows import expect, trips, trips_made, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_a_run_without_periodic_cuts_restores_the_cut_that_was_requested(tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    flow = trips(count=50, gate=gate)
    job = start(flow, snapshots=tmp_path / "cuts", every=None, actors="slice", progress=False)
    until(job, lambda story: story.total().hops > 0, "records circulate")
    epoch = job.cut()
    story = job.status()
    assert (story.snapshots, story.last_epoch) == (1, epoch)
    os.kill(story.pids["slice-0"], signal.SIGKILL)
    until(job, lambda later: later.restores and later.state == "running", "it has recovered")
    gate.open()
    result = job.wait()
    expect(result, trips_made(50))
    assert [restore["epoch"] for restore in result.restores] == [epoch]


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
