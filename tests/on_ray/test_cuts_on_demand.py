"""Cuts that only a request takes, and cuts that a log budget forbids, on Ray."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from backedge import Collect, Flow, Range, RequestFailedError, start
from tests.on_ray.flows import expect, trips, trips_made, until

COUNT = 2_000
SECONDS_A_RECORD = 0.003

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_a_run_without_periodic_cuts_restores_the_cut_that_was_requested(tmp_path: Path):
    gate = tmp_path / "gate"
    flow = trips(count=50, gate=str(gate))
    job = start(flow, snapshots=tmp_path / "cuts", every=None, actors="slice", progress=False)
    until(job, lambda story: story.total().hops > 0, "records circulate")
    epoch = job.cut()
    story = job.status()
    assert (story.snapshots, story.last_epoch) == (1, epoch)
    os.kill(story.pids["slice-0"], signal.SIGKILL)
    until(job, lambda later: later.restores and later.state == "running", "it has recovered")
    gate.touch()
    result = job.wait()
    expect(result, trips_made(50))
    assert [restore["epoch"] for restore in result.restores] == [epoch]


def slow_until(gate: Path, number: int) -> int:
    if not gate.exists():
        time.sleep(SECONDS_A_RECORD)
    return number


def test_a_cut_that_would_log_more_than_its_budget_fails_by_name_and_the_run_goes_on(tmp_path: Path):
    flow, gate = Flow("slow"), tmp_path / "gate"
    numbers = flow.read(Range(COUNT), name="numbers").rebalance()
    numbers.map(partial(slow_until, gate), name="slowly").write(Collect(), name="done")
    # This policy logs every channel, and the one to the slow function always holds records.
    job = start(flow, snapshots=tmp_path / "cuts", policy="unaligned", every=None, log_bytes=1, progress=False)
    until(job, lambda story: story.total().records > 0, "records arrive")
    with pytest.raises(RequestFailedError, match=r"requested cut failed 10 times.*log_bytes="):
        job.cut()
    gate.touch()
    result = job.wait()
    expect(result, range(COUNT))
    assert result.restores == ()
