"""A loop that asks a service: no answer that was given is asked for again, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from backedge import Collect, Flow, Items, idempotency_key
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.operators.async_calls import in_event_loop
from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import wait_for
from tests.on_ray.flows import begin, expect, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

QUESTIONS = 20
TURNS = 4
KILLS = 6
NEEDED = QUESTIONS * TURNS


class Client:
    async def on_start(self) -> None:
        self.session = aiohttp.ClientSession()

    async def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        headers = {"Idempotency-Key": str(idempotency_key())}
        async with self.session.post(record["url"], json=record, headers=headers) as response:
            return await response.json()

    async def close(self) -> None:
        await self.session.close()


class Model:
    """A service on loopback that counts. It keeps the last turn of each question until it may answer.

    - running: the requests without an answer, by their keys. answered: the keys of those that have one.
    - wrong: requests that were answered before, and requests that are repeated while their first caller still waits.
    """

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.running: dict[str, web.BaseRequest] = {}
        self.answered = Counter[str]()
        self.wrong: list[str] = []
        self.asked = 0

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        key, record = sent.headers["Idempotency-Key"], await sent.json()
        self.asked += 1
        if key in self.answered:
            self.wrong.append(f"{key} was answered")
        elif key in self.running and not _has_hung_up(self.running[key]):
            self.wrong.append(f"{key} is being answered")
        self.running[key] = sent
        turns = record["turns"] + 1
        if turns == TURNS:
            await self.may_answer.wait()
        if not _has_hung_up(sent):
            self.answered[key] += 1
        return web.json_response({**record, "turns": turns})

    async def serve(self) -> tuple[web.ServerRunner, str]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"

    async def open_gate(self) -> None:
        self.may_answer.set()


def _has_hung_up(sent: web.BaseRequest) -> bool:
    return sent.transport is None or sent.transport.is_closing()


@pytest.fixture
def model() -> Iterator[tuple[Model, str]]:
    made = Model()
    runner, url = in_event_loop(made.serve()).result()
    yield made, url
    in_event_loop(runner.cleanup()).result()


def talks(url: str) -> Flow:
    """Several turns for each question; two questions are equal, and have an answer each."""
    flow = Flow("talks")
    turns = flow.loop("turns", of=dict)
    items = [{"url": url, "question": number // 2, "turns": 0} for number in range(QUESTIONS)]
    asked = flow.read(Items(items), name="questions").merge(turns).map(dict, name="talk")
    answered, open_ = asked.map_async(Client, name="ask").split(lambda talk: talk["turns"] == TURNS)
    turns.feed(open_)
    answered.map(lambda talk: talk["question"]).write(Collect(), name="answers")
    return flow


def ended(job: Job, made: Model, evidence: Evidence) -> None:
    """Let the last turns be answered. Each question then has its answer, and none was answered twice."""
    in_event_loop(made.open_gate()).result()
    result = job.wait()
    expect(result, [number // 2 for number in range(QUESTIONS)], "answers")
    assert made.wrong == []
    assert len(made.answered) == NEEDED
    evidence.survived("answers", len(made.answered))


def test_calls_outlive_the_deaths_of_others(model: tuple[Model, str], tmp_path: Path, evidence: Evidence):
    made, url = model
    kills = [f"talk@epoch={2 * n + 2}" for n in range(KILLS)]
    job = begin(talks(url), snapshots=str(tmp_path), every=0.05, actors="task", max_restarts=2 * KILLS, kills=kills)
    story = until(job, lambda story: len(story.restores) == KILLS, "all have died, and their tasks run again")
    assert sorted(kill["fault"] for kill in story.kills) == sorted(kills)
    evidence.happened("processes that died", KILLS)
    ended(job, made, evidence)
    assert made.asked == NEEDED


def test_only_calls_of_a_process_that_died_are_made_again(model: tuple[Model, str], tmp_path: Path, evidence: Evidence):
    made, url = model
    job = begin(talks(url), snapshots=str(tmp_path), every=0.05, actors="task", max_restarts=2 * KILLS)
    asked = NEEDED
    for deaths, dies in enumerate(["talk/0", "ask/0"] * (KILLS // 2)):
        # All wait for the gate: those calls are made again by the process that replaces a dead one, and no other is.
        wait_for(lambda asked=asked: made.asked >= asked, "all last turns are asked")
        story = until(job, lambda story, n=deaths: story.state == "running" and len(story.restores) == n, "it runs")
        os.kill(story.pids[dies], signal.SIGKILL)
        asked += QUESTIONS * (dies == "ask/0")
    until(job, lambda story: len(story.restores) == KILLS, "all have died, and their tasks run again")
    evidence.happened("processes that died", KILLS)
    wait_for(lambda: made.asked >= asked, "all last turns are asked once more")
    ended(job, made, evidence)
    assert made.asked == asked


def noting(record: int, folder: Path) -> int:
    """Note the call. All wait for a file; those of odd numbers for another one."""
    with (folder / f"calls-{record}").open("a") as calls:
        calls.write("x")
    wait_for((folder / ("odd" if record % 2 else "even")).exists, "it may answer")
    return record


def asking(folder: Path, name: str) -> Flow:
    flow = Flow("renamed")
    asked = flow.read(Items(range(6)), name="numbers").map_async(partial(noting, folder=folder), name=name)
    asked.write(Collect(), name="answers")
    return flow


def test_an_operator_that_was_renamed_finds_the_answers_since_the_cut(tmp_path: Path, evidence: Evidence):
    def calls() -> list[int]:
        return [len(path.read_text()) for path in sorted(tmp_path.glob("calls-*"))]

    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": None}
    job = begin(asking(tmp_path, "ask"), **options)
    wait_for(lambda: calls() == [1] * 6, "all are asked")
    job.cut()
    (tmp_path / "even").touch()
    journal = CutStore(str(tmp_path / "cuts"), "renamed").answers
    wait_for(lambda: len(list(journal.read("ask", Epoch(0)))) == 3, "those that may are answered")
    job.cancel()
    (tmp_path / "odd").touch()
    result = begin(asking(tmp_path, "asked"), resume="latest", rename={"ask": "asked"}, **options).wait()
    expect(result, list(range(6)), "answers")
    assert calls() == [1, 2] * 3
    evidence.survived("answers", 3)
