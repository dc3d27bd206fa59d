"""A supervisor waits for a store that is away: if it failed, the run would be over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge.engine.on_ray import cluster, job_store
from backedge.engine.on_ray.transport.control_messages import TaskOptions


class Away(job_store.CutStore):
    """A store that cannot be opened at first."""

    tries_left = 0

    def __init__(self, *given: Any) -> None:
        if Away.tries_left:
            Away.tries_left -= 1
            raise OSError(5, "the object store did not answer as expected")
        super().__init__(*given)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskOptions:
    monkeypatch.setattr(job_store, "CutStore", Away)
    return TaskOptions(job="awaited", root=str(tmp_path))


def test_a_store_that_is_away_is_awaited(options: TaskOptions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Away, "tries_left", 3)
    job_store.await_store(options, pause_s=0.001)
    assert Away.tries_left == 0
    assert job_store.open_chain(options).chain() == []


def test_a_store_that_stays_away_is_not_awaited_for_ever(options: TaskOptions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Away, "tries_left", 1_000_000)
    job_store.await_store(options, patience_s=0.01, pause_s=0.001)
    with pytest.raises(OSError, match="did not answer"):
        job_store.open_chain(options)


class Failing:
    def __init__(self) -> None:
        raise OSError(5, "the object store did not answer as expected")

    def lead(self) -> None:
        """What it never does."""


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_an_actor_that_fails_to_begin_says_why():
    actor = cluster.start_actor(Failing, name="failing", space="failing", needs=cluster.Needs(), threads=1)
    with pytest.raises(cluster.ActorDiedError) as caught:
        cluster.get(actor.lead.remote())
    assert cluster.first_line(caught.value) == "OSError: [Errno 5] the object store did not answer as expected"
