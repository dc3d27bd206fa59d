"""One flow of the mix, life after life: started, fed, resumed if it is stopped or its store fails, checked, audited."""

from __future__ import annotations

import os
import re
import shutil
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any

from backedge import Job, RunResult, attach, start
from backedge.engine.io.files.file_errors import DamagedOutputError, UncommittedOutputError, UnknownTransactionError
from backedge.engine.on_ray import cluster
from backedge.recovery.stores.store_calls import remove_below
from backedge.recovery.stores.store_errors import SnapshotCorruptError, StoreError
from backedge.recovery.stores.store_schemes import store_at
from tests.gates import HANG_S
from tests.on_ray.drivers import driver, next_line
from tests.soak.audits import Audits
from tests.soak.flows import Life, Mixed
from tests.soak.report import Progress
from tests.soak.schedule import STEADY

LIFE_S = 45.0
LOOK_S = 0.25
STATUS_EVERY_S = 3.0
ANSWER_S = 2.0
DIFFERENCES_MAX = 5
OPTIONS: dict[str, Any] = {
    "every": 1.0,
    "keep": 5,
    "parallelism": 2,
    "actors": "slice",
    "max_restarts": 100_000,
    "restart_pause_max": 2.0,
    "silence_timeout": 5.0,
    "on_silence": "restart",
    "cut_timeout": 20.0,
    "progress": False,
}

LOSSES = (DamagedOutputError, SnapshotCorruptError, UncommittedOutputError, UnknownTransactionError)
"""What is gone or changed. No fault excuses it, though its message names the store or the database."""


