"""A crawl of 5,000 pages beside Scrapy with a job directory, and what is lost and fetched again when processes die.

First both crawl a small web on loopback in turns, with the same requests to a host at a time and no pause between them:
pages a second, from the first request to the last. Each is one process; ours takes a cut a second.

Then the web takes 0.2 to 1 s for an answer, and processes are killed at random moments. Ours has two that fetch,
and the supervisor; the run goes on by itself. Scrapy is one process; the same command starts it again, with the job
directory and the feed that it had, until it ends by itself. Its documentation promises that for a clean stop, not for a
kill. Counted are:

- lost, doubled: pages that the output does not have, or has more than once.
- running_again: requests that were made again because the process died before their answer left the operator.
- fetched_again: other requests for what had been fetched. A try after an answer of 503 is none.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from aiohttp import web

from backedge import Flow, Parquet
from bench.calls import EVERY_S, KILLS, PAUSE_S, count, kill_some
from bench.measuring import Case, Limit, Report, Samples, beside_peers, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import LOOK_S, STALL_TIMEOUT_S, BenchError, begin, run_to_end
from bench.session import ROOT, session
from examples.cyclic.crawler import Fetch, Record, crawl, links_of, row_of
from examples.cyclic.loopback import serve
from examples.cyclic.small_web import SITES, SmallWeb, page_at, seeds

LIMITS = {"scrapy": 1.0}
SIZE = 829
"""How many pages each site has, besides five of its calendar."""

AT_A_TIME = 8
"""Requests to a host."""

SLOW_S = (0.2, 1.0)
SPIDER = Path(__file__).parent / "peers" / "crawl_scrapy.py"
PROCESS = "X-Process"
"""A header of requests."""


class Deaths(NamedTuple):
    """What a crawl whose processes died has lost, and what it has fetched again."""

    kills: int
    lost: int
    doubled: int
    running_again: int
    fetched_again: int


def run(options: Options) -> Report:
    """Measure both in turns, and then once what deaths cost each of them."""
    size = -(-options.records // SITES) if options.records else SIZE
    cases: dict[str, Case] = {"ours": lambda: steady_ours(size)}
    deaths: dict[str, Deaths] = {}
    if importlib.util.find_spec("scrapy"):
        cases["scrapy"] = lambda: steady_scrapy(size)
        deaths["scrapy"] = killed_scrapy(size, random.Random(options.seed))
    with session():
        found = interleaved(cases, options.turns)
        deaths["ours"] = killed_ours(size, random.Random(options.seed))
    return compare(found, deaths)


def compare(found: dict[str, Samples], deaths: dict[str, Deaths]) -> Report:
    """The limits of the speed, and of what deaths cost ours."""
    more: dict[str, Any] = {"deaths": {name: cost._asdict() for name, cost in deaths.items()}}
    if "scrapy" not in found:
        more["absent"] = {"scrapy": "not installed; make bench installs it"}
    report = beside_peers("crawl", "pages/s", found, LIMITS, is_rate=True, more=more)
    ours = deaths["ours"]
    none = (
        Limit(f"{name}: {number}, none", number == 0)
        for name, number in ours._asdict().items()
        if name in ("lost", "doubled", "fetched_again")
    )
    return replace(report, limits=(*report.limits, *none))


# -- the web -----------------------------------------------------------------------------------------------------------


class Site(SmallWeb):
    """The web for one crawl.

    - asked_s: when requests came. served: by page, the processes that got an answer, and when they had asked.
    """

    def __init__(self, size: int, answer_s: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__(size)
        self.asked_s: list[float] = []
        self.served: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self.proxy = serve(self.answer)
        self._answer_s = answer_s

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        self.asked_s.append(time.monotonic())
        response = await super().answer(sent)
        if sent.rel_url.path != "/robots.txt" and response.status != 503:
            number = number_of(f"http://{sent.host}{sent.rel_url.path}")
            self.served[number].append((int(sent.headers.get(PROCESS, 0)), self.asked_s[-1]))
        await asyncio.sleep(random.uniform(*self._answer_s))
        return response


def number_of(url: str) -> int:
    """A page as a note has it."""
    return int.from_bytes(blake2b(url.encode(), digest_size=6).digest())


def pages_of(size: int) -> set[str]:
    """The pages that a crawl has to find."""
    found: set[str] = set()
    ahead = seeds()
    while ahead:
        url = ahead.pop()
        page = page_at(url, size)
        if page is None or url in found or "/private/" in url:
            continue
        found.add(url)
        ahead += [to["url"] for to in links_of({"url": url, "links": [page.moved] if page.moved else page.links})]
    return {url for url in found if "/old/" not in url}


def rate(asked_s: Sequence[float], size: int, urls: Sequence[str]) -> float:
    """Pages a second. Raises if they are not the right ones."""
    wanted = pages_of(size)
    if sorted(urls) != sorted(wanted):
        raise BenchError(f"{len(urls)} pages were crawled, {len(set(urls) & wanted)} of the {len(wanted)} there are")
    return len(urls) / (asked_s[-1] - asked_s[0])


def cost(
    served: dict[int, list[tuple[int, float]]],
    size: int,
    urls: Sequence[str],
    kills: int,
    left: Sequence[tuple[float, int]],
    deaths: dict[int, float],
) -> Deaths:
    """What deaths have cost. `left`: what has left the operator, and when. `deaths`: when a process died."""
    again = count(served, left, deaths)
    times = Counter(urls)
    return Deaths(
        kills=kills,
        lost=len(pages_of(size) - times.keys()),
        doubled=sum(number > 1 for number in times.values()),
        running_again=again.running_again,
        fetched_again=again.answered_again + again.left_again,
    )


# -- ours --------------------------------------------------------------------------------------------------------------


def steady_ours(size: int) -> float:
    site = Site(size)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run_to_end(make_flow(site.proxy, folder), every=1.0, parallelism=1)
        return rate(site.asked_s, size, parquet_urls(folder))


def killed_ours(size: int, rng: random.Random) -> Deaths:
    site = Site(size, SLOW_S)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        options = {"parallelism": 2, "max_restarts": 2 * KILLS}
        job = begin(make_flow(site.proxy, folder), f"{folder}/cuts", EVERY_S, options)
        deaths = kill_some(job, rng)
        job.wait()
        left = [(at_s, int(number)) for at_s, number in read_notes(f"{folder}/left")]
        return cost(site.served, size, parquet_urls(folder), KILLS, left, deaths)


def make_flow(proxy: str, folder: str) -> Flow:
    """The crawler of the examples. Requests name their process, and what leaves the operator is noted."""

    class FetchAs(Fetch):
        async def on_start(self) -> None:
            await super().on_start()
            self.session.headers[PROCESS] = str(os.getpid())

    def row(page: Record) -> Record:
        note(f"{folder}/left", float(number_of(page["url"])))
        return row_of(page)

    FetchAs.proxy = proxy
    flow = Flow("crawl")
    pages, _ = crawl(flow, seeds(), FetchAs, None, AT_A_TIME)
    pages.map(row, name="row").write(Parquet(f"{folder}/pages"), name="pages")
    return flow


def parquet_urls(folder: str) -> list[str]:
    rows: list[Record] = pq.read_table(f"{folder}/pages").to_pylist()
    return [row["url"] for row in rows if row["status"] == "200"]


# -- Scrapy ------------------------------------------------------------------------------------------------------------


def steady_scrapy(size: int) -> float:
    site = Site(size)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        finish(start_scrapy(site, folder), site)
        return rate(site.asked_s, size, feed_urls(folder))


def killed_scrapy(size: int, rng: random.Random) -> Deaths:
    site, kills = Site(size, SLOW_S), 0
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        while kills < KILLS and is_killed(start_scrapy(site, folder), site, rng.uniform(*PAUSE_S)):
            kills += 1
        if kills == KILLS:
            finish(start_scrapy(site, folder), site)
        return cost(site.served, size, feed_urls(folder), kills, left=[], deaths={})


def start_scrapy(site: Site, folder: str) -> subprocess.Popen[bytes]:
    """Begin the crawl, or go on with it."""
    settings = {
        "JOBDIR": f"{folder}/job",
        "CONCURRENT_REQUESTS": SITES * AT_A_TIME,
        "CONCURRENT_REQUESTS_PER_DOMAIN": AT_A_TIME,
        "LOG_FILE": f"{folder}/log",
        "LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "scrapy", "runspider", str(SPIDER), "-o", f"{folder}/pages.jsonl"]
    command += [f"--set={name}={value}" for name, value in settings.items()]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": ROOT, "http_proxy": site.proxy})


def is_killed(process: subprocess.Popen[bytes], site: Site, pause_s: float) -> bool:
    """Kill it, some seconds after its first request. False: it has ended by itself before."""
    asked = len(site.asked_s)
    while process.poll() is None and len(site.asked_s) == asked:
        time.sleep(LOOK_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(pause_s)
        return False
    process.kill()
    process.wait()
    return True


def finish(process: subprocess.Popen[bytes], site: Site) -> None:
    """Wait for its end, or until it has asked for nothing for a minute: it hangs, and is killed."""
    asked, moved_s = len(site.asked_s), time.monotonic()
    while process.poll() is None:
        if len(site.asked_s) > asked:
            asked, moved_s = len(site.asked_s), time.monotonic()
        if time.monotonic() - moved_s > STALL_TIMEOUT_S:
            process.kill()
        time.sleep(LOOK_S)


def feed_urls(folder: str) -> list[str]:
    """What the feed has, without lines that are torn."""
    urls: list[str] = []
    for line in Path(f"{folder}/pages.jsonl").read_text().splitlines():
        with suppress(ValueError):
            urls.append(json.loads(line)["url"])
    return urls
