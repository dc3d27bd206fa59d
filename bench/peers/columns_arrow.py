"""The keyed sum by pyarrow: group_by on a table in memory, in one process, on all cores."""

from __future__ import annotations

import time

import numpy as np

from backedge.engine.batches.arrow import arrow
from bench.workloads import SumWorkload


def run(workload: SumWorkload) -> float:
    """Millions of rows a second."""
    table = arrow().table({name: np.load(workload.file(f"{name}s")) for name in ("key", "value")})
    began_s = time.perf_counter()
    found = table.group_by("key").aggregate([("value", "sum")])
    seconds = time.perf_counter() - began_s
    workload.check("arrow", found["key"].to_numpy(), found["value_sum"].to_numpy())
    return workload.rows / seconds / 1e6
