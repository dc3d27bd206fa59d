"""The loop benchmark with an open live page and with metrics, beside the same without either.

A client follows the events of the page, as a browser does, while the run is measured. The limit is what looking on may
cost: a hundredth of the throughput. Its turns are short for what they compare, so more of them say more: --repeats 15.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from urllib.request import HTTPCookieProcessor, build_opener

from backedge.page.page_server import PageServer
from backedge.page.page_source import PageSource
from bench.loop import REPETITIONS, SECONDS_MIN, UNIT, make_flow
from bench.measuring import Report, at_least, interleaved
from bench.options import Options
from bench.ours import BenchError, watch
from bench.session import session
from bench.workloads import LoopWorkload
from engine.on_ray.api.living_runs import LivingRuns

LIMITS = {"unwatched": 0.99}


def run(options: Options) -> Report:
    """Measure the loop with and without a page and metrics, in turns."""
    seconds = options.seconds or SECONDS_MIN
    workload = LoopWorkload(
        records=options.records or 100_000,
        seed=options.seed,
        seconds=seconds,
        warm_up_s=min(2.0, seconds),
        repetitions=REPETITIONS,
    )

    def measure(metrics: str) -> float:
        window = watch(
            make_flow(workload),
            workload.warm_up_s,
            workload.seconds,
            every=1.0,
            parallelism=2,
            actors="slice",
            metrics=metrics,
        )
        return window.hops_per_s

    def watched() -> float:
        with open_page("loop") as statuses:
            found = measure("on")
        if not statuses:
            raise BenchError("the page has shown no status of the run that was measured")
        return found

    with session():
        found = interleaved({"watched": watched, "unwatched": lambda: measure("off")}, options.turns)
    ratios = {"unwatched": found["watched"].over(found["unwatched"])}
    return Report(
        bench="watch",
        unit=UNIT,
        turns=options.turns,
        figures={"watched": found["watched"]},
        peers={"unwatched": found["unwatched"]},
        ratios=ratios,
        limits=at_least(ratios, LIMITS),
        ours="watched",
    )


@contextmanager
def open_page(job: str) -> Generator[list[bytes]]:
    """A page that follows a job. Gives the statuses that it gets, also later ones."""
    server = PageServer(PageSource(None, None, LivingRuns().ask))
    server.start()
    statuses: list[bytes] = []
    threading.Thread(target=_follow, args=(server.address, job, statuses), daemon=True).start()
    try:
        yield statuses
    finally:
        server.stop()


def _follow(address: str, job: str, statuses: list[bytes]) -> None:
    client = build_opener(HTTPCookieProcessor())
    client.open(address).close()
    with client.open(f"{address.partition('?')[0]}api/jobs/{job}/events") as events:
        statuses.extend(line for line in events if line.startswith(b"data: ") and b'"operators"' in line)
