"""A crawler and an agent loop with clients as users write them, killed again and again: no attempt fails for a client.

A process that survives the death of another one goes on with the session and the semaphore that it has used before.
The server keeps some requests until all deaths have happened. These calls are open in each cut, and each attempt makes
them again, so every attempt needs its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from backedge import Collect, Flow, Items
from backedge.engine.operators.async_calls import in_event_loop
from tests.faults.evidence import Evidence
from tests.on_ray.flows import begin, expect, killed, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

PAGES = 120
ROOTS = 20
QUESTIONS = 20
TOOLS = 3
Ask = Callable[[dict[str, Any]], Awaitable[Any]]

session: aiohttp.ClientSession | None = None
limit = asyncio.Semaphore(64)


async def request(made: aiohttp.ClientSession, record: dict[str, Any]) -> dict[str, Any]:
    """Send what is known to a service, and return its answer."""
    async with made.post(record["url"], json=record) as response:
        return await response.json()


async def ask(record: dict[str, Any]) -> dict[str, Any]:
    """With a session and a semaphore in globals."""
    global session
    if session is None:
        session = aiohttp.ClientSession()
    async with limit:
        return await request(session, record)


class Client:
    """The same as a class."""

    async def on_start(self) -> None:
        self.session = aiohttp.ClientSession()
        self.limit = asyncio.Semaphore(64)

    async def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        async with self.limit:
            return await request(self.session, record)

    async def close(self) -> None:
        await self.session.close()


class Site:
    """A service on loopback: pages with links, and a model that uses tools before it answers."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        """The links of a page, or the next turn of the model. The first pages and all answers come late."""
        record = await sent.json()
        self.asked += 1
        if "page" in record:
            number = record["page"]
            if number < ROOTS // 2:
                await self.may_answer.wait()
            links = [link for link in (2 * number + ROOTS, 2 * number + ROOTS + 1, number) if link < PAGES]
            return web.json_response({**record, "links": links})
        turns = [*record["turns"], f"tool {len(record['turns'])}"]
        if len(turns) <= TOOLS:
            return web.json_response({**record, "turns": turns})
        await self.may_answer.wait()
        return web.json_response({**record, "answer": record["question"] ** 2})

    async def serve(self) -> tuple[web.ServerRunner, str]:
        """Begin; returns the address."""
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"


@pytest.fixture
def site() -> Iterator[tuple[Site, str]]:
    made = Site()
    runner, url = in_event_loop(made.serve()).result()
    yield made, url
    in_event_loop(runner.cleanup()).result()


def crawler_and_agent(url: str) -> Flow:
    """Two pipelines: each page once, and each question until it has an answer."""
    flow = Flow("clients")
    found = flow.loop("found")
    roots = flow.read(Items([{"url": url, "page": number} for number in range(ROOTS)]), name="roots")
    keyed = roots.merge(found).key_by("page")
    new, _ = keyed.stateful_map(lambda seen, page: (True, (page, seen)), initial=False, name="seen").split(is_new)
    pages = new.map(lambda pair: pair[0], name="page").rebalance().map_async(ask, name="fetch")
    found.feed(pages.flat_map(links, name="links"))
    pages.map(lambda page: page["page"], name="number").write(Collect(), name="pages")

    turns = flow.loop("turns", of=dict)
    items = [{"url": url, "question": number, "turns": []} for number in range(QUESTIONS)]
    talks = flow.read(Items(items), name="questions").merge(turns).key_by("question")
    counted = talks.stateful_map(lambda calls, talk: (calls + 1, {**talk, "calls": calls + 1}), initial=0, name="talk")
    answered, open_ = counted.rebalance().map_async(Client, name="ask").split(lambda talk: "answer" in talk)
    turns.feed(open_)
    answered.map(lambda talk: (talk["question"], talk["answer"], talk["calls"])).write(Collect(), name="answers")
    return flow


def is_new(pair: tuple[Any, bool]) -> bool:
    return not pair[1]


def links(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"url": page["url"], "page": link} for link in page["links"]]


@pytest.mark.parametrize("deaths", [4, pytest.param(10, marks=pytest.mark.long)])
def test_a_crawler_with_a_client_in_globals_and_an_agent_with_one_as_a_class_survive_deaths(
    site: tuple[Site, str], deaths: int, tmp_path: Path, evidence: Evidence
):
    made, url = site
    roles = {"crawler": ("seen", "fetch"), "agent": ("talk", "ask")}
    kills = [f"{who[n % 2]}@epoch={2 * n + 2}" for who in roles.values() for n in range(deaths)]
    job = begin(
        crawler_and_agent(url),
        snapshots=str(tmp_path),
        every=0.05,
        parallelism=2,
        actors="task",
        max_restarts=2 * deaths,
        kills=kills,
    )
    until(job, lambda story: len(story.restores) == len(kills), "all have died, and their tasks run again")
    in_event_loop(open_gate(made)).result()
    result = job.wait()
    assert sorted(killed(result)) == sorted(kills)
    evidence.happened("processes that died", len(result.kills))
    assert len(result.restores) == len(kills), "no attempt failed for another reason"
    expect(result, range(PAGES), "pages")
    expect(result, [(number, number**2, TOOLS + 1) for number in range(QUESTIONS)], "answers")
    evidence.survived("calls that were made again", made.asked - PAGES - QUESTIONS * (TOOLS + 1))


async def open_gate(site: Site) -> None:
    """Let the requests be answered that wait."""
    site.may_answer.set()
