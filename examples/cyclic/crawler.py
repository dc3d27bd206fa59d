"""Crawler: each page of a web once, politely, whatever fails.

    python -m examples.cyclic.crawler --kill fetch@epoch=3 --kill distinct@epoch=6 --audit final
    backedge compare examples.cyclic.crawler --kills 3 --seed 7

Links that are found go round the loop. `distinct` lets each address pass once, `throttle` keeps a pause between the
requests to a host and bounds how many are under way, and `retry_later` tries again what fails, after a pause that takes
no place. Addresses lose what makes many of one page (fragments, sessions), redirects are links, and an address that is
too long is a trap. Each task asks a host for its robots.txt once. The web is small and on loopback; give `flow` an
empty `proxy` and your own `begin` for the real one.

Guaranteed: each page is in the output once. A page that was fetched is not fetched again after a crash; only requests
that run in a process when it dies are repeated.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser

import aiohttp

from backedge import Collect, Flow, Items, Parquet, Stream, distinct, retry_later, throttle
from examples.cyclic.small_web import page_at, seeds, served

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

Record = dict[str, Any]

SIZE = 60
"""How many pages each site has."""

DELAY_S = 0.01
AT_A_TIME = 4
"""The pause between two requests to a host, and how many may be under way."""

NAME = "crawler"
PARTS_MAX = 6
"""An address with more parts is a trap."""

SINK = "pages"
KEYS = ("url",)


def link(url: str) -> Record:
    """A page to fetch, and its host. What is behind a # or in a session makes no other page."""
    url = re.sub(r"[?&]session=\w*", "", urldefrag(url).url)
    return {"url": url, "host": urlsplit(url).netloc}


def is_trap(url: str) -> bool:
    return urlsplit(url).path.count("/") > PARTS_MAX


class Fetch:
    """Fetches pages, with one client and one look at each robots.txt for a task."""

    proxy = ""

    async def on_start(self) -> None:
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=30), headers={"User-Agent": NAME}, proxy=self.proxy or None
        )
        self.rules: dict[str, asyncio.Task[RobotFileParser]] = {}

    async def __call__(self, page: Record) -> Record:
        if page["host"] not in self.rules:
            self.rules[page["host"]] = asyncio.create_task(self.ask_for_rules(page))
        if not (await self.rules[page["host"]]).can_fetch(NAME, page["url"]):
            return {**page, "status": "disallowed", "links": []}
        async with self.session.get(page["url"], allow_redirects=False) as response:
            if response.status >= 500:
                raise ConnectionError(f"status {response.status}")
            if "Location" in response.headers:
                return {**page, "status": "moved", "links": [response.headers["Location"]]}
            return {**page, "status": str(response.status), "links": links_in(await response.text())}

    async def ask_for_rules(self, page: Record) -> RobotFileParser:
        try:
            async with self.session.get(urljoin(page["url"], "/robots.txt")) as response:
                rules = RobotFileParser()
                rules.parse((await response.text()).splitlines() if response.status == 200 else [])
                return rules
        except Exception:
            del self.rules[page["host"]]  # the next try asks again
            raise

    async def close(self) -> None:
        await self.session.close()


def links_in(text: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', text)


def links_of(page: Record) -> list[Record]:
    return [link(urljoin(page["url"], found)) for found in page["links"] if not is_trap(urljoin(page["url"], found))]


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The links of the whole web, each page by itself, for the reference. The crawler finds them."""

    def rows(url: str) -> list[tuple[str, str, int, str]]:
        page = page_at(url, size)
        if page is None:
            return [(url, "404", 0, "")]
        if "/private/" in url:
            return [(url, "disallowed", 0, "")]
        found = [page.moved] if page.moved else page.links
        targets = [link(target)["url"] for target in found if not is_trap(target)]
        return [(url, "moved" if page.moved else "200", len(found), target) for target in targets or [""]]

    hosts = [urlsplit(url)._replace(path="").geturl() for url in seeds(all_sites=True)]
    days = ["/".join(map(str, range(1, day + 1))) for day in range(1, PARTS_MAX)]
    paths = [f"{kind}/{number}" for kind in ("page", "old") for number in range(size)]
    urls = [f"{host}/{path}" for host in hosts for path in [*paths, "private/1", *(f"calendar/{day}" for day in days)]]
    web = spark.sparkContext.parallelize(urls).flatMap(rows)
    spark.createDataFrame(web, "url string, status string, links int, target string").write.mode("overwrite").parquet(
        f"{inputs}/web"
    )


def crawl(
    flow: Flow, begin: list[str], fetch: type[Fetch], delay_s: float | None = DELAY_S, at_a_time: int = AT_A_TIME
) -> tuple[Stream[Record], Stream[Record]]:
    """The loop: the pages, and the links that could not be fetched."""
    found, finished = flow.loop("found", of=dict), flow.loop("finished", of=dict)
    start = flow.read(Items([link(url) for url in begin]), name="start")
    new = distinct(start.merge(found), "url")
    held = throttle(new, "host", delay=delay_s, in_flight=at_a_time, done=finished)
    pages = retry_later(held, fetch, tries=4, backoff=0.05, name="fetch")
    failed = pages.dead_letters.map(lambda letter: letter["record"], name="failed")
    finished.feed(pages.merge(failed))
    found.feed(pages.flat_map(links_of, name="links"))
    return pages, failed


def row_of(page: Record) -> Record:
    return {**page, "links": len(page["links"])}


def flow(
    inputs: str,
    size: int = SIZE,
    begin: list[str] | None = None,
    proxy: str | None = None,
    delay_s: float = DELAY_S,
    results: str = "",
) -> Flow:
    """The graph. `proxy`: leads to the web, "" is the real one. `results`: a folder for Parquet files, as well."""

    class FetchHere(Fetch):
        pass

    FetchHere.proxy = served(size)[1] if proxy is None else proxy
    flow = Flow("crawler")
    pages, failed = crawl(flow, begin or seeds(), FetchHere, delay_s)
    rows = pages.map(row_of, name="rows")
    rows.write(Collect(), name="pages")
    failed.write(Collect(), name="not_fetched")
    if results:
        rows.write(Parquet(f"{results}/pages"), name="files")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """All pages that can be reached: those that a step finds and that were not known lead to the next step."""
    from pyspark.sql import functions as F

    web = spark.read.parquet(f"{inputs}/web").cache()
    known = new = spark.createDataFrame([(link(url)["url"],) for url in seeds()], "url string")
    while not new.isEmpty():
        targets = web.join(new, "url").select(F.col("target").alias("url")).filter("url <> ''").distinct()
        new = targets.join(known, "url", "left_anti").localCheckpoint()
        known = known.union(new).localCheckpoint()
    pages = web.join(known, "url").select("url", "status", "links").distinct()
    return pages.withColumn("host", F.regexp_extract("url", "//([^/]*)/", 1))


def show(rows: list[Record]) -> None:
    """How many pages of each status a host had."""
    counted = Counter((row["host"], row["status"]) for row in rows)
    for (host, status), count in sorted(counted.items()):
        print(f"{count:>5} {host:<16} {status:<10} {'#' * -(-60 * count // len(rows))}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)
