"""The loop benchmark with an open live page and with metrics, beside the same without either.

A client follows the events of the page, as a browser does, while the run is measured. The limit is what looking on may
cost: a hundredth of the throughput. The rate itself differs by a quarter and more from turn to turn, so the limit holds
for processor time: tasks do the same with and without a page and metrics, and keep all cores busy, so the loop loses
what the other processes (supervisor, page, client, Ray) use more of it. `processor` is the share that is left to it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.page.page_server import TOKEN_HEADER, PageServer
from backedge.page.page_source import PageSource
from bench.loop import REPETITIONS, SECONDS_MIN, UNIT, make_flow
from bench.measuring import Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import BenchError, observe, running
from bench.session import session
from bench.workloads import LoopWorkload

LIMITS = {"processor": 0.99}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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

    beside: dict[str, list[float]] = {"on": [], "off": []}

    def measure(metrics: str) -> float:
        options = {"parallelism": 2, "actors": "slice", "metrics": metrics}
        with running(make_flow(workload), 1.0, options) as job:
            before_s, began_s = _used_beside(job.status().pids.values()), time.monotonic()
            window = observe(job, workload.warm_up_s, workload.seconds)
            used_s = _used_beside(job.status().pids.values()) - before_s
            beside[metrics].append(used_s / (time.monotonic() - began_s))
        return window.hops_per_s

    def watched() -> float:
        with open_page("loop") as statuses:
            found = measure("on")
        if not statuses:
            raise BenchError("the page has shown no status of the run that was measured")
        return found

    with session():
        found = interleaved({"watched": watched, "unwatched": lambda: measure("off")}, options.turns)
    # The first turn is not counted: everything is cold.
    on, off = (Samples(tuple(beside[metrics][-options.turns :])) for metrics in ("on", "off"))
    ratios = {
        "unwatched": found["watched"].over(found["unwatched"]),
        "processor": 1 - (on.median - off.median) / (os.cpu_count() or 1),
    }
    return Report(
        bench="watch",
        unit=UNIT,
        turns=options.turns,
        figures={"watched": found["watched"], "beside_cores": on},
        peers={"unwatched": found["unwatched"], "beside_unwatched_cores": off},
        ratios=ratios,
        limits=at_least(ratios, LIMITS),
        ours="watched",
    )


def _used_beside(tasks: Iterable[int]) -> float:
    """Seconds of processor time that this process and those below it have used, without tasks and what has ended."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything.
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        pid = int(entry.parent.name)
        parents[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
    return sum(used[pid] for pid in below - set(tasks)) / TICKS_PER_S


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
    place, _, token = address.partition("#token=")
    request = Request(f"{place}api/jobs/{job}/events", headers={TOKEN_HEADER: token})
    with urlopen(request) as events:
        statuses.extend(line for line in events if line.startswith(b"data: ") and b'"operators"' in line)
