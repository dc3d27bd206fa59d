"""A run that has finished does not fail because its store is away for a moment when its output is read."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.engine.run.driver import StoreRetries
from backedge.recovery.stores.run_status import RunStatus
from tests.on_ray.supervised import Supervised


class Away:
    """The output of a run, in a store that is away the first times that it is asked."""

    def __init__(self, times: int) -> None:
        self.left = times

    def collected(self) -> dict[str, list[Any]]:
        if self.left:
            self.left -= 1
            raise OSError(5, "the store is away")
        return {"kept": [1, 2]}


def finished(monkeypatch: pytest.MonkeyPatch, times: int) -> Supervised:
    """The run is over; what is left to do is to read its output."""
    supervised = Supervised(monkeypatch)
    run: Any = supervised.run
    run.earlier = RunStatus("supervised", "", "finished", True, 0.0, 1.5, None, 1, 3, 1)
    run.driver.retries = StoreRetries(pause_ms=0, tries_max=3)
    run.output = Away(times)
    return supervised


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_output_is_read_again_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch, times: int):
    supervised = finished(monkeypatch, times)
    story = supervised.run.run()
    assert (story.state, story.outputs) == ("finished", {"kept": [1, 2]})
    assert supervised.lines.count("cannot be read yet") == (times > 0)


def test_a_store_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch):
    supervised = finished(monkeypatch, 100)
    with pytest.raises(OSError, match="the store is away"):
        supervised.run.run()
