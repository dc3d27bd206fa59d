"""What a supervisor tells of its run while it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backedge.command import main
from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.engine.on_ray.run_spec import RequestFailedError
from tests.gates import Gate
from tests.on_ray.flows import begin, told, trips

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_any_process_of_the_cluster_finds_a_run_and_can_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = begin(trips(count=100, gate=Gate(tmp_path / "gate")), actors="task")
    status = told(job, lambda s: any(c.receiver == "grow/0" and c.credit_bytes for c in s.channels), "it has credit")
    assert status.snapshots is None and status.epochs == ()
    assert main(["status", "trips", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["is_live"]) == (status.run, True)
    assert main(["top", "trips", "--json"]) == 0
    (top,) = json.loads(capsys.readouterr().out)["runs"]
    assert [load["operator"] for load in top["operators"]] == ["numbers > begin", "grow", "enough", "done"]
    assert main(["top"]) == 0 and "trips: running" in capsys.readouterr().out, "one table where there is no terminal"
    assert main(["top", "fast"]) == 2 and "no run of 'fast'" in capsys.readouterr().err
    runs = LivingRuns()
    assert [alive.run for alive in runs.ask()] == [status.run]
    steered = runs.job(status.run)
    steered.cancel()
    assert job.wait().state == "cancelled"
    assert runs.ask() == []
    with pytest.raises(RequestFailedError, match="has ended"):
        runs.job(status.run)
    with pytest.raises(RequestFailedError, match="it has cancelled"):
        steered.request_stop()
