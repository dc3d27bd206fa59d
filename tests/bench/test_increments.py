"""Cuts of what changed are measured as such, with everything that is due, and missed limits are reported."""

from __future__ import annotations

import json
from dataclasses import replace
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
    CutWindow,
    Noting,
    Restores,
    drifting_keys_of,
    kept_cuts,
    keys_of,
    restored_ms,
    speed,
    stalls_ms,
)
from bench.measuring import Report, Samples
from bench.notes import note, read_notes
from bench.ours import Window
from bench.peers import cut_bare
from bench.session import session
from bench.workloads import OPAQUE_BYTES, OpaqueWorkload, opaque_value
from tests.faults.evidence import Evidence

WINDOW = CutWindow(Window(12.0, 1.0, 0.0, 118, 0), deltas=40, whole=0, rows=10_000)
GOOD = {
    **dict.fromkeys(("whole", "whole_stall", "delta", "delta_stall", "large_capture", "plain", "noted"), 1.0),
    **{"whole_restore": 1.0, "deltas_restore": 1.5, "resume_whole": 1.0, "resume_deltas": 1.5},
    **{"often_per_s": 0.95, "none_per_s": 1.0, "stall": 20.0, "large_stall": 20.0},
    **{"opaque_cut_s": 1.5, "bare_s": 1.0, "peak_mb": 900.0},
}


def judged(changed: dict[str, float], window: CutWindow = WINDOW, delta_bytes: float = 0.03) -> Report:
    found = {name: Samples((figure,) * 5) for name, figure in {**GOOD, **changed}.items()}
    return increments.compare(found, [WINDOW, window], delta_bytes, 500.0, 12)


def missed(report: Report) -> list[str]:
    return [limit.claim for limit in report.limits if not limit.holds]


def test_cuts_at_their_limits_are_green_and_counted():
    report = judged({})
    assert report.ok and report.ratios.keys() == report.peers.keys()
    told = json.loads(report.as_json())
    assert told["peak_ratio"] == told["opaque_cut_ratio"] == 1.5
    assert (told["epochs_requested"], told["epochs_completed"]) == (240, 236)
    assert (told["cuts_of_changes"], told["cuts_of_everything"], told["delta_keys_max"]) == (80, 0, 10_000)


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({"deltas_restore": 1.6}, "in one process a restore takes 1.60 times"),
        ({"resume_deltas": 1.6}, "on Ray a restore takes 1.60 times"),
        ({"large_capture": 1.1}, "a delta of ten times the keys is captured in 1.10"),
        ({"large_stall": 21.0}, "with ten times the keys the longest stall is 1.05"),
        ({"often_per_s": 0.94}, "with ten cuts a second the speed is 0.94"),
        ({"peak_mb": 901.0}, "peak_ratio: 1.50"),
        ({"opaque_cut_s": 1.6}, "a cut of opaque values takes 1.60"),
    ],
)
def test_each_limit_can_be_missed(changed: dict[str, float], claim: str):
    [found] = missed(judged(changed))
    assert found.startswith(claim)


def test_one_moment_of_the_machine_does_not_make_a_long_stall():
    stalls = {"stall": Samples((8.0, 9.0, 10.0)), "large_stall": Samples((7.0, 9.0, 300.0))}
    same = {name: Samples((figure,) * 5) for name, figure in GOOD.items()}
    assert not missed(increments.compare({**same, **stalls}, [WINDOW], 0.03, 500.0, 12))


def test_large_deltas_miss():
    assert missed(judged({}, delta_bytes=0.031)) == ["a delta takes 3.10% of the bytes of a whole cut, at most 3%"]


@pytest.mark.parametrize(
    ("window", "claims"),
    [
        (replace(WINDOW, window=replace(WINDOW.window, epochs=97)), ["215 of 240 cuts completed, at least 90%"]),
        (replace(WINDOW, deltas=30, whole=10), ["70 of 80 cuts hold what changed, at least 90%"]),
    ],
)
def test_cuts_that_are_missing_or_hold_everything_miss(window: CutWindow, claims: list[str]):
    assert missed(judged({}, window)) == claims


def test_a_run_whose_cuts_nobody_looked_at_misses():
    report = increments.compare({n: Samples((f,) * 5) for n, f in GOOD.items()}, [], 0.01, 500.0, 12)
    assert "0 of 0 cuts hold what changed, at least 90%" in missed(report)


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


def test_every_key_comes_once_and_then_a_hundredth_of_them():
    assert keys_of(1_000, 10).records_at(range(1_030)) == [*range(1_000), *[*range(0, 1_000, 100)] * 3]


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


def test_opaque_values_are_incompressible_and_of_their_size():
    import zlib

    values = [opaque_value(key, seed=1) for key in range(1_000)]
    assert {len(value) for value in values} == {OPAQUE_BYTES} and len(set(values)) == 1_000
    assert len(zlib.compress(b"".join(values))) > 1_000 * OPAQUE_BYTES
    assert OpaqueWorkload(keys=1_000).mb == 1.0


@pytest.mark.slow
def test_the_bare_cut_writes_and_leaves_nothing(tmp_path: Path):
    assert cut_bare.run(OpaqueWorkload(keys=1_000, folder=str(tmp_path))) > 0
    assert not list(tmp_path.iterdir())


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
