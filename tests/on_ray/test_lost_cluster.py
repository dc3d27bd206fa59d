"""The whole cluster is lost: driver, GCS, daemon, supervisor and tasks end at once. The same job goes on elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.rays import check_gone, commands_below, short_folder
from tests.on_ray.drivers import COUNT, driver, next_line
from tests.on_ray.flows import trips_made
from tests.on_ray.leftovers import end

pytestmark = pytest.mark.slow


def test_a_run_whose_cluster_is_lost_goes_on_in_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with short_folder() as first:
        monkeypatch.setenv("RAY_TMPDIR", first)
        with driver("tests.on_ray.drivers", "follow", str(tmp_path), address=None) as lost:
            while (epoch := next_line(lost)["epoch"] or 0) < 3:
                continue
            below = commands_below(lost.pid)
            assert any("gcs_server" in command for command in below.values())
            for pid in (*below, lost.pid):
                end(pid)
            lost.wait()
            check_gone(set(below))
    with short_folder() as second:
        monkeypatch.setenv("RAY_TMPDIR", second)
        with driver("tests.on_ray.drivers", "resume", str(tmp_path), address=None) as later:
            told = next_line(later)
            assert later.wait() == 0
    assert told["restored"][0] >= epoch
    assert [tuple(row) for row in told["done"]] == trips_made(COUNT)
