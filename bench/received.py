"""A log in front of a flow with a loop: 2,000 requests a second of 20 records each, while processes die.

Senders keep 200 connections open and POST requests at a steady rate, each number in one record. First nothing happens
for a while: requests a second, and milliseconds until an answer. Then each process that is involved is killed three
times: the endpoint, the tasks of the flow and its supervisor, one after the other. Each record goes round a loop once.

- lost: numbers that were acknowledged and are not in the result. twice: numbers that are in it twice. Both must be 0.
- unknown: requests whose connection broke before an answer. These are not sent again.
- refused: requests that got another answer than 200 and were sent again: the log was full, or the store failed.
- behind_s: how long the flow reads after the last request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from json import load
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from backedge import Collect, Flow, Received
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.received.received import SPACE
from bench.measuring import Limit, Report, Samples
from bench.options import Options
from bench.ours import BenchError, begin
from bench.session import session

REQUESTS_PER_S = 2_000
RECORDS = 20
CONNECTIONS = 200
STEADY_S = 10.0
SHARE_MIN = 0.95
KILLS = 3
PAUSE_S = 3.0
EVERY_S = 1.0
TIMEOUT_S = 120.0
LOOK_S = 0.1
AGAIN_S = 0.05
HUNDREDTHS = 100
OK = b"HTTP/1.1 200 "


def run(options: Options) -> Report:
    """Send, first undisturbed and then while processes die; count what the flow has of it."""
    with session(), tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        return measure(Path(folder), options.seconds or STEADY_S)


class Outcome(NamedTuple):
    """What became of all that was sent. `kills`: how often each process was killed."""

    acknowledged: int
    unknown: int
    refused: int
    lost: int
    twice: int
    behind_s: float
    kills: Mapping[str, int]


def measure(folder: Path, steady_s: float) -> Report:
    orders, end_file = Received.http(folder / "orders", port=free_port()), folder / "end"
    job = begin(shop(orders, end_file), str(folder / "cuts"), EVERY_S, {"keep": 2, "max_restarts": 10 * KILLS})
    senders = Senders(orders.door.port)
    try:
        senders.start()
        time.sleep(PAUSE_S)  # until everything is warm
        steady = senders.during(steady_s)
        kills = kill_all(job, orders)
        senders.stop()
        ended_s = time.monotonic()
        wait_for(lambda: has_read(orders), "the flow has read the log")
        behind_s = time.monotonic() - ended_s
        end_file.touch()
        counts = Counter(job.wait().outputs["found"])
    finally:
        senders.stop()
        orders.close()
        job.cancel()
    lost = len(senders.acknowledged - counts.keys())
    twice = sum(count > 1 for count in counts.values())
    sent = len(senders.acknowledged), senders.unknown, senders.refused
    return compare(steady, Outcome(*sent, lost, twice, round(behind_s, 1), kills))


def compare(found: Mapping[str, Samples], outcome: Outcome) -> Report:
    """The limits: the rate is reached, and each number that was acknowledged is there once."""
    rate, least, kills = found["requests"].median, SHARE_MIN * REQUESTS_PER_S, outcome.kills
    return Report(
        bench="received",
        unit="requests/s",
        turns=1,
        figures=found,
        peers={},
        ratios={},
        limits=(
            Limit(f"requests a second: {rate:.0f}, at least {least:.0f}", rate >= least),
            Limit(f"lost: {outcome.lost}, none", outcome.lost == 0),
            Limit(f"twice: {outcome.twice}, none", outcome.twice == 0),
            Limit(f"kills: {dict(kills)}, {KILLS} of each", kills == dict.fromkeys(VICTIMS, KILLS)),
        ),
        ours="requests",
        more=outcome._asdict(),
    )


def shop(orders: Received, end_file: Path) -> Flow:
    """Each record goes round the loop once. It ends at a cut without records in the loop, once the file is there."""

    def is_over(view: Any) -> bool:
        return end_file.exists() and not view.in_loop("again")

    flow = Flow("shop", stop_when=is_over)
    again = flow.loop("again")
    merged = flow.read(orders, name="orders").merge(again)
    done, rest = merged.map(lambda record: (record[0], record[1] - 1), name="turn").split(
        lambda record: record[1] < 0, name="turned"
    )
    again.feed(rest)
    done.map(lambda record: record[0], name="number").write(Collect(), name="found")
    return flow


# -- senders ---------------------------------------------------------------------------------------------------------


class Senders:
    """Connections that send requests at a rate, in a thread of their own.

    - acknowledged: the numbers whose request was answered with 200. unknown, refused: requests of other fates.
    - answered: when each of the others was answered, and after how many seconds.
    """

    def __init__(self, port: int) -> None:
        self.acknowledged: set[int] = set()
        self.unknown = 0
        self.refused = 0
        self.answered: list[tuple[float, float]] = []
        self._port = port
        self._numbers = itertools.count()
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()), name="senders")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        if self._thread.is_alive():
            self._thread.join()

    def during(self, seconds: float) -> dict[str, Samples]:
        """The requests answered a second, and the milliseconds that half of them and all but a hundredth took."""
        begun_s = time.monotonic()
        time.sleep(seconds)
        ended_s = time.monotonic()
        took_ms = [1000 * took_s for at_s, took_s in list(self.answered) if begun_s <= at_s < ended_s]
        if len(took_ms) < HUNDREDTHS:
            raise BenchError(f"{len(took_ms)} requests were answered in {seconds} s")
        parts = quantiles(took_ms, n=HUNDREDTHS)
        figures = {
            "requests": len(took_ms) / (ended_s - begun_s),
            "half_ms": parts[49],
            "all_but_1_percent_ms": parts[98],
        }
        return {name: Samples((figure,)) for name, figure in figures.items()}

    async def _send_all(self) -> None:
        begun_s = time.monotonic()
        await asyncio.gather(*(self._send(begun_s) for _ in range(CONNECTIONS)))

    async def _send(self, begun_s: float) -> None:
        """Send every request whose turn it is, over one connection."""
        reader = writer = None
        while not self._is_over:
            number = next(self._numbers)
            due_s = begun_s + number / REQUESTS_PER_S
            if (early_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
            numbers = range(number * RECORDS, (number + 1) * RECORDS)
            body = f"[{','.join([f'[{n},1]' for n in numbers])}]".encode()
            request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            while True:
                sent_s = time.monotonic()
                try:
                    if writer is None or reader is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    await asyncio.sleep(AGAIN_S)
                    if self._is_over:
                        return
                    continue  # nothing was sent
                try:
                    writer.write(request)
                    is_ok = await answer_of(reader)
                except (OSError, asyncio.IncompleteReadError):
                    self.unknown += 1
                    writer.close()
                    reader = writer = None
                    break
                if is_ok:
                    self.acknowledged.update(numbers)
                    now_s = time.monotonic()
                    self.answered.append((now_s, now_s - sent_s))
                    break
                self.refused += 1
                await asyncio.sleep(AGAIN_S)
        if writer is not None:
            writer.close()


async def answer_of(reader: asyncio.StreamReader) -> bool:
    """Read an answer; return whether it is 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return head.startswith(OK)


