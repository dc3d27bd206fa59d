"""K-means and the regression of the benchmarks: our flow and the peers come to the same parameters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backedge import simulate
from bench import fitting
from bench.fitting import check_parameters, fitted, make_flow
from bench.kmeans import Centres, write_points
from bench.ours import BenchError
from bench.peers import fit_numpy, kmeans_scikit
from bench.sgd import Weights, write_rows
from bench.workloads import FitWorkload


class Teller:
    """Receives the figure that a peer reports."""

    def send(self, figure: float) -> None:
        assert isinstance(figure, float)


def workload_of(name: str, folder: Path) -> FitWorkload:
    write = {"kmeans": write_points, "sgd": write_rows}[name]
    write(str(folder), 400, 1)
    return FitWorkload(str(folder), {"kmeans": Centres, "sgd": Weights}[name], rounds=4, warm_up_rounds=1)


SCIKIT = {"scikit": kmeans_scikit.fit} if kmeans_scikit.is_installed() else {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "peers"), [("kmeans", {"numpy": fit_numpy.fit, **SCIKIT}), ("sgd", {"numpy": fit_numpy.fit})]
)
def test_two_tasks_that_crash_come_to_the_parameters_of_the_peers(
    name: str, peers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The seconds are part of the output, which must not depend on the schedule.
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    workload = workload_of(name, tmp_path)
    for fit in peers.values():
        fit(Teller(), workload)
    result = simulate(make_flow(workload), seeds=range(5), crashes=2, parallelism=2)
    ours = fitted(result.outputs["fitted"])
    np.save(workload.result("ours"), ours)
    check_parameters(workload, "ours", *peers)
    assert not np.allclose(ours, workload.first())


def test_parameters_that_differ_are_refused(tmp_path: Path):
    workload = workload_of("sgd", tmp_path)
    for name, second in (("ours", 1.0), ("ray", 1.001)):
        np.save(workload.result(name), np.array([1.0, second]))
    with pytest.raises(BenchError, match="ours and ray"):
        check_parameters(workload, "ours", "ray")
