"""The keyed sum by Ray Data: groupby on blocks in the object store. It is optional: Ray Data needs pandas."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import numpy as np

from backedge.engine.batches.arrow import arrow
from bench.workloads import SumWorkload

BLOCK_ROWS = 1_000_000


def is_installed() -> bool:
    """Whether this peer can run."""
    return all(importlib.util.find_spec(name) is not None for name in ("pandas", "fsspec"))


def run(workload: SumWorkload) -> float:
    """Millions of rows a second."""
    data: Any = importlib.import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    table = arrow().table({name: np.load(workload.file(f"{name}s")) for name in ("key", "value")})
    blocks = [table.slice(start, BLOCK_ROWS) for start in range(0, workload.rows, BLOCK_ROWS)]
    rows = data.from_arrow(blocks).materialize()
    began_s = time.perf_counter()
    found = rows.groupby("key").sum("value").materialize()
    seconds = time.perf_counter() - began_s
    sums = arrow().concat_tables([arrow().table(block) for block in found.iter_batches(batch_format="pyarrow")])
    workload.check("ray_data", sums["key"].to_numpy(), sums["sum(value)"].to_numpy())
    return workload.rows / seconds / 1e6