# -- kills -----------------------------------------------------------------------------------------------------------


def kill_all(job: Job, orders: Received) -> Counter[str]:
    """Kill each process three times. The next one dies when the last one is replaced and has worked for a while."""
    kills: Counter[str] = Counter()
    for _ in range(KILLS):
        for victim, pids_of in VICTIMS.items():
            restarts = job.status().restarts
            for pid in pids_of(job):
                os.kill(pid, signal.SIGKILL)
            kills[victim] += 1
            if victim == "endpoint":
                wait_for(lambda: has_answered(orders), "the endpoint is there again")
            else:
                wait_for(lambda n=restarts: is_running_again(job, n), f"the {victim} is replaced")
            time.sleep(PAUSE_S)
    return kills


def pids_of_endpoint(job: Job) -> list[int]:
    return [pid_of(cluster.find_actor(name, SPACE)) for name in cluster.actor_names(SPACE)]


def pids_of_supervisor(job: Job) -> list[int]:
    return [pid_of(job._supervisor)]  # pyright: ignore[reportPrivateUsage]


def pid_of(actor: Any) -> int:
    return cluster.get(actor.__ray_call__.remote(own_pid))


def own_pid(_: object) -> int:
    return os.getpid()


VICTIMS: dict[str, Callable[[Job], list[int]]] = {
    "endpoint": pids_of_endpoint,
    "tasks": lambda job: list(job.status().pids.values()),
    "supervisor": pids_of_supervisor,
}


def is_running_again(job: Job, restarts: int) -> bool:
    story = job.status()
    return story.restarts > restarts and story.state == "running"


def shown_by(orders: Received) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{orders.door.port}/", timeout=TIMEOUT_S) as answer:
        return load(answer)


def has_answered(orders: Received) -> bool:
    try:
        return bool(shown_by(orders))
    except OSError:
        return False


def has_read(orders: Received) -> bool:
    """Whether all segments have been read in the cuts that are kept."""
    shown = shown_by(orders)
    return all(needed > shown["last"] for needed in shown["readers"].values())


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > until_s:
            raise BenchError(f"{TIMEOUT_S:.0f} s are over before this: {what}")
        time.sleep(LOOK_S)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
