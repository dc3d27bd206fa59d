"""The cuts that benchmarks measure hold what they should, and small benchmarks of them tell their figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backedge.engine.state.keyed_state import WholeState
from backedge.graphs.ids import Epoch
from backedge.recovery.cut.keyed_parts import entries_of
from backedge.recovery.stores.cut_store import CutStore
from bench import increments, restore
from bench.increments_in_process import Counted
from bench.options import Options
from bench.peers import restore_bare
from bench.workloads import RestoreWorkload

KEYS = 3_000


def test_a_cut_that_writes_everything_is_not_timed_as_a_delta():
    counted = Counted(keys=200, changed=20, keyed_state=WholeState)
    counted.cut(None)
    with pytest.raises(RuntimeError, match="epoch 2"):
        counted.cut(counted.epoch)


@pytest.mark.long
def test_the_whole_benchmark_of_increments_tells_its_figures(local_ray: None):
    told = json.loads(increments.run(increments.Options(turns=1, seconds=1.0, records=20_000)).as_json())
    assert told["bench"] == "increments" and told["ratios"].keys() == told["peers"].keys()
    assert told.keys() >= {"peak_ratio", "opaque_cut_ratio", "epochs_requested", "epochs_completed", "restored_files"}


@pytest.mark.slow
def test_the_cut_of_a_restore_holds_every_key_with_its_own_bytes_and_the_peer_reads_its_files(tmp_path: Path):
    files = restore.write_cut(str(tmp_path), KEYS, seed=1)
    snapshots = CutStore(str(tmp_path), restore.JOB).cut(Epoch(1)).snapshots.values()
    states = [snapshot.operators["profiles"] for snapshot in snapshots if "profiles" in snapshot.operators]
    entries = dict(entry for state in states for entry in entries_of(state.keyed))
    assert len(states) == len(files) == restore.TASKS
    assert entries.keys() == {*range(KEYS)} and len({*entries.values()}) == KEYS
    assert {len(value) for value in entries.values()} == {restore.VALUE_BYTES}
    workload = RestoreWorkload(files, KEYS * restore.VALUE_BYTES / 1e6)
    assert restore_bare.run(workload) > 0


@pytest.mark.long
def test_a_small_restore_is_measured(local_ray: None):
    told = json.loads(restore.run(Options(turns=1, records=KEYS)).as_json())
    assert told["bench"] == "restore"
    assert all(figure > 0 for figure in (told["ours"], told["figures"]["rescaled"], told["peers"]["bare"]))
    assert told["ratios"].keys() == {"decode", "decode_rescaled"}
    assert 20 < told["supervisor_mb"] < restore.SUPERVISOR_MB_MAX
