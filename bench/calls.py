"""Calls that are paid for: what the journal of answers costs, and what is asked again when processes die.

First, 1,000 calls a second of 0.1 s each, with the journal and without, in turns: answers a second, and how long an
answer takes from the return of its call to the next operator.

Then a loop asks a service on loopback, which counts: every record three times, each call of 0.1 to 10 s. Processes of
the run are killed at random moments, the supervisor among them. Of the calls that were made before:

- answered_again: their answer had left the operator.
- running_again: the process that made the call has died.
- left_again: neither. With `answers="again"`, a rollback ends calls, which are then made again.

The limit of paid over needed holds for a service that makes every call again; one that knows the idempotency key would
join those whose caller has died.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from backedge import Collect, Flow, Items, Range
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from bench.measuring import Limit, Report, Samples, at_least, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import BenchError, begin, run_to_end
from bench.session import session
from examples.cyclic.loopback import serve

LIMITS = {"again": 0.95}
LATER_MS_MAX = 20.0
PAID_MAX = 1.05

STEADY_CALLS = 8_000
STEADY_CALL_S = 0.1
STEADY_CONCURRENCY = 100
MIDDLE = (0.2, 0.8)

RECORDS = 334
ROUNDS = 3
KILLS = 20
CALL_S = (0.1, 10.0)
EVERY_S = 0.2
PAUSE_S = (1.0, 6.0)
TIMEOUT_S = 300.0
ASKING = {"parallelism": 2, "actors": "task", "max_restarts": 2 * KILLS}


def run(options: Options) -> Report:
    """Measure both kinds in turns, and then once what deaths cost each of them."""
    calls, records = options.records or STEADY_CALLS, min(options.records or RECORDS, RECORDS)
    later: dict[str, list[float]] = {"kept": [], "again": []}

    def steady(answers: str) -> float:
        rate, later_ms = steady_run(answers, calls)
        later[answers].append(later_ms)
        return rate

    with session():
        found = interleaved({answers: lambda answers=answers: steady(answers) for answers in later}, options.turns)
        deaths = {answers: killed_run(answers, records, random.Random(options.seed)) for answers in later}
    kept_ms, again_ms = (Samples(tuple(later[answers][-options.turns :])) for answers in ("kept", "again"))
    return compare(found["kept"], found["again"], kept_ms, again_ms, deaths)


class Deaths(NamedTuple):
    """What a service was asked in a run whose processes died."""

    needed: int
    paid: int
    answered_again: int
    running_again: int
    left_again: int


def compare(kept: Samples, again: Samples, kept_ms: Samples, again_ms: Samples, deaths: dict[str, Deaths]) -> Report:
    """The limits of what the journal costs, and of what is asked again."""
    ratios, later_ms, ours = {"again": kept.over(again)}, kept_ms.median - again_ms.median, deaths["kept"]
    paid = ours.paid / ours.needed
    limits = (
        *at_least(ratios, LIMITS),
        Limit(f"later_ms: {later_ms:.1f}, at most {LATER_MS_MAX:.0f}", later_ms <= LATER_MS_MAX),
        Limit(f"answered_again: {ours.answered_again}, none", ours.answered_again == 0),
        Limit(f"left_again: {ours.left_again}, none", ours.left_again == 0),
        Limit(f"paid over needed: {paid:.3f}, at most {PAID_MAX}", paid <= PAID_MAX),
    )
    return Report(
        bench="calls",
        unit="answers/s",
        turns=len(kept.figures),
        figures={"kept": kept, "kept_later_ms": kept_ms},
        peers={"again": again, "again_later_ms": again_ms},
        ratios=ratios,
        limits=limits,
        ours="kept",
        more={"kills": KILLS, "deaths": {answers: found._asdict() for answers, found in deaths.items()}},
    )


# -- a steady stream of calls ------------------------------------------------------------------------------------------


def steady_run(answers: str, calls: int) -> tuple[float, float]:
    """The answers a second in the middle of a run, and the median of the milliseconds until an answer is used."""

    async def call(number: int) -> float:
        await asyncio.sleep(STEADY_CALL_S)
        return time.monotonic()

    def used(returned_s: float) -> tuple[float, float]:
        return time.monotonic(), time.monotonic() - returned_s

    flow = Flow("steady")
    asked = flow.read(Range(calls)).map_async(call, concurrency=STEADY_CONCURRENCY, answers=answers, name="ask")  # pyright: ignore[reportArgumentType]  # one of the two
    asked.map(used, name="used").write(Collect(), name="seen")
    seen = sorted(run_to_end(flow, every=0.5).outputs["seen"])
    first, last = (int(share * len(seen)) for share in MIDDLE)
    rate = (last - first) / (seen[last][0] - seen[first][0])
    return rate, median(later_s for _, later_s in seen) * 1e3


# -- deaths ------------------------------------------------------------------------------------------------------------


class Service:
    """Counts who asks what, and when. It knows no keys: who asks again is a new caller to it.

    - asked: by question, the process that asked and the time, for each time.
    """

    def __init__(self, seed: int) -> None:
        self.asked: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self._seed = seed

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        asked = await sent.json()
        self.asked[asked["question"]].append((asked["pid"], time.monotonic()))
        await asyncio.sleep(self._seconds(asked["question"]))
        return web.Response()

    def _seconds(self, question: int) -> float:
        """Short calls are as frequent as long ones, on a scale of powers."""
        least, most = CALL_S
        return least * (most / least) ** random.Random(self._seed + question).random()


class Asking(NamedTuple):
    """A record: where the service is, its number, and how often it was asked."""

    url: str
    number: int
    round: int = 0

    @property
    def question(self) -> int:
        return self.number * ROUNDS + self.round


class Client:
    async def on_start(self) -> None:
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))

    async def __call__(self, asking: Asking) -> Asking:
        question = {"question": asking.question, "pid": os.getpid()}
        async with self.session.post(asking.url, json=question) as response:
            response.raise_for_status()
        return asking._replace(round=asking.round + 1)

    async def close(self) -> None:
        await self.session.close()


def killed_run(answers: str, records: int, rng: random.Random) -> Deaths:
    """Ask the service, kill processes meanwhile, and count what was asked more than once."""
    service = Service(seed=rng.randrange(1 << 30))
    url = serve(service.answer)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        notes = f"{folder}/left"
        job = begin(rounds(url, records, notes, answers), f"{folder}/cuts", EVERY_S, dict(ASKING))
        deaths = kill_some(job, rng)
        done = job.wait().outputs["done"]
        left = [(at_s, int(question)) for at_s, question in read_notes(notes)]
    if sorted(done) != list(range(records)):
        raise BenchError(f"{len(done)} of {records} records came out: the run is not right")
    return count(service.asked, left, deaths)


def rounds(url: str, records: int, notes: str, answers: str) -> Flow:
    """Every record goes round three times. What leaves the operator is noted."""

    def leaves(asking: Asking) -> Asking:
        note(notes, float(asking.question - 1))
        return asking

    flow = Flow("rounds")
    again = flow.loop("again", of=Asking)
    new = flow.read(Items([Asking(url, number) for number in range(records)]), name="new").merge(again)
    asked = new.map_async(Client, concurrency=4, answers=answers, name="ask").map(leaves, name="left")  # pyright: ignore[reportArgumentType]  # one of the two
    done, more = asked.split(lambda asking: asking.round == ROUNDS, name="is_done")
    again.feed(more)
    done.map(lambda asking: asking.number, name="number").write(Collect(), name="done")
    return flow


def kill_some(job: Job, rng: random.Random) -> dict[int, float]:
    """Kill a process at a time, some seconds after the run goes on again. Returns when each task's process died."""
    deaths: dict[int, float] = {}
    story = running(job, 0)
    for kills in range(1, KILLS + 1):
        time.sleep(rng.uniform(*PAUSE_S))
        supervisor = cluster.get(job._supervisor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(rng.choice(sorted({*story.pids.values(), supervisor})), signal.SIGKILL)
        at_s = time.monotonic()
        before, story = story, running(job, kills)
        # A supervisor that dies may take tasks with it.
        deaths |= dict.fromkeys({*before.pids.values()} - {*story.pids.values()}, at_s)
    return deaths


def running(job: Job, restores: int) -> Any:
    """The status of the run when it goes on after that many deaths."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while (story := job.status()).state != "running" or len(story.restores) < restores:
        if story.state in ("finished", "failed") or time.monotonic() > deadline_s:
            raise BenchError(
                f"the run is {story.state} after {restores} of {KILLS} kills: {'; '.join(story.lines[-3:])}"
            )
        time.sleep(0.05)
    return story


def count(
    asked: dict[int, list[tuple[int, float]]], left: Sequence[tuple[float, int]], deaths: dict[int, float]
) -> Deaths:
    """Count what was asked again, and why.

    >>> asked = {0: [(1, 0.0), (2, 2.0)], 1: [(1, 0.0), (2, 2.0)], 2: [(1, 0.0), (1, 2.0)], 3: [(1, 0.0)]}
    >>> count(asked, [(1.0, 0)], {1: 1.5})._asdict()
    {'needed': 4, 'paid': 7, 'answered_again': 1, 'running_again': 1, 'left_again': 1}
    """
    left_s: dict[int, float] = {}
    for at_s, question in left:
        left_s.setdefault(question, at_s)
    answered = running = neither = 0
    for question, times in asked.items():
        for (before, _), (by, at_s) in pairwise(times):
            if left_s.get(question, at_s) < at_s:
                answered += 1
            elif before != by and deaths.get(before, at_s) < at_s:
                running += 1
            else:
                neither += 1
    return Deaths(len(asked), sum(map(len, asked.values())), answered, running, neither)
