"""A log in front of flows, whose processes die: what was acknowledged is in each result once."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, Received, ReceivedError, RunResult
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.received.received import SPACE
from backedge.engine.received.segments import listed
from backedge.recovery.stores.store_schemes import store_at
from tests.gates import wait_for
from tests.on_ray.flows import begin, until
from tests.on_ray.leftovers import actors_below, end, has_ended, supervisor_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

RECORDS, ROUNDS, KILLS = 5, 3, 3
SENDERS, BEFORE_KILL = 8, 50
CALL_S = 60.0


@dataclass
class Sender:
    """POSTs requests of a few records, from any thread. A number is sent once, whatever comes of it.

    - acknowledged: the numbers whose request was answered with 200. unknown: those without an answer.
    """

    port: int
    requests: Iterator[int] = field(default_factory=count)
    acknowledged: list[int] = field(default_factory=list[int])
    unknown: list[int] = field(default_factory=list[int])

    def send(self) -> bool:
        """Whether a request was acknowledged."""
        first = next(self.requests) * RECORDS
        numbers = list(range(first, first + RECORDS))
        body = json.dumps([{"number": number, "rounds": 0} for number in numbers])
        connection = HTTPConnection("127.0.0.1", self.port, timeout=CALL_S)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException):
            self.unknown += numbers
            return False
        finally:
            connection.close()
        if answer.status == 200:
            self.acknowledged += numbers
        return answer.status == 200

    def shown(self) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=CALL_S)
        try:
            connection.request("GET", "/")
            return json.load(connection.getresponse())
        finally:
            connection.close()

    def until_read(self) -> dict[str, Any]:
        """Wait until cuts of all flows have all of the log behind them; return what the endpoint shows then."""
        found: dict[str, Any] = {}

        def is_read() -> bool:
            found.update(self.shown())
            return all(needed > found["last"] for needed in found["readers"].values())

        wait_for(is_read, "all flows have read the log")
        return found

    def expect(self, result: RunResult) -> None:
        """Raise unless a run has each number that was acknowledged once, and none twice."""
        found = sorted(record["number"] for record in result.outputs["done"])
        assert len(set(found)) == len(found), "some were read twice"
        lacking = set(self.acknowledged) - set(found)
        assert not lacking, f"{sorted(lacking)} were acknowledged, and are not in the result"
        assert set(found) <= {*self.acknowledged, *self.unknown}


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def orders(port: int, tmp_path: Path) -> Iterator[Received]:
    received = Received.http(tmp_path / "orders", port=port)
    yield received
    received.close()


@pytest.fixture
def start_job() -> Iterator[Callable[..., Job]]:
    """Starts runs, and ends those that a test that fails has left."""
    jobs: list[Job] = []

    def start(flow: Flow, **options: Any) -> Job:
        jobs.append(begin(flow, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        if not job._is_over(0.0):
            job.cancel()


def shop(orders: Received, end_file: Path, name: str = "shop") -> Flow:
    """A loop that each record goes round a few times. It ends without records in it, once the file is there."""

    def step(rounds: int, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return rounds + 1, {**record, "rounds": rounds + 1}

    flow = Flow(name, stop_when=lambda view: end_file.exists() and not view.in_loop("again"))
    again = flow.loop("again")
    keyed = flow.read(orders, name="orders").merge(again).key_by(lambda record: record["number"])
    done, rest = keyed.stateful_map(step, initial=0, name="step").split(lambda record: record["rounds"] >= ROUNDS)
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


def endpoint_pid() -> int:
    """The process of the endpoint, once it is there."""

    def found() -> list[int]:
        return [pid for pid, name in actors_below(os.getpid()).items() if name.startswith("ray::ReceivedActor")]

    (pid,) = wait_for(found, "the process of the endpoint is there")
    return pid


def test_what_is_acknowledged_is_in_the_result_once_whatever_dies(
    orders: Received, port: int, tmp_path: Path, start_job: Callable[..., Job]
):
    before = actors_below(os.getpid())
    job = start_job(
        shop(orders, tmp_path / "end"),
        snapshots=str(tmp_path / "cuts"),
        every=0.1,
        keep=2,
        actors="task",
        max_restarts=10 * KILLS,
    )
    sender = Sender(port)
    wait_for(sender.send, "the endpoint is open")
    for kill in range(KILLS):
        kill_endpoint(sender)
        for victim in ("task", "supervisor"):
            restarts = until(job, lambda story: story.state == "running", "it runs").restarts
            pid = supervisor_of(before) if victim == "supervisor" else sorted(job.status().pids.values())[kill % 2]
            end(pid)
            assert has_ended(pid)
            assert sender.send(), "the endpoint goes on without the flow"
            until(
                job, lambda story, n=restarts: story.restarts > n and story.state == "running", f"{victim} is replaced"
            )
            assert sender.send()
    shown = sender.until_read()
    (tmp_path / "end").touch()
    sender.expect(job.wait())
    assert shown["first"] > 1, "the cuts have freed the log"
    store = store_at(tmp_path / "orders")
    wait_for(lambda: min(listed(store)) == sender.shown()["first"], "what is freed is removed")


def kill_endpoint(sender: Sender) -> None:
    """Kill the process of the endpoint while requests are on their way, and wait until it is there again."""
    victim, lost = endpoint_pid(), len(sender.unknown)

    def send_until_lost() -> None:
        while sender.send():
            pass

    sending = [threading.Thread(target=send_until_lost) for _ in range(SENDERS)]
    for thread in sending:
        thread.start()
    until_sent = len(sender.acknowledged) + BEFORE_KILL
    wait_for(lambda: len(sender.acknowledged) >= until_sent, "requests are on their way")
    end(victim)
    assert has_ended(victim)
    for thread in sending:
        thread.join()
    assert len(sender.unknown) > lost
    wait_for(sender.send, "the endpoint is open again")
    assert endpoint_pid() != victim


def test_what_cannot_be_served_is_refused(orders: Received, port: int, tmp_path: Path):
    with pytest.raises(BadOptionError, match="give it snapshots="):
        begin(shop(orders, tmp_path / "end"))
    orders.start()
    with pytest.raises(ReceivedError, match="other options"):
        Received.http(tmp_path / "orders", port=port + 1).start()
    with pytest.raises(ReceivedError, match="give another port"):
        Received.http(tmp_path / "others", port=port).start()
    assert cluster.find_actor(Received.http(tmp_path / "others", port=port)._name, SPACE) is None


def test_a_generator_is_made_again_when_its_process_dies(tmp_path: Path, start_job: Callable[..., Job]):
    kept = tmp_path / "kept"

    def numbers() -> Iterator[list[dict[str, int]]]:
        while True:
            number = kept.stat().st_size if kept.exists() else 0
            yield [{"number": number, "rounds": 0}]
            with kept.open("ab") as file:
                file.write(b".")  # a number is kept when its yield is over

    def has_kept(count: int) -> bool:
        return kept.exists() and kept.stat().st_size >= count

    ticks = Received.generator(tmp_path / "ticks", numbers)
    try:
        job = start_job(shop(ticks, tmp_path / "end", "clock"), snapshots=str(tmp_path / "cuts"), every=0.1)
        wait_for(lambda: has_kept(3), "numbers are kept")
        victim = endpoint_pid()
        end(victim)
        assert has_ended(victim)
        sure = kept.stat().st_size
        wait_for(lambda: has_kept(sure + 3), "it goes on in another process")
        assert endpoint_pid() != victim
        last = max(listed(store_at(ticks.log)))
        wait_for(
            lambda: min(listed(store_at(ticks.log))) > last, "the flow has read what was kept, and its cuts free it"
        )
    finally:
        ticks.close()
    (tmp_path / "end").touch()
    found = Counter(record["number"] for record in job.wait().outputs["done"])
    assert found.keys() >= set(range(sure)), "what was kept is in the result"
    assert sum(count - 1 for count in found.values()) <= 1, "but for the one under way, none was made twice"
