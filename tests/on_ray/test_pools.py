"""A pool of actors under a run whose processes die, and alone: no call is made again that need not be."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import backedge.engine.callees.pool as pool_module
from backedge import Collect, Flow, Items, Pool, PoolError
from backedge.engine.on_ray import cluster
from backedge.engine.operators.async_calls import Call, finish, in_event_loop
from backedge.engine.operators.async_calls import begin as begin_call
from backedge.recovery.protocol.answers import Question
from tests.gates import wait_for
from tests.on_ray.flows import begin, expect, killed, until
from tests.on_ray.leftovers import end, has_ended

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

QUESTIONS, TURNS, KILLS = 8, 3, 4


class Model:
    """What an actor holds: it asks a service on loopback, as another model would compute."""

    async def __call__(self, talk: dict[str, Any]) -> dict[str, Any]:
        asked = {**talk, "pid": os.getpid()}
        async with aiohttp.ClientSession() as session, session.post(talk["url"], json=asked) as response:
            return {**talk, "turns": (await response.json())["turns"]}


class Service:
    """Counts the calls of each turn of a question. It keeps the last turns until it may answer.

    - running: the process that waits for an answer, by question and turn.
    """

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.calls = Counter[tuple[int, int]]()
        self.running: dict[tuple[int, int], int] = {}

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        talk = await sent.json()
        of = talk["question"], talk["turns"]
        self.calls[of] += 1
        self.running[of] = talk["pid"]
        if talk["turns"] == TURNS - 1:
            await self.may_answer.wait()
        return web.json_response({"turns": talk["turns"] + 1})

    async def serve(self) -> tuple[web.ServerRunner, str]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"

    async def open_gate(self) -> None:
        self.may_answer.set()


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    made = Service()
    runner, url = in_event_loop(made.serve()).result()
    yield made, url
    in_event_loop(made.open_gate()).result()
    in_event_loop(runner.cleanup()).result()


def talks(url: str, pool: Pool) -> Flow:
    flow = Flow("pooled")
    turns = flow.loop("turns", of=dict)
    items = [{"url": url, "question": number, "turns": 0} for number in range(QUESTIONS)]
    asked = flow.read(Items(items), name="questions").merge(turns).map(dict, name="talk")
    answered, open_ = asked.map_async(pool, name="ask").split(lambda talk: talk["turns"] == TURNS)
    turns.feed(open_)
    answered.map(lambda talk: talk["question"]).write(Collect(), name="answers")
    return flow


def waiting(service: Service) -> set[tuple[int, int]]:
    return {of for of in service.running if of[1] == TURNS - 1}


def test_only_the_call_that_a_pool_actor_dies_under_is_made_again(service: tuple[Service, str], tmp_path: Path):
    made, url = service
    pool = Pool(Model, actors=2, at_once=QUESTIONS)
    kills = [f"ask@epoch={2 * n + 2}" for n in range(KILLS)]
    job = begin(
        talks(url, pool), snapshots=str(tmp_path), every=0.05, actors="task", max_restarts=2 * KILLS, kills=kills
    )
    until(job, lambda story: len(story.restores) == KILLS, "its process has died, and its tasks run again")
    until(job, lambda _: len(waiting(made)) == QUESTIONS, "the last turns are asked")
    assert set(made.calls.values()) == {1}, "no death of the process that asks costs a call"

    victim = made.running[0, TURNS - 1]
    lost = {of for of in waiting(made) if made.running[of] == victim}
    end(victim)
    until(job, lambda _: all(made.running[of] != victim for of in lost), "others make its calls")
    in_event_loop(made.open_gate()).result()
    result = job.wait()
    assert sorted(killed(result)) == sorted(kills)
    expect(result, range(QUESTIONS), "answers")
    assert made.calls == {(q, turn): 1 + ((q, turn) in lost) for q in range(QUESTIONS) for turn in range(TURNS)}

    asyncio.run(pool.close())
    assert all(has_ended(pid) for pid in set(made.running.values()))


class Fragile:
    calls = 0

    def __call__(self, record: str) -> int:
        self.calls += 1
        if record == "die":
            os._exit(1)
        if record == "raise":
            raise KeyError(f"call {self.calls}")
        return os.getpid()


def test_errors_are_those_of_the_class_until_its_actors_die_of_it():
    async def use() -> None:
        async with Pool(Fragile, actors=1) as pool:
            with pytest.raises(KeyError, match="call 1") as raised:
                await pool("raise")
            assert "in __call__" in repr(raised.value.__notes__)
            kept = Call(pool, "raise", question=Question(0, "raise", 0))
            again = [str((await finish(begin_call(kept), kept)).error) for _ in range(2)]
            assert again == ["'call 2'", "'call 3'"], "an error that was told is not the answer to the next call"
            with pytest.raises(PoolError, match="lost 3 times"):
                await pool("die")
            assert await pool("ask")

    asyncio.run(use())


def test_an_unused_pool_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "LEASE_S", 1.0)
    pool = Pool(Fragile, actors=1, name="unused")
    pid = asyncio.run(pool("ask"))
    address = pool._address()
    pool_module._used.clear()  # as if this process had ended
    assert has_ended(pid)
    wait_for(lambda: cluster.find_actor(address.name, address.space) is None, "the pool ends")
    assert asyncio.run(pool("ask")) != pid
    asyncio.run(pool.close())
