"""The whole cluster is lost, all at once or because its GCS dies. The same job goes on in another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.evidence import Evidence
from tests.gates import HANG_S
from tests.jobs.rays import QUIET_RAY, check_gone, commands_below, short_folder
from tests.on_ray.drivers import COUNT, driver, next_line
from tests.on_ray.flows import trips_made
from tests.on_ray.leftovers import ACTORS, end, has_ended

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "dies",
    ["cluster", pytest.param("everything", marks=pytest.mark.long), pytest.param("gcs_server", marks=pytest.mark.long)],
)
def test_a_run_whose_cluster_is_lost_goes_on_in_another_one(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
):
    """A driver that is left says within the silence timeout what happened, and ends by itself."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Seconds after which the others give up a GCS that is gone; Ray's default is a minute.
    if dies == "gcs_server":
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    for variable, value in QUIET_RAY.items():
        monkeypatch.setenv(variable, value)
    with short_folder() as first:
        monkeypatch.setenv("RAY_TMPDIR", first)
        with driver("tests.on_ray.drivers", "lose", str(tmp_path), address=None) as lost:
            epoch = next_line(lost)["epoch"]
            below = commands_below(lost.pid)
            killed = [pid for pid, command in below.items() if dies != "gcs_server" or dies in command]
            evidence.happened("daemons of the GCS that died", sum("gcs_server" in below[pid] for pid in killed))
            for pid in (*killed, *([lost.pid] if dies == "everything" else [])):
                end(pid)
            if dies == "cluster":
                told = next_line(lost)["error"]
                assert "Ray cluster" in told and "--resume latest" in told
                # Ray would end it after a minute, with another code.
                assert lost.wait(HANG_S) == 0
            lost.wait(HANG_S)
            assert all(has_ended(pid) for pid, command in below.items() if command.startswith(ACTORS))
            for pid in below:
                end(pid)  # a daemon of Ray may outlive the others
            check_gone(set(below))
            evidence.happened("processes that were lost", len(below))
    with short_folder() as second:
        monkeypatch.setenv("RAY_TMPDIR", second)
        with driver("tests.on_ray.drivers", "resume", str(tmp_path), address=None) as later:
            told = next_line(later)
            assert later.wait() == 0
    assert told["restored"][0] >= epoch
    evidence.same(map(tuple, told["done"]), trips_made(COUNT))
    evidence.cuts(tmp_path)
