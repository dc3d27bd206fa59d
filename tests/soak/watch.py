"""Samples what the processes of a soak have: memory, descriptors, sockets, threads; and the files of the steady job."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import median

from backedge.engine.on_ray import cluster
from tests.on_ray.leftovers import folders, name_of, parent_of, processes
from tests.soak.lanes import Lane, count_files, pid_of_supervisor
from tests.soak.report import Progress
from tests.soak.schedule import STEADY

KINDS = {
    "ray::TaskActor": "tasks",
    "ray::SupervisorActor": "supervisors",
    "raylet": "raylet",
    "gcs_server": "GCS",
    "java": "Spark",
    "postgres": "PostgreSQL",
}
"""How the command of a process begins, without its folder -> what the process is."""

UNITED = {"others", "PostgreSQL"}
"""Of these only the number counts."""


class Watch:
    """Takes samples of everything below this process."""

    def __init__(self, progress: Progress, steady: Lane) -> None:
        self._progress = progress
        self._steady = steady

    def sample(self) -> None:
        """Measure all of it, once."""
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        steady = self._of_steady()
        for pid in [os.getpid(), *below(os.getpid())]:
            with suppress(OSError, ValueError, IndexError):  # it has just ended
                figures = figures_of(pid)
                found[steady.get(pid) or kind_of(pid)].append(figures)
        for what in found.keys() - UNITED:
            for figure in found[what][0]:
                self._progress.measure(f"{what}: {figure}", median(each[figure] for each in found[what]))
        self._progress.measure("processes", sum(map(len, found.values())))
        self._progress.measure("connections to PostgreSQL", len(found["PostgreSQL"]))
        self._progress.measure("temporary folders", len(folders()))
        path = self._steady.path
        with suppress(OSError):
            self._progress.measure(f"{STEADY}: entries of the chain", len(os.listdir(f"{path}/chain")))
            self._progress.measure(f"{STEADY}: other files of the job", count_files(path))

    def _of_steady(self) -> dict[int, str]:
        """The processes of the steady flow."""
        job = self._steady.job
        if job is None:
            return {}
        with suppress(TimeoutError, cluster.RayError):
            tasks = dict.fromkeys(job.status().pids.values(), f"{STEADY}, tasks")
            return {**tasks, pid_of_supervisor(job): f"{STEADY}, supervisor"}
        return {}


def below(ancestor: int) -> list[int]:
    """All processes below one."""
    parents = {pid: parent_of(pid) for pid in processes()}
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def kind_of(pid: int) -> str:
    """What a process is."""
    if pid == os.getpid():
        return "driver"
    name = os.path.basename(name_of(pid).partition(" ")[0])
    return next((kind for beginning, kind in KINDS.items() if name.startswith(beginning)), "others")


def figures_of(pid: int) -> dict[str, float]:
    """Memory without what it shares, descriptors, sockets and threads of a process."""
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
    shares = (int(line.split()[1]) for line in memory.splitlines() if line.startswith("Pss:"))
    ends = [_link(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return {
        "memory MB": next(shares) / 1024,
        "descriptors": len(ends),
        "sockets": sum(end.startswith("socket:") for end in ends),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
