"""Keys that are the same in each round, while tasks are killed: that they are kept changes no result."""

from __future__ import annotations

import numpy as np
import pytest

from backedge.engine.batches.division import Division
from backedge.engine.simulation.checker.record import Started
from proof.runner import run_seed
from tests.columns.given import count_found


@pytest.mark.slow
def test_tasks_that_find_kept_keys_are_killed_and_the_output_is_that_of_records(monkeypatch: pytest.MonkeyPatch):
    found = count_found(monkeypatch)
    restores = 0
    for seed in range(10):
        outcome, world, _ = run_seed(seed, 3, topology="columns_repeating", rescales=1)
        assert outcome.violations == []
        restores += sum(isinstance(event, Started) and event.restored is not None for event in world.record.trace)
    assert found[Division] > 50
    assert found[np.ndarray] > 50
    assert restores > 4
