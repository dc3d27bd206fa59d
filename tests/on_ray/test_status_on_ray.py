"""What a supervisor tells of its run while it goes on, and what its store tells afterwards."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from backedge.command import main
from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.engine.on_ray.run_spec import RequestFailedError
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.run_status import OperatorStatus, RunStatus
from backedge.recovery.stores.stored_status import stored_status
from tests.gates import Gate
from tests.on_ray.flows import begin, expect, told, trips, trips_made

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def operator(status: RunStatus, name: str) -> OperatorStatus:
    return next(operator for operator in status.operators if name in operator.operators)


def test_a_kill_appears_in_the_status_and_heals_and_stays_in_the_store(tmp_path: Path):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=100, gate=gate)
    job = begin(flow, snapshots=cuts, every=0.2, actors="task", kills=["body@epoch=3"])
    healed = told(job, lambda s: s.failures and s.failures[0].seconds, "the kill has healed")
    (failure,) = healed.failures
    assert failure.attempt == 1 and failure.restored is not None
    assert failure.lost_records is not None and failure.lost_s is not None and failure.lost_s > 0
    complete = {epoch.epoch: epoch for epoch in healed.epochs if epoch.state == "complete"}
    assert failure.restored in complete
    cut = complete[failure.restored]
    assert cut.align_s is not None and cut.write_s is not None and cut.seconds is not None
    assert cut.written_bytes and cut.seconds >= (cut.manifest_s or 0)
    running = told(job, lambda s: operator(s, "grow").tasks[0].in_per_s, "records flow again")
    assert 0 < (operator(running, "grow").tasks[0].busy or 0) <= 1
    assert running.loops[0].operators == ("grow", "enough")
    gate.open()
    result = job.wait()
    expect(result, trips_made(100))
    stored = stored_status(CutStore(str(cuts), "trips"), time.time())
    assert (stored.state, stored.is_live, stored.attempt) == ("finished", False, 2)
    assert (stored.records, stored.failures) == (result.records, healed.failures)
    assert sum(epoch.is_kept for epoch in stored.epochs) == 3
    assert 0 < operator(stored, "done").tasks[0].records_in <= 100, "those of the last attempt"


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
