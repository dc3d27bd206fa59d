"""Cuts that only a request takes, and cuts that a log budget forbids, on Ray."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from backedge import Collect, Flow, Range, RequestFailedError, start
from tests.on_ray.flows import expect, trips, trips_made, until

COUNT = 2_000
SECONDS_A_RECORD = 0.003

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_a_run_without_periodic_cuts_restores_the_cut_that_was_requested(tmp_path: Path):
    job = start(trips(count=600), snapshots=tmp_path, every=None, actors="slice", progress=False)
    until(job, lambda story: story.total().hops > 0, "records circulate")
    epoch = job.cut()
    story = job.status()
    assert (story.snapshots, story.last_epoch) == (1, epoch)
    os.kill(story.pids["slice-0"], signal.SIGKILL)
    result = job.wait()
    expect(result, trips_made(600))
    assert [restore["epoch"] for restore in result.restores] == [epoch]


def slowly(number: int) -> int:
    time.sleep(SECONDS_A_RECORD)
    return number


def test_a_cut_that_would_log_more_than_its_budget_fails_by_name_and_the_run_goes_on(tmp_path: Path):
    flow = Flow("slow")
    numbers = flow.read(Range(COUNT), name="numbers").rebalance()
    numbers.map(slowly, name="slowly").write(Collect(), name="done")
    # This policy logs every channel, and the one to the slow function always holds records.
    job = start(flow, snapshots=tmp_path, policy="unaligned", every=None, log_bytes=1, progress=False)
    until(job, lambda story: story.total().records > 0, "records arrive")
    with pytest.raises(RequestFailedError, match=r"requested cut failed 10 times.*log_bytes="):
        job.cut()
    result = job.wait()
    expect(result, range(COUNT))
    assert result.restores == ()
