"""What each test on Ray must leave behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.on_ray.leftovers import Leftovers


@pytest.fixture
def on_ray(local_ray: None) -> Iterator[None]:
    """Ray for one test; when it is over no process and no folder of a run is left."""
    before = Leftovers.now()
    yield
    Leftovers.now().without(before).expect_none()
