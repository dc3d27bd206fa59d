"""Runs flows on Ray, and measures inside the run: the time to start is never part of a figure."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backedge import Flow
from backedge.engine.on_ray.api.job_handle import Job, RunResult
from backedge.engine.on_ray.api.starting import start
from backedge.engine.on_ray.supervisor.run_story import Story

LOOK_S = 0.2
START_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 60.0


class BenchError(RuntimeError):
    """The measurement is not valid."""


class Looked(Protocol):
    """A run that can be observed."""

    def status(self) -> Story:
        """Its progress."""
        ...


@dataclass(frozen=True)
class Look:
    """A run at one moment."""

    at_s: float
    records: int
    hops: int
    snapshots: int
    snapshots_with_log: int


@dataclass(frozen=True)
class Window:
    """What a run did between its warm-up and its end."""

    seconds: float
    records_per_s: float
    hops_per_s: float
    epochs: int
    epochs_with_log: int


def watch(flow: Flow, warm_up_s: float, seconds: float, *, every: float | None = None, **options: Any) -> Window:
    """Start a run that lasts longer than the measurement, observe it for `seconds`, and end it.

    `every` is the time between two cuts, into a folder that is gone afterwards; None: the run keeps none.
    """
    with running(flow, every, options) as job:
        return observe(job, warm_up_s, seconds)


@contextmanager
def running(flow: Flow, every: float | None, options: dict[str, Any]) -> Generator[Job]:
    """A run for the duration of the block, in which all of its tasks run."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        job = begin(flow, folder, every, options)
        try:
            yield job
        finally:
            job.cancel()


def run_to_end(flow: Flow, *, every: float | None = None, **options: Any) -> RunResult:
    """Run a flow to its end. Raises if it makes no progress for a minute."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        job = begin(flow, folder, every, options)
        moved_at_s, moved = time.monotonic(), (-1, -1)
        while (story := job.status()).state not in ("finished", "failed"):
            total = story.total()
            if (total.records, total.hops) != moved:
                moved_at_s, moved = time.monotonic(), (total.records, total.hops)
            elif time.monotonic() - moved_at_s > STALL_TIMEOUT_S:
                job.cancel()
                raise BenchError(f"the run stands still at {moved[0]} records and {moved[1]} hops: it hangs")
            time.sleep(LOOK_S)
        return job.wait()


def begin(flow: Flow, folder: str, every: float | None, options: dict[str, Any]) -> Job:
    """Start a run, and wait until all of its tasks run."""
    kept = {} if every is None else {"snapshots": folder, "every": every}
    job = start(flow, progress=False, **kept, **options)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while job.status().state == "starting":
        if time.monotonic() > deadline_s:
            job.cancel()
            raise BenchError(f"the run has not started within {START_TIMEOUT_S:.0f} s")
        time.sleep(LOOK_S / 10)
    return job


def peak_mb(pid: int) -> float:
    """The most memory that a process has had; 0 if it has none any more."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def keep_apart(pid: int, core: int) -> None:
    """Pin all threads of a process to one core, if the system supports it."""
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(pid))
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cores[core % len(cores)]})


def observe(job: Job, warm_up_s: float, seconds: float) -> Window:
    """Observe a run for `seconds` after its warm-up."""
    time.sleep(warm_up_s)
    looks = [look(job)]
    while looks[-1].at_s - looks[0].at_s < seconds:
        time.sleep(LOOK_S)
        looks.append(look(job))
    first, last = looks[0], looks[-1]
    return Window(
        seconds=last.at_s - first.at_s,
        records_per_s=slope(looks, lambda look: look.records),
        hops_per_s=slope(looks, lambda look: look.hops),
        epochs=last.snapshots - first.snapshots,
        epochs_with_log=last.snapshots_with_log - first.snapshots_with_log,
    )


def look(job: Looked) -> Look:
    """The progress of a run. Raises if the run does not simply go on, because then the measurement is not valid."""
    story: Story = job.status()
    if story.state != "running" or story.restarts:
        lines = "; ".join(story.lines[-3:])
        raise BenchError(f"the run is {story.state} after {story.restarts} restarts while it is measured: {lines}")
    total = story.total()
    return Look(time.monotonic(), total.records, total.hops, story.snapshots, story.snapshots_with_log)


def slope(looks: Sequence[Look], counted: Callable[[Look], int]) -> float:
    """The rate: the slope through all samples, because tasks report only a few times per second."""
    mean_s = sum(look.at_s for look in looks) / len(looks)
    mean = sum(map(counted, looks)) / len(looks)
    over = sum((look.at_s - mean_s) * (counted(look) - mean) for look in looks)
    return over / sum((look.at_s - mean_s) ** 2 for look in looks)
