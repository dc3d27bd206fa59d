"""The graph of the PageRank benchmark, and the comparison of its ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.graph_input import Homes, read_graph, write_graph
from bench.ours import BenchError
from bench.pagerank import check_ranks
from bench.workloads import RankWorkload


def test_a_graph_has_distinct_edges_and_every_page_has_links(tmp_path: Path):
    edges = write_graph(str(tmp_path), scale=8, seed=1)
    sources, targets = read_graph(str(tmp_path))
    assert len(sources) == len(set(zip(sources.tolist(), targets.tolist(), strict=True))) == edges > 1000
    assert set(sources.tolist()) == set(range(256)) >= set(targets.tolist())


def test_pages_have_rows_of_their_own_at_their_task():
    homes = Homes(100, 3)
    assert [homes.rows[pages].tolist() for pages in homes.pages] == [[*range(len(pages))] for pages in homes.pages]
    assert sorted(np.concatenate(homes.pages).tolist()) == [*range(100)]


def test_ranks_that_differ_are_refused(tmp_path: Path):
    workload = RankWorkload(str(tmp_path), pages=2, edges=2, rounds=1)
    for name, second in (("ours", 1.0), ("scipy", 1.0), ("ray", 1.001)):
        np.save(workload.result(name), np.array([1.0, second]))
    check_ranks(workload, "ours", "scipy")
    with pytest.raises(BenchError, match="the ranks of ours and ray differ"):
        check_ranks(workload, "ours", "scipy", "ray")
