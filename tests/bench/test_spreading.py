"""The inputs of the benchmarks of components and paths, and the comparison of their values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.graph_input import read_graph, read_weights, write_grid
from bench.ours import BenchError
from bench.spreading import check_values
from bench.workloads import SpreadWorkload


def test_a_grid_leads_to_the_right_and_down(tmp_path: Path):
    edges = write_grid(str(tmp_path), 3, seed=1)
    sources, targets = read_graph(str(tmp_path))
    assert edges == len(sources) == len(read_weights(str(tmp_path))) == 12
    assert sorted(set((targets - sources).tolist())) == [1, 3]
    assert (2, 3) not in set(zip(sources.tolist(), targets.tolist(), strict=True))


def test_values_that_differ_are_refused(tmp_path: Path):
    workload = SpreadWorkload(str(tmp_path), vertices=2, edges=1)
    for name, second in (("ours", 1.0), ("scipy", 1.0), ("ray", 2.0)):
        np.save(workload.result(name), np.array([0.0, second]))
    check_values(workload, "ours", "scipy")
    with pytest.raises(BenchError, match="1 values of ours and ray differ"):
        check_values(workload, "ours", "scipy", "ray")
