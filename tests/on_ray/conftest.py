"""What each test on Ray must leave behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.detached_runs import SPACE
from tests.on_ray.leftovers import Leftovers


@pytest.fixture
def on_ray(local_ray: None) -> Iterator[None]:
    """Ray for one test; when it is over no process and no folder of a run is left."""
    before = Leftovers.now()
    yield
    try:
        Leftovers.now().without(before).expect_none()
    except AssertionError:
        end_runs()
        raise


def end_runs() -> None:
    """End all runs for good: Ray starts a supervisor again whose process alone was ended."""
    for name, space in cluster.named_actors():
        actor = cluster.find_actor(name, space) if space.startswith(SPACE) else None
        if actor is not None:
            cluster.kill(actor)
