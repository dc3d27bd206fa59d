"""Cuts of what changed are measured as such, with everything that is due, and missed limits are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backedge.engine.state import WholeState
from bench import increments
from bench.increments_in_process import Counted
from bench.increments_on_ray import (
    Noting,
    restored_ms,
)
from bench.notes import note, read_notes


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
    with pytest.raises(RuntimeError, match="epoch 2"):
        counted.cut(counted.epoch)


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


@pytest.mark.long
def test_the_whole_benchmark_tells_its_figures(local_ray: None):
    told = json.loads(increments.run(increments.Options(turns=1, seconds=1.0, records=20_000)).as_json())
    assert told["bench"] == "increments" and told["ratios"].keys() == told["peers"].keys()
    assert told.keys() >= {"peak_ratio", "opaque_cut_ratio", "epochs_requested", "epochs_completed", "restored_files"}
