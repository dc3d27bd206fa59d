"""Every call of map_async has an answer, whatever it ends with, and whatever kind of function it is."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from backedge import Collect, Flow, Items, UserFunctionError, simulate
from engine.answering import Call
from engine.on_ray.actor.background import Answered, Background
from graphs.ids import TaskId
from tests.runtime.tasks import Tasks

DEADLINE_S = 60.0
TASK = TaskId("ask", 0)


class Asking:
    """One actor's background, and what it has answered."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.background = Background(None, self.woken.release)

    def __call__(self, function: Callable[[Any], Any], record: Any = 1, timeout_s: float | None = None) -> Answered:
        self.background.call(TASK, 7, Call(function, record, timeout_s))
        assert self.woken.acquire(timeout=DEADLINE_S), "the call has no answer"
        answered = self.background.done.popleft()
        assert isinstance(answered, Answered)
        assert (answered.task, answered.call_id) == (TASK, 7)
        return answered


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.background.close()


async def double(record: int) -> int:
    await asyncio.sleep(0)
    return 2 * record


class Doubling:
    async def __call__(self, record: int) -> int:
        return await double(record)

    async def method(self, record: int) -> int:
        return await double(record)


class Later:
    """Something to be awaited that is no coroutine."""

    def __init__(self, record: int) -> None:
        self.record = record

    def __await__(self) -> Any:
        return double(self.record).__await__()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda record: 2 * record,
    "async": double,
    "lambda that gives a coroutine": lambda record: double(record),
    "object with an async call": Doubling(),
    "async method": Doubling().method,
    "partial": partial(double),
    "partial of an object": partial(Doubling()),
    "awaitable": Later,
}


@pytest.mark.parametrize("timeout_s", [None, DEADLINE_S])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_kind_of_function_is_answered(asking: Asking, kind: str, timeout_s: float | None):
    assert asking(FUNCTIONS[kind], 4, timeout_s)[2:] == (8, None)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_kind_of_function_is_answered_in_simulate(kind: str):
    flow = Flow("calls")
    asked = flow.read(Items([1, 2, 3]), name="numbers").map_async(FUNCTIONS[kind], timeout=DEADLINE_S, name="ask")
    asked.write(Collect(), name="done")
    assert sorted(simulate(flow, seeds=range(3)).outputs["done"]) == [2, 4, 6]


def cancelled() -> None:
    raise asyncio.CancelledError


def exits() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def stops() -> None:
    raise StopIteration


def closes() -> None:
    raise GeneratorExit


def plainly(end: Callable[[], None]) -> Callable[[int], int]:
    def ask(record: int) -> int:
        if record == 1:
            end()
        return record

    return ask


def awaiting(end: Callable[[], None]) -> Callable[[int], Awaitable[int]]:
    async def ask(record: int) -> int:
        await asyncio.sleep(0)
        if record == 1:
            end()
        return record

    return ask


ENDS = {
    "CancelledError": cancelled,
    "SystemExit: 3": exits,
    "KeyboardInterrupt": interrupts,
    "StopIteration": stops,
    "GeneratorExit": closes,
}


@pytest.mark.parametrize("timeout_s", [None, DEADLINE_S])
@pytest.mark.parametrize("kind", [plainly, awaiting])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_call_is_answered_whatever_it_ends_with_and_the_next_one_too(
    asking: Asking, end: Any, kind: Any, timeout_s: float | None
):
    error = asking(kind(end), 1, timeout_s).error
    assert error is not None
    assert not isinstance(error, TimeoutError)
    if not (kind is awaiting and end is stops):  # Python makes a RuntimeError of it
        with pytest.raises(BaseException) as raised:
            end()
        assert type(error) is raised.type
    assert asking(kind(end), 2, timeout_s)[2:] == (2, None)


def test_one_that_cancels_itself_is_answered(asking: Asking):
    async def ask(record: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(DEADLINE_S)
        return record

    assert isinstance(asking(ask).error, asyncio.CancelledError)


def test_one_that_does_not_stop_when_it_is_cancelled_has_failed_all_the_same(asking: Asking):
    go_on = asyncio.Event()

    async def ask(record: int) -> int:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return record

    answered = asking(ask, 1, 0.01)
    assert str(answered.error) == "no answer within timeout=0.01 seconds"
    events = asking.background._event_loop()  # pyright: ignore[reportPrivateUsage]
    events.call_soon_threadsafe(go_on.set)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_answer_is_a_copy(asking: Asking, kind: str):
    cached = {"a": [1]}

    async def ask(record: int) -> dict[str, list[int]]:
        return cached

    answered = asking(ask if kind == "async" else lambda record: cached)
    assert answered.result == cached
    assert answered.result is not cached


def test_an_answer_that_does_not_pickle_is_told(asking: Asking):
    error = asking(lambda record: threading.Lock()).error
    assert "the answer is of type lock and does not pickle" in str(error)


@pytest.mark.parametrize("kind", [plainly, awaiting])
@pytest.mark.parametrize("ended", ["CancelledError", "SystemExit: 3"])
def test_simulate_tells_it_like_ray(ended: str, kind: Any):
    flow = Flow("calls")
    flow.read(Items([0, 1]), name="numbers").map_async(kind(ENDS[ended]), name="ask").write(Collect(), name="done")
    with pytest.raises(UserFunctionError, match=f"operator 'ask' raised {ended}\n  record: 1\n"):
        simulate(flow, seeds=[])


def test_simulate_runs_what_really_awaits_with_dead_letters_too():
    bound: list[Any] = []

    async def ask(record: int) -> int:
        await asyncio.sleep(0)
        bound.append(asyncio.get_running_loop())
        if record == 3:
            raise ValueError(record)
        return record

    flow = Flow("calls")
    asked = flow.read(Items(range(10)), name="numbers").map_async(ask, on_error="dead_letter", name="ask")
    asked.write(Collect(), name="done")
    asked.dead_letters.write(Collect(), name="dead")
    result = simulate(flow, seeds=range(3))
    assert (len(result.outputs["done"]), result.outputs["dead"]) == (9, [3])
    assert len(set(map(id, bound))) == 4, "one event loop for each run"


def test_simulate_keeps_to_the_timeout_of_what_awaits():
    async def ask(record: int) -> int:
        await asyncio.Event().wait()
        return record

    flow = Flow("calls")
    flow.read(Items([5]), name="numbers").map_async(ask, timeout=0.01, name="ask").write(Collect(), name="done")
    with pytest.raises(UserFunctionError, match="raised TimeoutError: no answer within timeout="):
        simulate(flow, seeds=[])


def test_simulate_makes_calls_from_within_a_running_event_loop():
    flow = Flow("calls")
    flow.read(Items([1, 2]), name="numbers").map_async(double, name="ask").write(Collect(), name="done")

    async def notebook() -> list[int]:
        return sorted(simulate(flow, seeds=range(2)).outputs["done"])

    assert asyncio.run(notebook()) == [2, 4]


def test_two_callers_in_one_task_keep_their_own_timeouts():
    flow = Flow("calls")
    first = flow.read(Items([]), name="numbers").rebalance().map_async(double, timeout=5, name="first")
    first.map_async(double, timeout=60, name="second").rebalance().write(Collect(), name="done")
    tasks = Tasks(flow)
    home = tasks.home("first")
    tasks.feed("first", [1])
    assert home.call(1).timeout_s == 5
    home.on_answer(1, 2)
    assert home.call(2).timeout_s == 60
