"""Cuts of what changed are measured as such, with everything that is due, and missed limits are reported."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.state import WholeState
from bench import increments, increments_on_ray, opaque_state
from bench.increments_in_process import Counted
from bench.increments_on_ray import (
    DRIFT_TIMES,
    GAP_NOTED_S,
    Noting,
    Restores,
    drifting_keys_of,
    kept_cuts,
    restored_ms,
    speed,
    stalls_ms,
)
from bench.notes import note, read_notes
from bench.session import session
from bench.workloads import OpaqueWorkload
from tests.faults.evidence import Evidence

# -- what is measured --------------------------------------------------------------------------------------------


def test_a_delta_and_a_whole_cut_restore_the_same_values():
    counted = Counted(keys=200, changed=20)
    cuts = [counted.cut(None)]
    for _ in range(2):
        counted.change()
        cuts.append(counted.cut(counted.epoch))
    assert [cut.state_rows for cut in cuts] == [200, 20, 20]
    whole = counted.cut(None)
    assert counted.restored(cuts) == counted.restored([whole]) and len(counted.restored(cuts)) == 200


def test_a_cut_that_writes_everything_is_not_timed_as_a_delta():
    counted = Counted(keys=200, changed=20, keyed_state=WholeState)
    counted.cut(None)
    with pytest.raises(RuntimeError, match="epoch 2 was to be written since 1"):
        counted.cut(counted.epoch)


def test_a_tenth_of_the_keys_that_change_become_others_after_a_while():
    between = DRIFT_TIMES * 20
    records = drifting_keys_of(between, 20).records_at(range(between, 3 * between))
    sets = [set(records[start : start + 20]) for start in range(0, len(records), 20)]
    assert {len(each) for each in sets} == {20} and max(records) < between
    assert [len(later - earlier) for earlier, later in pairwise(sets)].count(2) == 1
    assert len(sets[-1] - sets[0]) == 2


def test_a_restore_counts_from_the_flow_to_the_first_record_of_the_slower_task(tmp_path: Path):
    path, own = str(tmp_path / "notes"), -7.0
    function = Noting(path)
    function.__setstate__({"_path": path, "_has_begun": False})
    assert restored_ms(read_notes(path), 0.0) == 0.0, "no record yet"
    function(0, 1), function(0, 1)
    assert len(read_notes(path)) == 2 and restored_ms(read_notes(path), 0.0) == 0.0, "one of two tasks"
    note(path, 7.0)
    note(path, own)
    (given, _), (first, _), *other = read_notes(path)
    assert restored_ms(read_notes(path), 0.0) == pytest.approx(max(first - given, other[1][0] - other[0][0]) * 1e3)
    assert restored_ms(read_notes(path), other[0][0]) == 0.0, "only what this resume has noted"


# -- on Ray ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_short_runs_are_measured_with_cuts_of_what_changed(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
):
    # The source runs as fast as it can until these cuts are complete.
    monkeypatch.setattr(increments_on_ray, "STALL_CUTS", 4)
    monkeypatch.setattr(increments_on_ray, "STALL_WINDOWS", 2)
    monkeypatch.setattr(increments_on_ray, "CUTS", 12)
    with session():
        often = speed(keys := 20_000, changed := 200, 1.0, 0.1)
        evidence.happened("cuts in the window, after the first", often.window.epochs - 1)
        evidence.happened("cuts of what changed, beyond those of everything", often.deltas - often.whole)
        assert often.window.records_per_s > 0 and 0 < often.rows <= changed
        assert [longest >= GAP_NOTED_S * 1e3 for longest in stalls_ms(keys, changed)] == [True, True]
        restores = Restores(str(tmp_path), keys, changed)
        assert restores.files > 8 and restores.resume_ms(restores.deltas) > 0
        kept: dict[Any, int | None] = dict(kept_cuts(f"{tmp_path}/cuts"))
        rows = kept[restores.deltas]
        assert kept[restores.whole] is None and rows is not None and rows >= changed


@pytest.mark.slow
@pytest.mark.long
def test_a_cut_of_opaque_values_has_all_of_them_and_so_has_its_restore(local_ray: None):
    with session():
        seconds, peak_mb = opaque_state.cut(OpaqueWorkload(keys=2_000))
    assert seconds > 0 and 30 < peak_mb < 1_000


@pytest.mark.long
def test_the_whole_benchmark_tells_its_figures(local_ray: None):
    told = json.loads(increments.run(increments.Options(turns=1, seconds=1.0, records=20_000)).as_json())
    assert told["bench"] == "increments" and told["ratios"].keys() == told["peers"].keys()
    assert told.keys() >= {"peak_ratio", "opaque_cut_ratio", "epochs_requested", "epochs_completed", "restored_files"}
