"""A pool without Ray, and what a pool refuses."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import backedge.engine.callees.pool as pool_module
from backedge import Collect, Flow, GraphError, Items, Pool, simulate
from backedge.engine.callees.pool_calls import KEPT_S, Outcome
from backedge.engine.on_ray import cluster
from backedge.engine.operators.async_calls import Answer, Call, begin, finish
from backedge.recovery.protocol.answers import Question
from tests.every import every
from tests.gates import HANG_S, wait_for


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


class Dispatcher:
    """A dispatcher whose outcomes come at once, and their results when the test says so."""

    def __init__(self) -> None:
        self.result, self.fetched = Future[bytes](), threading.Event()
        self.dropped: list[float] = []
        self.ask, self.drop = SimpleNamespace(remote=self._ask), SimpleNamespace(remote=self._drop)

    def _ask(self, process: str, key: str, record: Any) -> Future[Outcome]:
        answered = Future[Outcome]()
        answered.set_result(Outcome([self.result]))
        return answered

    def _drop(self, key: str, kept_s: float) -> None:
        self.dropped.append(kept_s)

    def future(self, pending: Future[Any]) -> Future[Any]:
        if pending is self.result:
            self.fetched.set()
        return pending


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_result_whose_caller_did_not_wait_for_it_stays_for_the_next_one(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
):
    pool, dispatcher = Pool(Twice), Dispatcher()
    fakes = {
        "is_connected": lambda: True,
        "address": lambda: "here",
        "ray_job": lambda: "1",
        "pickled": pickle.dumps,
        "future": dispatcher.future,
        "RayError": LookupError,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(cluster, name, fake, raising=False)
    monkeypatch.setitem(pool_module._used, pool._address(), dispatcher)  # type: ignore[arg-type]
    call = Call(pool, 4, operator="ask", question=Question(7, "why", 0))

    async def ask() -> Answer:
        asked = asyncio.ensure_future(finish(begin(call), call))
        await asyncio.to_thread(dispatcher.fetched.wait, HANG_S)
        if is_cancelled:
            asked.cancel()
        else:
            dispatcher.result.set_result(pickle.dumps(8))
        return await asked

    answer = asyncio.run(ask())
    if is_cancelled:
        assert (type(answer.error), dispatcher.dropped) == (asyncio.CancelledError, [])
    else:
        assert (answer, dispatcher.dropped) == (Answer(8), [KEPT_S])


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
