"""The keyed sum of the columns benchmark: its rows, its table of sums, and the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, simulate
from bench.columns import Sums, write_rows
from bench.workloads import SumWorkload


@pytest.fixture
def workload(tmp_path: Path) -> SumWorkload:
    found = SumWorkload(str(tmp_path), rows=500, keys=20)
    write_rows(found, seed=1)
    return found


def test_sums_that_lack_a_key_or_have_it_twice_are_refused(workload: SumWorkload):
    keys, sums = np.arange(20), np.load(workload.file("sums"))
    workload.check("ours", keys, sums)
    wrong: list[Any] = [(keys[1:], sums[1:]), ([0, *keys], [sums[0], *sums]), (keys, sums + (keys == 3))]
    for found_keys, found_sums in wrong:
        with pytest.raises(ValueError, match=r"\bours\b"):
            workload.check("ours", np.asarray(found_keys), np.asarray(found_sums))


@pytest.mark.slow
def test_the_table_of_sums_survives_crashes():
    rows = [{"key": n * 7 % 5, "value": n} for n in range(40)]
    flow = Flow("sums")
    read = flow.read(Items(rows), name="rows")
    sums = read.key_by("key").process(Sums, batch_format="numpy", name="sums")
    sums.map(lambda row: (row["key"], row["sum"]), name="pairs").write(Collect(), name="kept")
    result = simulate(flow, seeds=range(30), crashes=2)
    expected = sorted((key, sum(row["value"] for row in rows if row["key"] == key)) for key in range(5))
    assert sorted(result.outputs["kept"]) == expected
