"""The inputs of the benchmarks, and the comparison of what ours and the peers compute of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.columns import write_rows
from bench.debian_graph import write_debian
from bench.fitting import check_parameters
from bench.graph_input import read_graph, read_weights, write_graph, write_grid
from bench.ours import BenchError
from bench.pagerank import check_ranks
from bench.sgd import Weights
from bench.spreading import check_values
from bench.workloads import FitWorkload, RankWorkload, SpreadWorkload, SumWorkload

INDEX = """Package: less
Source: pager (2:590-2)
Depends: libc6 (>= 2.34), debconf | debconf-2.0:any
Tag: role::program,
 use::viewing
Description: pager program, a pager

Package: libc6
Section: libs
"""


def test_a_graph_has_distinct_edges_and_every_page_has_links(tmp_path: Path):
    edges = write_graph(str(tmp_path), scale=8, seed=1)
    sources, targets = read_graph(str(tmp_path))
    assert len(sources) == len(set(zip(sources.tolist(), targets.tolist(), strict=True))) == edges > 1000
    assert set(sources.tolist()) == set(range(256)) >= set(targets.tolist())


def test_a_grid_leads_to_the_right_and_down(tmp_path: Path):
    edges = write_grid(str(tmp_path), 3, seed=1)
    sources, targets = read_graph(str(tmp_path))
    assert edges == len(sources) == len(read_weights(str(tmp_path))) == 12
    assert sorted(set((targets - sources).tolist())) == [1, 3]
    assert (2, 3) not in set(zip(sources.tolist(), targets.tolist(), strict=True))


def test_an_entry_of_debians_index_leads_once_to_each_thing_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BenchError, match="Debian"):
        write_debian(str(tmp_path))
    program, index = tmp_path / "bin" / "apt-cache", tmp_path / "index"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nwhile IFS= read -r line; do printf '%s\\n' \"$line\"; done < {index}\n")
    program.chmod(0o755)
    index.touch()
    with pytest.raises(BenchError, match="apt-get update"):
        write_debian(str(tmp_path))
    index.write_text(INDEX)
    assert write_debian(str(tmp_path)) == (11, 10)
    sources, targets = map(list, read_graph(str(tmp_path)))
    assert sorted(map(sources.count, set(sources))) == [1, 9]
    assert set(sources) | set(targets) == set(range(11))
    assert len(set(sources) & set(targets)) == 1, "libc6 is the same vertex in both entries"


@pytest.mark.parametrize(
    ("kind", "sizes", "check"),
    [
        (RankWorkload, {"pages": 2, "edges": 2, "rounds": 1}, check_ranks),
        (SpreadWorkload, {"vertices": 2, "edges": 1}, check_values),
        (FitWorkload, {"model": Weights, "rounds": 4, "warm_up_rounds": 1}, check_parameters),
    ],
)
def test_values_that_differ_are_refused(kind: Any, sizes: dict[str, Any], check: Any, tmp_path: Path):
    workload = kind(str(tmp_path), **sizes)
    for name, second in (("ours", 1.0), ("scipy", 1.0), ("ray", 1.001)):
        np.save(workload.result(name), np.array([1.0, second]))
    check(workload, "ours", "scipy")
    with pytest.raises(BenchError, match="ours and ray"):
        check(workload, "ours", "scipy", "ray")


def test_sums_that_lack_a_key_or_have_it_twice_are_refused(tmp_path: Path):
    workload = SumWorkload(str(tmp_path), rows=500, keys=20)
    write_rows(workload, seed=1)
    keys, sums = np.arange(20), np.load(workload.file("sums"))
    workload.check("ours", keys, sums)
    wrong: list[Any] = [(keys[1:], sums[1:]), ([0, *keys], [sums[0], *sums]), (keys, sums + (keys == 3))]
    for found_keys, found_sums in wrong:
        with pytest.raises(ValueError, match=r"\bours\b"):
            workload.check("ours", np.asarray(found_keys), np.asarray(found_sums))
