"""Which actor of a pool makes which call, and what follows when one dies. The tests answer in place of the actors."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import backedge.engine.callees.pool_calls as pool_calls
from backedge import PoolError
from backedge.engine.callees.pool_calls import STARTS_MAX, LostError, Outcome, PoolCalls


class Actor:
    """`calls` are those that it makes: the record of each, and what ends it."""

    def __init__(self, number: int, starts: bool) -> None:
        self.number = number
        self.starts = starts
        self.calls: list[tuple[Any, asyncio.Future[Outcome]]] = []
        self.is_ended = False

    async def ready(self) -> None:
        if not self.starts:
            raise LostError("no memory")

    async def call(self, record: Any) -> Outcome:
        end = asyncio.get_running_loop().create_future()
        self.calls.append((record, end))
        return await end

    def end(self) -> None:
        self.is_ended = True

    async def answer(self) -> None:
        record, end = self.calls.pop(0)
        end.set_result(Outcome([f"{record} by {self.number}"]))
        await settled()

    async def lose(self) -> None:
        self.calls.pop(0)[1].set_exception(LostError("killed"))
        await settled()


async def settled() -> None:
    """Everything has happened that need not wait for an actor."""
    for _ in range(20):
        await asyncio.sleep(0)


class Pool:
    """A pool of such actors, and the processes that are dead."""

    def __init__(self, actors: int = 2, at_once: int = 1) -> None:
        self.actors: list[Actor] = []
        self.dead: set[str] = set()
        self.can_start = True
        self.calls = PoolCalls(self._start, actors, at_once, lambda process: process not in self.dead)

    def _start(self) -> Actor:
        self.actors.append(Actor(len(self.actors), self.can_start))
        return self.actors[-1]

    async def ask(self, record: Any, key: str | None = None, caller: str = "a") -> asyncio.Task[Outcome]:
        asked = asyncio.ensure_future(self.calls.ask(caller, key, record))
        await settled()
        return asked

    def made(self) -> list[list[Any]]:
        """The records that each living actor works on."""
        return [[record for record, _ in actor.calls] for actor in self.actors if not actor.is_ended]


def scripted(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an event loop."""

    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def error_of(asked: asyncio.Task[Outcome]) -> str:
    error = pickle.loads(asked.result().error or b"")
    assert isinstance(error, PoolError)
    return str(error)


@scripted
async def test_a_call_goes_to_the_actor_that_makes_the_fewest():
    pool = Pool(actors=2, at_once=2)
    for record in range(5):
        await pool.ask(record)
    assert pool.made() == [[0, 2], [1, 3]]
    await pool.actors[1].answer()
    assert pool.made() == [[0, 2], [3, 4]]


@scripted
async def test_an_actor_that_cannot_be_started_is_tried_again_with_the_next_call():
    """And not again and again while no one asks."""
    pool = Pool(actors=1)
    await pool.ask("first")
    pool.calls._actors = 2
    pool.can_start = False
    tried = [len(pool.actors)]
    for record in range(2):
        await pool.ask(record)
        await settled()
        tried.append(len(pool.actors))
    assert tried == [1, 1 + STARTS_MAX, 1 + 2 * STARTS_MAX]
    pool.can_start = True
    await pool.ask("last")
    assert pool.made() == [["first"], *[[]] * 2 * STARTS_MAX, [0]]


@scripted
async def test_calls_wait_in_their_order():
    pool = Pool(actors=1)
    asked = [await pool.ask(record) for record in range(3)]
    for _ in range(3):
        await pool.actors[0].answer()
    assert [task.result().result for task in asked] == [["0 by 0"], ["1 by 0"], ["2 by 0"]]


@scripted
async def test_a_call_with_a_key_is_joined_while_it_runs_and_when_it_is_over():
    pool = Pool()
    first = await pool.ask("x", "key")
    second = await pool.ask("x", "key", "b")
    await pool.actors[0].answer()
    third = await pool.ask("x", "key", "c")
    assert first.result() == second.result() == third.result() == Outcome(["x by 0"])
    assert pool.made() == [[], []]
    await pool.ask("x")
    assert pool.made() == [["x"], []]


@scripted
async def test_a_call_that_goes_on_after_its_process_died_is_joined():
    pool = Pool()
    left = await pool.ask("x", "key")
    left.cancel()
    await settled()
    pool.dead.add("a")
    joined = await pool.ask("x", "key", "b")
    await pool.actors[0].answer()
    assert joined.result().result == ["x by 0"]


@scripted
async def test_a_result_is_kept_until_there_are_too_many_or_some_time_after_it_was_fetched():
    pool = Pool(actors=1)
    for number in range(pool_calls.KEPT_MAX + 1):
        await pool.ask(number, str(number))
        await pool.actors[0].answer()
    await pool.ask("new", "0")
    assert pool.made() == [["new"]], "the oldest is forgotten"
    timers: list[tuple[Any, ...]] = []
    asyncio.get_running_loop().call_later = lambda *timer: timers.append(timer)  # type: ignore[assignment]
    pool.calls.drop("7", pool_calls.KEPT_S)
    assert (await pool.ask("new", "7")).done()
    ((delay_s, forget, *of),) = timers
    assert delay_s == pool_calls.KEPT_S
    forget(*of)
    assert not (await pool.ask("new", "7")).done()


@scripted
async def test_the_calls_of_a_dead_actor_are_made_by_others_and_it_is_replaced():
    pool = Pool(actors=1, at_once=2)
    asked = [await pool.ask(record) for record in range(3)]
    for _ in range(2):
        await pool.actors[0].lose()
    assert pool.actors[0].is_ended
    assert pool.made() == [[2, 0]]
    for _ in range(3):
        await pool.actors[1].answer()
    assert sorted(task.result().result[0] for task in asked) == ["0 by 1", "1 by 1", "2 by 1"]


@scripted
async def test_three_deaths_under_one_call_are_an_error_that_is_not_kept():
    pool = Pool(actors=1)
    asked = await pool.ask("x", "key")
    for number in range(3):
        await pool.actors[number].lose()
    assert "lost 3 times" in error_of(asked)
    assert "killed" in error_of(asked)
    await pool.ask("x", "key")
    assert pool.made() == [["x"]]


@scripted
async def test_actors_that_cannot_be_started_are_an_error_and_the_next_call_starts_others():
    pool = Pool(actors=2)
    pool.can_start = False
    asked = await pool.ask("x")
    assert "no memory" in error_of(asked)
    assert len(pool.actors) == 2 * pool_calls.STARTS_MAX
    pool.can_start = True
    asked = await pool.ask("y")
    await pool.actors[-1].answer() if pool.actors[-1].calls else await pool.actors[-2].answer()
    assert asked.result().error is None


@scripted
async def test_a_call_whose_callers_are_gone_is_not_begun():
    pool = Pool(actors=1)
    running, waiting = await pool.ask("x"), await pool.ask("y", "key", "b")
    (await pool.ask("z", caller="c")).cancel()
    pool.dead.add("b")
    await pool.actors[0].answer()
    assert pool.made() == [[]]
    assert running.done()
    assert waiting.cancelled()
    await pool.ask("y", "key")
    assert pool.made() == [["y"]], "another process may ask it"


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_calls, "KEPT_MAX", 8)