class Lane:
    """One flow. `life_s` is how long it lives each time; `cuts` the place for its cuts, if that is not its folder.

    - life: the present one. job: its run while one is alive. driver: the process that has started a detached run.
    """

    def __init__(self, name: str, mixed: Mixed, progress: Progress, life_s: float, cuts: str | None) -> None:
        self.name = name
        self.life = Life(progress.folder, 0, 0)
        self.job: Job | None = None
        self.driver: Popen[str] | None = None
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.audits: Audits
        self._mixed = mixed
        self._progress = progress
        self._life_s = life_s
        self._cuts = cuts or str(progress.folder)
        self._seen: set[tuple[object, object]] = set()
        self._looked_s = 0.0
        self._newest: Job | None = None

    @property
    def path(self) -> str:
        """Where the job of this life is. That of a detached run has the name of the flow in tests/on_ray/drivers.py."""
        return f"{self._location}/{'trips' if self.name == 'detached' else self.name}"

    @property
    def _location(self) -> str:
        return f"{self._cuts}/{self.name}-{self.life.number}"

    def give_up(self) -> None:
        """Cancel the run that this waits for."""
        if self._newest is not None:
            self._newest.cancel()

    def _run(self) -> None:
        while not self._progress.over.is_set():
            number, count = self.life.number + 1, max(1, round(self._mixed.per_s * self._life_s))
            self.life = Life(self._progress.folder / f"{self.name}-{number}", count, number)
            self.life.folder.mkdir()
            try:
                with ExitStack() as stack:
                    self._live(stack)
            except Exception:  # noqa: BLE001 - whatever it is, the other flows go on, and the verdict says it
                self._progress.fail(self.name, traceback.format_exc(), self.path)
            if (job := self.job) is not None:
                self.job = None
                job.cancel()
            shutil.rmtree(self.life.folder, ignore_errors=True)
            self._remove_cuts()

    def _remove_cuts(self) -> None:
        """Remove the job, unless its store is away."""
        shutil.rmtree(self._location, ignore_errors=True)
        if "://" in self._location:
            with suppress(StoreError, OSError):
                remove_below(store_at(self._location), "")

    def _live(self, stack: ExitStack) -> None:
        gate, began_s, result = self.life.gate, time.monotonic(), None
        while result is None or result.state != "finished":
            lived_s = time.monotonic() - began_s
            if lived_s > self._life_s + HANG_S:
                lines = self.job.status().lines[-10:] if self.job is not None else []
                raise TimeoutError(f"the run does not end; it says {lines}")
            if self.job is None:
                self._start(stack)
            if not gate.is_open:
                gate.let(round(lived_s * self._mixed.per_s))
                if lived_s > self._life_s or self._progress.over.is_set():
                    gate.open()
            if self._progress.interrupted.is_set():
                return
            result = self._result_if_over()
        self._check(result)

    def _start(self, stack: ExitStack) -> None:
        """Start or resume the run."""
        self._seen = set()
        options: dict[str, Any] = {**OPTIONS, **self._mixed.options, "snapshots": self._location, "resume": "latest"}
        try:
            if self.name == "detached":
                words = "tests.on_ray.drivers", "detach", str(self.life.folder)
                self.driver = stack.enter_context(driver(*words, address=cluster.address()))
                next_line(self.driver)
                self.job = attach("trips", progress=False)
            else:
                self.job = start(self._mixed.make(self.life), **options)
            self._newest = self.job
        except Exception as error:
            if not self._is_forgiven(error):
                raise

    def _result_if_over(self) -> RunResult | None:
        """The result of the run if it has ended: then there is none any more. None if it has failed and may go on."""
        job = self.job
        if job is None or not job._is_over(LOOK_S):
            self._look(job)
            return None
        self.job = None
        try:
            result = job.wait()
        except Exception as error:
            if not self._is_forgiven(error):
                raise
            return None
        self._note_restores(result.restores)
        self._progress.count(f"runs {result.state}")
        return result

    def _is_forgiven(self, error: Exception) -> bool:
        """Whether this is what a fault of its store or its sink does to a run: then a user would resume it."""
        is_forgiven = not isinstance(error, LOSSES) and re.search(self._mixed.forgives, str(error)) is not None
        if is_forgiven:
            self._progress.count("runs resumed after an error")
            what = f"{self.name}: {type(error).__name__}: {str(error)[:300]}"
            self._progress.events.append((self._progress.now_s, what))
            time.sleep(LOOK_S)
        return is_forgiven

    def _look(self, job: Job | None) -> None:
        """Note what the supervisor tells of the start, of restores and of cuts, now and then."""
        if job is None or time.monotonic() - self._looked_s < STATUS_EVERY_S:
            return
        self._looked_s = time.monotonic()
        try:
            story = job.status()
            status = answer(job._supervisor.status.remote())
        except (cluster.RayError, TimeoutError):
            return  # it is about to end, or to be replaced
        if story.ran_s is not None and self._is_new("start", None):
            self._progress.measure("start s", story.ran_s - story.began_s)
        self._note_restores(story.restores)
        for epoch in status.epochs:
            if epoch.state == "complete" and epoch.seconds is not None and self._is_new(epoch.attempt, epoch.epoch):
                self._progress.count("cuts")
                # Only the run of the steady flow lasts: those of the others begin anew before they could slow down.
                self._progress.measure(f"{STEADY}: cut s" if self.name == STEADY else "cut s", epoch.seconds)
        if not self._progress.over.is_set():
            self.audits.newest_of(self.name, self.path)

    def _note_restores(self, restores: Any) -> None:
        for restore in restores:
            if restore["seconds"] is not None and self._is_new("restore", restore["attempt"]):
                self._progress.count("restores")
                self._progress.count("records restored from loops", restore["in_loop_records"])
                self._progress.measure("restore s", restore["seconds"])

    def _is_new(self, *what: object) -> bool:
        is_new = what not in self._seen
        self._seen.add(what)  # type: ignore[arg-type]
        return is_new

    def _check(self, result: RunResult) -> None:
        """Exactly once: the sink holds what it must. And every cut that is left passes the audit."""
        found = Counter(self._mixed.found(self.life, result))
        wanted = Counter(self._mixed.wanted(self.life))
        if found != wanted:
            lacking, surplus = ([*some.items()][:DIFFERENCES_MAX] for some in (wanted - found, found - wanted))
            what = f"life {self.life.number}: lacking {lacking}, surplus {surplus}"
            self._progress.fail(self.name, what, self.path)
        self._progress.count("records compared", wanted.total())
        self._progress.count("lives")
        self.audits.all_of(self.name, self.path)
        if os.path.isdir(self.path):
            self._progress.measure("files of a job at its end", count_files(self.path))


def count_files(folder: str) -> int:
    """How many files are below a folder, without the entries of a chain."""
    return sum(len(files) for place, _, files in os.walk(folder) if Path(place).name != "chain")


def pid_of_supervisor(job: Job) -> int:
    """The process of the supervisor of a run."""
    return answer(job._supervisor.__ray_call__.remote(_own_pid))


def _own_pid(_: object) -> int:
    return os.getpid()


def answer(asked: Any) -> Any:
    """What a supervisor answers; `TimeoutError` if it does not."""
    if not cluster.is_over(asked, ANSWER_S):
        raise TimeoutError("the supervisor does not answer")
    return cluster.get(asked)
