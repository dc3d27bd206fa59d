"""A cluster of several daemons: what travels between them, and what becomes of a run when one dies."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.jobs.rays import QUIET_RAY
from tests.on_ray.daemons import COUNT
from tests.on_ray.drivers import driver, next_line
from tests.on_ray.flows import trips_made

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Ray of a test's own process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for variable, value in QUIET_RAY.items():
        monkeypatch.setenv(variable, value)


def said_of(folder: Path, dies: str) -> dict[str, Any]:
    """What a process says that runs `trips` on several daemons."""
    with driver("tests.on_ray.daemons", str(folder), dies, address=None) as process:
        said = next_line(process)
        assert process.wait() == 0
    return said


@pytest.mark.parametrize("dies", ["daemon", pytest.param("host", marks=pytest.mark.long)])
def test_a_run_waits_for_a_daemon_and_survives_the_death_of_another(dies: str, tmp_path: Path, evidence: Evidence):
    """Actors are on several daemons, so their messages travel over TCP, under the keys of the attempt.

    At first there is one daemon alone: the run notices that others have joined.
    """
    said = said_of(tmp_path, dies)
    assert "needs a machine with 1 far" in said["waited_for"] and said["restarts_before"] == 0
    assert said["daemons"] >= 2
    evidence.happened(f"processes that died with the {dies}", said["died"])
    evidence.happened("actors that were on it", len(said["hit"]))
    evidence.same(map(tuple, said["done"]), trips_made(COUNT))
    evidence.cuts(tmp_path / "trips")
    # At first Ray places actors on the daemon that died, for it does not know yet: those are replaced together.
    assert 1 <= len(said["restores"]) <= 2
    assert said["restores"][0] is not None


@pytest.mark.long
def test_a_supervisor_whose_host_stands_still_is_replaced_and_harms_nothing_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
):
    """Two supervisors are alive then, and the earlier one has tasks that go on, too. The chain fences it."""
    # Ray takes a daemon for dead that misses three checks.
    for name, value in {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 500, "failure_threshold": 3}.items():
        monkeypatch.setenv(f"RAY_health_check_{name}", str(value))
    said = said_of(tmp_path, "nothing")
    evidence.happened("supervisors that woke up behind their successor", said["woken"])
    assert len(said["restores"]) == 1
    claimants = [entry.claimant for entry in CutStore(str(tmp_path), "trips").chain()]
    assert len(list(groupby(claimants))) == 2, "it appended nothing after its successor had claimed the job"
    evidence.same(map(tuple, said["done"]), trips_made(COUNT))
    evidence.cuts(tmp_path / "trips")
