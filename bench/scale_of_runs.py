"""What a run of many tasks takes on Ray, on one host: its start and memory, a cut, a death, and its end.

`python -m bench.scale_of_runs PROCESSES TASKS` starts a run and prints a line of JSON: tasks, channels, and for each
step its seconds by the clock; the start has the memory in MB of all processes of the run beside it. Operators in a row,
each behind an exchange by key, with a loop over all of them, have a task in every process (`actors="slice"`). A steady
hundred records a second go through all of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from backedge import Flow, Generate, JsonLines
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.on_ray.api.starting import start
from backedge.graphs.expansion import expand
from bench.notes import note, read_notes
from bench.recover import wait_for
from bench.session import session

RATE = 100.0
CUTS = 5
TRIPS = 2

Record = tuple[int, int]
"""A number, and its trip round the loop."""


def make_flow(operators: int, path: str) -> Flow:
    """Records go through all operators twice, and are noted when they leave the loop."""

    def leave(record: Record) -> bool:
        number, trips = record
        if trips == TRIPS:
            note(path, number)
        return trips == TRIPS

    flow = Flow("tasks")
    again = flow.loop("again")
    stream = flow.read(Generate(_begin), rate=RATE, name="numbers").merge(again)
    for step in range(operators - 3):
        stream = stream.key_by(_number).stateful_map(_count, initial=0, name=f"count {step}")
    done, rest = stream.key_by(_number).split(leave, name="leave")
    again.feed(rest.map(_once_more, name="more"))
    done.key_by(_number).write(JsonLines(f"{path}.out"), name="done")
    return flow


def _begin(number: int) -> Record:
    return number, 1


def _number(record: Record) -> int:
    return record[0]


def _count(seen: int, record: Record) -> tuple[int, Record]:
    return seen + 1, record


def _once_more(record: Record) -> Record:
    number, trips = record
    return number, trips + 1


def figures(processes: int, tasks: int, folder: str) -> dict[str, Any]:
    """Take every step of one run."""
    path = f"{folder}/notes"
    flow = make_flow(tasks // processes, path)
    deployment = expand(flow.plan(), processes, "slice")
    options: dict[str, Any] = {"parallelism": processes, "actors": "slice", "progress": False, "every": None}
    began_s = time.monotonic()
    job = start(flow, snapshots=f"{folder}/cuts", **options)
    try:
        wait_for(lambda: read_notes(path), "a record has gone through all operators")
        steps = {"start": (read_notes(path)[0][0] - began_s, _memory_mb(job))}
        steps["cut"] = median(_seconds_of_a_cut(job) for _ in range(CUTS)), 0.0
        steps["death"] = _seconds_of_a_death(job, path), 0.0
        began_s = time.monotonic()
        job.stop()
        steps["end"] = time.monotonic() - began_s, 0.0
    finally:
        job.cancel()
    return {"tasks": len(deployment.tasks), "channels": len(deployment.channels), "steps": steps}


def _seconds_of_a_cut(job: Job) -> float:
    began_s = time.monotonic()
    job.cut()
    return time.monotonic() - began_s


def _seconds_of_a_death(job: Job, path: str) -> float:
    """From the death of a process until a record has gone through the restored tasks."""
    pid = max(job.status().pids.values())
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: job.status().restarts == 1 and job.status().state == "running", "the run was restored")
    known = len(read_notes(path))
    wait_for(lambda: len(read_notes(path)) > known, "a record has gone through all operators again")
    return read_notes(path)[known][0] - killed_s


def _memory_mb(job: Job) -> float:
    """The memory of the run's processes; what several of them share is counted once."""
    supervisor: Any = job._supervisor  # pyright: ignore[reportPrivateUsage]
    pids = {*job.status().pids.values(), cluster.get(supervisor.__ray_call__.remote(_pid))}
    return sum(_own_mb(pid) for pid in pids)


def _pid(_: object) -> int:
    return os.getpid()


def _own_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    with session(), tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        print(json.dumps(figures(int(sys.argv[1]), int(sys.argv[2]), place)))
