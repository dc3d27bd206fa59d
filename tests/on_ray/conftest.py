"""One local Ray for the tests that need one, and what each of them must leave behind: nothing."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.on_ray import cluster
from tests.jobs.rays import collect_what_ray_leaves
from tests.on_ray.leftovers import Leftovers

INSTALLED = Path(__file__).parents[1] / "extending" / "installed"


@pytest.fixture(scope="session")
def local_ray(own_home_and_temporary_folder: None) -> Iterator[None]:
    """Ray, connected, in a folder whose name is short enough for its sockets."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as environment:
        # For the workers, too, the distribution of tests/extending/installed is one that is installed.
        environment.setenv("PYTHONPATH", str(INSTALLED))
        cluster.ray.init(
            num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, _temp_dir=folder
        )
    yield
    cluster.disconnect()
    collect_what_ray_leaves()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def on_ray(local_ray: None) -> Iterator[None]:
    """Ray for one test; when it is over no process and no folder of a run is left."""
    before = Leftovers.now()
    yield
    Leftovers.now().without(before).expect_none()
