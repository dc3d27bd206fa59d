"""Cuts of what changed are measured as such, with everything that is due, and missed limits are reported."""

from __future__ import annotations

import json

import pytest

from backedge.engine.state.keyed_state import WholeState
from bench import increments
from bench.increments_in_process import Counted


def test_a_cut_that_writes_everything_is_not_timed_as_a_delta():
    counted = Counted(keys=200, changed=20, keyed_state=WholeState)
    counted.cut(None)
    with pytest.raises(RuntimeError, match="epoch 2"):
        counted.cut(counted.epoch)


@pytest.mark.long
def test_the_whole_benchmark_tells_its_figures(local_ray: None):
    told = json.loads(increments.run(increments.Options(turns=1, seconds=1.0, records=20_000)).as_json())
    assert told["bench"] == "increments" and told["ratios"].keys() == told["peers"].keys()
    assert told.keys() >= {"peak_ratio", "opaque_cut_ratio", "epochs_requested", "epochs_completed", "restored_files"}
