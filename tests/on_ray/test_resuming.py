"""A run that was ended from outside is gone from the machine, and goes on where its last cut was."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from backedge import (
    Collect,
    FencedError,
    Flow,
    Items,
    RunExistsError,
    SnapshotCorruptError,
    start,
)
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api import living_runs
from backedge.engine.on_ray.api.living_runs import told_takeover
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.run_status import RunStatus
from tests.faults.evidence import Evidence
from tests.gates import HANG_S, Gate
from tests.on_ray.drivers import COUNT, GATE, driver, gated, next_line
from tests.on_ray.flows import finish, trips, trips_made, until
from tests.on_ray.leftovers import actors_below, has_ended

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def address() -> str:
    """Where the Ray of these tests listens."""
    return cluster.ray.get_runtime_context().gcs_address


def cancelled(flow: Flow, folder: Path, **options: Any) -> int:
    """Run a flow until it has two cuts, then cancel it; the last epoch."""
    job = start(flow, snapshots=folder, every=0.1, progress=False, **options)
    until(job, lambda story: story.snapshots >= 2, "two cuts are complete")
    job.cancel()
    assert job.result is not None and job.result.state == "cancelled"
    return job.result.last_epoch or 0


def attempts_of(folder: Path, job: str) -> int:
    """How often a job was started, restarts included."""
    return sum(isinstance(entry, AttemptStart) for entry in CutStore(str(folder), job).chain())


# -- drivers that end ----------------------------------------------------------------------------------------------


def test_a_driver_that_is_killed_leaves_no_process_and_the_run_goes_on(tmp_path: Path, evidence: Evidence):
    with driver("tests.on_ray.drivers", "wait", str(tmp_path), address=address()) as process:
        said = next_line(process)
        began = set(actors_below(os.getpid()))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        evidence.happened("drivers that died", 1)
        assert set(said["pids"].values()) <= began
        assert all(has_ended(pid) for pid in began)
    gate = Gate(tmp_path / GATE)
    job, result = finish(
        gated(str(tmp_path)), gate=gate, snapshots=tmp_path, every=0.1, actors="slice", resume="latest"
    )
    evidence.same(result.outputs["done"], trips_made(COUNT))
    evidence.cuts(tmp_path)
    assert result.restores[0]["epoch"] >= said["epoch"]
    entries = CutStore(str(tmp_path), "trips").chain()
    epochs = [entry.epoch for entry in entries if isinstance(entry, Manifest)]
    assert epochs == sorted(set(epochs)), "no number of an epoch is used twice"
    attempts = [entry.attempt for entry in entries if isinstance(entry, AttemptStart)]
    assert attempts == [1, 2], (said, job.status().lines)


@pytest.mark.long  # tests/command/test_interrupted.py interrupts a command
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_is_interrupted_ends_its_run_and_leaves_a_cut(
    tmp_path: Path, by: signal.Signals, evidence: Evidence
):
    with driver("tests.on_ray.drivers", "wait", str(tmp_path), address=address()) as process:
        said = next_line(process)
        began = set(actors_below(os.getpid()))
        process.send_signal(by)
        assert process.wait(HANG_S) != 0
        evidence.happened(f"drivers that got {by.name}", 1)
        assert set(said["pids"].values()) <= began
        assert all(has_ended(pid) for pid in began)
    cuts = [entry for entry in CutStore(str(tmp_path), "trips").chain() if isinstance(entry, Manifest)]
    assert cuts[-1].epoch >= said["epoch"]
    evidence.survived("processes of the run that ended", len(began))
    evidence.cuts(tmp_path)


# -- two at once ---------------------------------------------------------------------------------------------------


def test_of_two_runs_of_one_job_the_later_says_that_it_takes_over_and_the_other_is_fenced(
    tmp_path: Path, evidence: Evidence, capsys: pytest.CaptureFixture[str]
):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=50, gate=gate)
    first = start(flow, snapshots=cuts, every=0.1, actors="slice", progress=False)
    until(first, lambda story: story.snapshots >= 2, "two cuts are complete")
    with pytest.raises(RunExistsError, match="already contains a run of 'trips'"):
        start(flow, snapshots=cuts, progress=False)
    second = start(flow, snapshots=cuts, every=0.1, actors="slice", resume="latest")
    told = capsys.readouterr().err
    assert "job 'trips' has a run that is alive, in attempt 1: this run takes over" in told and "exit code 3" in told
    with pytest.raises(FencedError, match="job 'trips' is lost: another run has taken over"):
        first.wait()
    gate.open()
    evidence.happened("runs that were fenced", 1)
    evidence.same(second.wait().outputs["done"], trips_made(50))
    evidence.cuts(cuts)
    entries = CutStore(str(cuts), "trips").chain()
    before, after = [entry for entry in entries if isinstance(entry, AttemptStart)]
    # Where a cut of the first was faster than the start of the second, that tried again under the next number.
    assert 1 == before.attempt < after.attempt
    behind = entries[entries.index(after) :]
    assert {entry.attempt for entry in behind} == {after.attempt}, "nothing of the first behind the second's start"


def test_a_run_elsewhere_that_kept_its_status_a_moment_ago_may_be_alive(monkeypatch: pytest.MonkeyPatch):
    now_s = 1_000.0
    monkeypatch.setattr(living_runs, "time", SimpleNamespace(time=lambda: now_s))
    kept = RunStatus("trips", "f00d", "running", False, now_s - 5, 60.0, "/cuts", 3, None, 0)
    told = told_takeover("trips", "/cuts", kept)
    assert told is not None and "5 s ago, in attempt 3" in told and "if that one is still alive" in told
    ahead = told_takeover("trips", "/cuts", replace(kept, at_s=now_s + 5))
    assert ahead is not None and "0 s ago" in ahead, "the clock of the other host is ahead"
    for silent in (None, replace(kept, state="failed"), replace(kept, at_s=now_s - 61), replace(kept, at_s=now_s + 61)):
        assert told_takeover("trips", "/cuts", silent) is None


# -- going on otherwise --------------------------------------------------------------------------------------------


def test_a_run_goes_on_under_another_parallelism(tmp_path: Path, evidence: Evidence):
    """With more tasks, and then with fewer."""
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=100, gate=gate)
    cancelled(flow, cuts, parallelism=1, actors="slice")
    cancelled(flow, cuts, parallelism=3, actors="slice", resume="latest")
    gate.open()
    _, result = finish(flow, snapshots=cuts, parallelism=2, actors="slice", resume="latest")
    evidence.happened("restores under another parallelism", len(result.restores))
    evidence.same(result.outputs["done"], trips_made(100))
    evidence.cuts(cuts)


def test_a_file_that_was_damaged_fails_the_run_at_once_with_its_path(tmp_path: Path, evidence: Evidence):
    """It is found by the actor that reads it, and no restart would help."""
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=100, gate=gate)
    cancelled(flow, cuts, actors="slice")
    chain = CutStore(str(cuts), "trips").chain()
    epoch = max(entry.epoch for entry in chain if isinstance(entry, Manifest))
    path = sorted(cuts.glob(f"trips/epoch={epoch}/**/table=state/**/*.parquet"))[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    job = start(flow, snapshots=cuts, actors="slice", resume="latest", progress=False)
    with pytest.raises(SnapshotCorruptError, match=f"{path} was changed") as caught:
        job.wait()
    assert attempts_of(cuts, "trips") == 2
    older = re.search(r"cut (\d+) does not need this file: resume=\1 \(--resume \1\)", str(caught.value))
    assert older is not None, caught.value
    gate.open()
    options: dict[str, Any] = {"resume": int(older[1]), "replace_output": True}
    _, result = finish(flow, snapshots=cuts, actors="slice", **options)
    evidence.same(result.outputs["done"], trips_made(100))
    evidence.happened("bits flipped in the state of a cut", 1)
    evidence.survived("runs that were refused with the path", 1)


# -- ends that are asked for ---------------------------------------------------------------------------------------


def test_a_list_of_which_nothing_more_is_read_may_change(tmp_path: Path):
    """Its task has ended with the run before."""
    for items in ([1, 2, 3], [1, 2], [1, 2, 3, 4]):
        flow = Flow("listed")
        flow.read(Items(items), name="items").rebalance().write(Collect(), name="done")
        _, result = finish(flow, snapshots=tmp_path, resume="latest")
        assert sorted(result.outputs["done"]) == [1, 2, 3]
