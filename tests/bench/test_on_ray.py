"""Each benchmark runs, small and short, and tells what it must tell."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench import loop
from bench.options import Options
from bench.peers import columns_ray_data, count_bytewax, kmeans_scikit
from bench.session import session

TOLD = {"bench", "unit", "ours", "peers", "ratios", "spread", "ok", "missed", "load"}
PEERS = {
    "loop": {"bare", "bare_task"},
    "watch": {"unwatched"},
    "hop": {"bare", "ray", "bare_apart"},
    "count": {"bare"},
    "columns": {"arrow", "uncut", "block_us"},
    "snapshot": {"none", "none_100ms", "dict_copy"},
    "start": {"actor_start"},
    "recover": {"actor_start", "actor_start_without_spare", "undisturbed_per_s", "task_death"},
    "rescale": {"actor_start", "before", "light_before"},
    "superstep": {"ray", "ray_led"},
    "pagerank": {"ray", "scipy", "spark"},
    "components": {"ray", "scipy"},
    "paths": {"ray", "scipy"},
    "kmeans": {"ray"},
    "sgd": {"ray", "numpy"},
}
RATIOS = {"watch": {"unwatched", "processor"}}
"""Where they are not those of the peers."""
SECONDS = {"columns": 3.0}
"""Where a cut a second must come in each window."""
MORE = {
    "columns": {"rows"},
    "loop": {"epochs", "epochs_with_log", "ours_task"},
    "pagerank": {"scale", "edges", "cuts_min"},
    "components": {"scale", "edges", "cuts_min", "free_running_over_rounds"},
    "paths": {"side", "edges", "cuts_min", "free_running_over_rounds", "followed"},
    "kmeans": {"rows", "cuts_min"},
    "sgd": {"rows", "cuts_min"},
    "snapshot": {"epochs_requested", "epochs_completed", "epochs_requested_100ms", "epochs_completed_100ms"},
}


@pytest.fixture(autouse=True)
def ray(local_ray: None) -> Iterator[None]:
    # A session uses the Ray that is there.
    with session():
        yield


@pytest.mark.long
@pytest.mark.parametrize("name", PEERS)
def test_a_benchmark_on_ray_tells_its_figure_its_peers_and_the_ratios(name: str, monkeypatch: pytest.MonkeyPatch):
    # Whether or not they are installed: of so few rows they need minutes, or give no figure.
    for optional in (columns_ray_data, count_bytewax, kmeans_scikit):
        monkeypatch.setattr(optional, "is_installed", lambda: False)
    options = Options(turns=1, seconds=SECONDS.get(name, 0.3), records=20_000, scale=12, side=30)
    told: dict[str, Any] = json.loads(importlib.import_module(f"bench.{name}").run(options).as_json())
    assert told.keys() >= TOLD | MORE.get(name, set())
    assert told["bench"] == name and told["ours"] > 0
    assert told["peers"].keys() >= PEERS[name] and told["ratios"].keys() == RATIOS.get(name, told["peers"].keys())
    assert all(figure > 0 for figure in (*told["peers"].values(), *told["ratios"].values()))


def test_a_large_loop_runs_to_its_end():
    report = loop.run(Options(large=True, records=5_000))
    assert report.ok and json.loads(report.as_json())["ours"] > 0
