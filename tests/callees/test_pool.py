"""A pool without Ray, and what a pool refuses."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from backedge import Collect, Flow, GraphError, Items, Pool, simulate
from backedge.engine.on_ray import cluster
from tests.every import every
from tests.gates import wait_for


class Twice:
    """Remembers the threads it was used in."""

    made = 0

    def __init__(self, by: int = 2) -> None:
        Twice.made += 1
        self.by = by
        self.threads = {threading.get_ident()}

    def __call__(self, record: int) -> tuple[int, int]:
        self.threads.add(threading.get_ident())
        if record < 0:
            raise ValueError(record)
        return self.by * record, len(self.threads)


class Awaiting:
    async def on_start(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def __call__(self, record: int) -> bool:
        return asyncio.get_running_loop() is self.loop

    async def close(self) -> None:
        CLOSED.append(self)


CLOSED: list[Awaiting] = []


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that is not connected: others in this process may be."""
    monkeypatch.setattr(cluster, "is_connected", lambda: False)


@pytest.mark.usefixtures("without_ray")
def test_without_ray_one_instance_serves_in_one_thread():
    flow = Flow("doubled")
    pool = Pool(Twice, by=3)
    flow.read(Items([1, 2, 3]), name="numbers").map_async(pool, name="twice").write(Collect(), name="done")
    before = Twice.made
    assert sorted(simulate(flow, seeds=range(2), crashes=1).outputs["done"]) == [(3, 1), (6, 1), (9, 1)]
    assert Twice.made == before + 1
    with pytest.raises(ValueError, match="-1"):
        asyncio.run(pool(-1))


@pytest.mark.usefixtures("without_ray")
def test_an_async_class_lives_in_one_event_loop_until_it_is_closed():
    pool = Pool(Awaiting)
    assert [asyncio.run(pool(1)) for _ in range(2)] == [True, True]
    asyncio.run(pool.close())
    assert len(CLOSED) == 1


@pytest.mark.usefixtures("without_ray")
def test_a_pool_that_is_closed_leaves_no_threads_and_a_later_call_starts_another_one():
    pool = Pool(Twice, by=5, at_once=2)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("Twice")]

    before = threads()
    for _ in range(2):
        assert asyncio.run(pool(2))[0] == 10
        assert len(threads()) > len(before)
        asyncio.run(pool.close())
        wait_for(lambda: threads() == before, "its threads have ended")


def test_pools_of_the_same_class_arguments_and_options_are_one():
    names = [repr(pool) for pool in (Pool(Twice), Pool(Twice), Pool(Twice, 3), Pool(Twice, name="b"), Pool(Awaiting))]
    assert names[0] == names[1]
    assert len(set(names)) == 4


@every(
    ("arguments", "options"),
    [
        ((len,), {}),
        ((object,), {}),
        ((Twice, threading.Lock()), {}),
        *(((Twice,), fault) for fault in ({"actors": 0}, {"at_once": 0}, {"num_gpus": -1}, {"name": "a/b"})),
    ],
)
def test_what_it_cannot_do_is_refused(arguments: Any, options: dict[str, Any]):
    with pytest.raises(GraphError, match=r"Pool|pool"):
        Pool(*arguments, **options)
