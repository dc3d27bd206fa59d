"""Drivers as processes of their own, for tests that end them: python -m tests.on_ray.drivers SCENARIO FOLDER

Each prints a line of JSON whenever the run has come further, and one with what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backedge import Job, RunFailedError, start
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api import starting
from backedge.graphs.flow import Flow
from tests.gates import Gate
from tests.on_ray.flows import trips, until

ROOT = Path(__file__).resolve().parents[2]
COUNT = 100
RESULT_KEPT_S = 3.0
LONG = {"count": 100, "trips": 100}
GATE = "gate"
# More than Ray keeps with the description of an actor, unless it comes in pieces.
CARRIED_BYTES = 1_000_000


def long_trips(folder: Path) -> Flow:
    """`trips` of a hundred records, which last until the test opens the gate in this folder."""
    return trips(**LONG, carried_bytes=CARRIED_BYTES, gate=Gate(folder / GATE))


def gated(folder: str) -> Flow:
    """Fewer trips, with less to carry."""
    return trips(count=COUNT, gate=Gate(Path(folder) / GATE))


def say(**said: Any) -> None:
    """A line for the test."""
    print(json.dumps(said), flush=True)


def wait(folder: str) -> None:
    """Run `trips` and wait for its end, as a script does."""
    job = start(gated(folder), snapshots=folder, every=0.1, actors="slice", spares=1, progress=False)
    story = until(job, lambda story: story.last_epoch, "there is a cut")
    say(epoch=story.last_epoch, pids=story.pids)
    say(state=job.wait().state)


def lose(folder: str) -> None:
    """Run `trips`, whose cluster is lost, and wait for its end."""
    options: dict[str, Any] = {"every": 0.1, "actors": "slice", "silence_timeout": 3, "progress": False}
    job = start(gated(folder), snapshots=folder, **options)
    say(epoch=until(job, lambda story: (story.last_epoch or 0) >= 3, "there are cuts").last_epoch)
    try:
        say(state=job.wait().state)
    except RunFailedError as error:
        say(error=str(error))


def resume(folder: str) -> None:
    """Continue `trips` from its latest cut, let it end, and tell what came of it."""
    flow = gated(folder)
    Gate(Path(folder) / GATE).open()
    job = start(flow, snapshots=folder, every=0.1, actors="slice", resume="latest", progress=False)
    result = job.wait()
    say(restored=[restore["epoch"] for restore in result.restores], done=sorted(result.outputs["done"]))


def begin_detached(folder: Path, flow: Flow | None = None, **options: Any) -> Job:
    """Start a detached run whose records stay in the loop for long; it has cuts of them."""
    given: dict[str, Any] = {"every": 0.2, "actors": "slice", "progress": False, **options}
    job = start(flow or long_trips(folder), snapshots=folder, detached=True, **given)
    until(job, lambda story: story.snapshots_with_log, "records are in the loop")
    return job


def detach(folder: str) -> None:
    """Start such a run, tell of its first cuts, and wait for its end."""
    starting.RESULT_KEPT_S = RESULT_KEPT_S
    job = begin_detached(Path(folder))
    story = job.status()
    say(epoch=story.last_epoch, pids=story.pids)
    say(state=job.wait().state)


def race(folder: str) -> None:
    """Start a short detached run whenever the test says so, or join the one that another process has started."""
    starting.RESULT_KEPT_S = RESULT_KEPT_S
    cluster.connect(must_exist=True)
    say(ready=True)
    for _ in sys.stdin:
        flow = trips(**LONG, gate=Gate(Path(folder) / GATE))
        options = {"every": 0.2, "actors": "slice", "detached": True, "resume": "latest", "progress": False}
        job = start(flow, snapshots=folder, **options)
        say(follows=True)
        result = job.wait()
        say(state=result.state, done=sorted(result.outputs["done"]), attempt=job.status().attempt)


@contextmanager
def driver(module: str, *arguments: str, address: str | None) -> Iterator[subprocess.Popen[str]]:
    """A Python module in a process of its own, connected to a cluster; ended when the test is over."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if address is not None:
        environment["RAY_ADDRESS"] = address
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a driver says next; what others print on its output is passed over."""
    if process.stdout is None:
        raise ValueError("the driver was started without an output to read")
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError(f"the driver is over, with exit code {process.wait()}")


if __name__ == "__main__":
    scenarios = (lose, resume, wait, detach, race)
    {scenario.__name__: scenario for scenario in scenarios}[sys.argv[1]](*sys.argv[2:])
