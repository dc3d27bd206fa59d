"""A restore is measured with a cut that holds what it should, and missed limits are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.cut.keyed_parts import entries_of
from backedge.recovery.stores.cut_store import CutStore
from bench import restore
from bench.options import Options
from bench.peers import restore_bare
from bench.workloads import RestoreWorkload

KEYS = 3_000


@pytest.mark.slow
def test_the_cut_holds_every_key_with_its_own_bytes_and_the_peer_reads_its_files(tmp_path: Path):
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
    assert (
        told["bench"] == "restore"
        and told["ours"] > 0
        and told["figures"]["rescaled"] > 0
        and told["peers"]["bare"] > 0
    )
    assert told["ratios"].keys() == {"decode", "decode_rescaled"}
    assert 20 < told["supervisor_mb"] < restore.SUPERVISOR_MB_MAX
