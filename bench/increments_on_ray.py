"""Runs on Ray whose keyed state is large and of which a hundredth changes between cuts, with real cuts in a folder.

The source reads every key once, and from then on a hundredth of them again and again, as fast as the tasks can: always
the same, or, where lists of files are to grow, some of them others after a while.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from backedge import Generate
from backedge.engine.on_ray.api.job_handle import Job
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from bench.increments_in_process import OPERATOR, count, counting_flow
from bench.notes import note, read_notes
from bench.ours import BenchError, Window, begin, observe
from bench.recover import wait_for
from bench.restore import NO_CUTS_S

JOB = "increments"
SLICES: dict[str, Any] = {"parallelism": 2, "actors": "slice"}
EVERY_S = 0.1
KEPT = 40
WARM_UP_S = 2.0
CUTS = 24
DELTAS_MIN = 8
DRIFT_TIMES = 64
GAP_NOTED_S = 0.001
STALL_CUTS = 40
"""More than there are files of a task in a cut: one that is written whole in their place would be among them."""
STALL_WINDOWS = 5
SHORT_QUEUES: dict[str, Any] = {"actors": "task", "credit_bytes": 500_000}
"""A barrier waits behind what is queued: with the default, 0.4 s of records, so few cuts would be complete."""


@dataclass(frozen=True)
class CutWindow:
    """What a run did while it was observed, and what its last cuts wrote.

    - deltas, whole: how many of its cuts, as far as they are kept, hold what changed, and how many everything.
    - rows: of the largest delta.
    """

    window: Window
    deltas: int = 0
    whole: int = 0
    rows: int = 0


def keys_of(keys: int, changed: int) -> Generate[int]:
    """All keys, then those that change."""
    step = keys // changed
    return Generate(lambda position: position if position < keys else position % changed * step)


def drifting_keys_of(keys: int, changed: int) -> Generate[int]:
    """All keys, then as many as change; each time they have come `DRIFT_TIMES`, a tenth of them become others."""
    step = keys // changed

    def key_at(position: int) -> int:
        if position < keys:
            return position
        which, drift = position % changed, position // (DRIFT_TIMES * changed)
        return which * step + (drift + which % 10) // 10 % step

    return Generate(key_at)


def speed(keys: int, changed: int, seconds: float, every: float | None) -> CutWindow:
    """Observe a run with cuts, or without, once all keys are there."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        flow = counting_flow(keys_of(keys, changed))
        job = begin(flow, folder, every, {**SLICES, **({} if every is None else {"keep": KEPT})})
        try:
            # The source has read each key, and a task has counted it; then some more.
            wait_for(lambda: job.status().total().records > 3 * keys, "all keys are there")
            before = since = _newest_epoch(folder)
            if every is not None:
                # The cut after the newest may have begun before all keys were there.
                wait_for(
                    lambda: _newest_epoch(folder) > before + 1 and holds_what_changed(folder), "cuts hold what changed"
                )
                since = _newest_epoch(folder)
            window = observe(job, min(WARM_UP_S, seconds), seconds)
        finally:
            job.cancel()
        return CutWindow(window) if every is None else _looked_at(window, folder, since)


def _looked_at(window: Window, folder: str, since: int) -> CutWindow:
    rows = [rows for epoch, rows in kept_cuts(folder) if epoch > since]
    deltas = [count for count in rows if count is not None]
    return CutWindow(window, len(deltas), len(rows) - len(deltas), max(deltas, default=0))


def kept_cuts(folder: str) -> list[tuple[Epoch, int | None]]:
    """The cuts that are kept, and how many keys each of them holds as changed; None: it holds everything."""
    store = CutStore(folder, JOB)
    newest = _newest(store)
    return [] if newest is None else [(epoch, _changed_rows(store, epoch)) for epoch in newest.kept or ()]


def holds_what_changed(folder: str, rows_max: float = inf) -> bool:
    """Whether the newest cut holds what changed, in at most `rows_max` rows; then all later ones do.

    Cuts that began while the keys were read hold everything, and so do those that begin before the first of all keys is
    complete.
    """
    store = CutStore(folder, JOB)
    newest = _newest(store)
    rows = None if newest is None else _changed_rows(store, newest.epoch)
    return rows is not None and rows <= rows_max


def _newest(store: CutStore) -> Manifest | None:
    return next((entry for entry in reversed(store.chain()) if isinstance(entry, Manifest)), None)


def _newest_epoch(folder: str) -> int:
    """The epoch of the newest cut; 0 if there is none."""
    newest = _newest(CutStore(folder, JOB))
    return 0 if newest is None else newest.epoch


def _changed_rows(store: CutStore, epoch: Epoch) -> int | None:
    """How many keys a cut holds as changed; None: it holds everything."""
    of_tasks = [files for files in store.manifest_of(epoch).tasks.values() if files.task.name == OPERATOR]
    is_delta = all(files.base is not None for files in of_tasks)
    return sum(files.state_rows for files in of_tasks) if is_delta else None


# -- restores ----------------------------------------------------------------------------------------------------


class Noting:
    """Counts, and notes the id of its process when a process is given it, and the negative id at its first record."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._has_begun = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        note(self._path, float(os.getpid()))

    def __call__(self, value: int, key: int) -> tuple[int, int]:
        if not self._has_begun:
            self._has_begun = True
            note(self._path, -float(os.getpid()))
        return count(value, key)


class Restores:
    """Two cuts of one run: one that holds everything, and one with a long list of deltas on top of it.

    - whole, deltas: their epochs. files: how many files of a task the second one has.
    """

    def __init__(self, folder: str, keys: int, changed: int) -> None:
        self._folder = folder
        self._notes = f"{folder}/notes"
        self._flow = counting_flow(drifting_keys_of(keys, changed), Noting(self._notes))
        cuts = f"{folder}/cuts"
        job = begin(self._flow, cuts, NO_CUTS_S, {**SLICES, "keep": CUTS})
        try:
            wait_for(lambda: job.status().total().records > 3 * keys, "all keys are there")
            epochs = [_cut_of(job, changed) for _ in range(CUTS)]
        finally:
            job.cancel()
        kept = dict(kept_cuts(cuts))
        if kept[epochs[0]] is not None:
            raise BenchError(f"the first cut holds {kept[epochs[0]]} keys, and was to hold everything")
        store = CutStore(cuts, JOB)
        lists = {epoch: _files_of_a_task(store, epoch) for epoch in epochs}
        self.whole, self.deltas = epochs[0], max(epochs, key=lists.__getitem__)
        self.files = lists[self.deltas]
        if self.files <= DELTAS_MIN:
            raise BenchError(f"no cut has more than {self.files} files of a task: that says nothing about deltas")

    def resume_ms(self, epoch: Epoch) -> float:
        """From the moment that the processes of the tasks are given the flow until each has its first record."""
        copy = tempfile.mkdtemp(dir=self._folder)
        shutil.copytree(f"{self._folder}/cuts", f"{copy}/cuts")
        began_s = time.monotonic()
        job = begin(self._flow, f"{copy}/cuts", NO_CUTS_S, {**SLICES, "keep": CUTS, "resume": epoch})
        try:
            return wait_for(lambda: restored_ms(read_notes(self._notes), began_s), "each task has a record")
        finally:
            job.cancel()
            shutil.rmtree(copy)


def _cut_of(job: Job, changed: int) -> Epoch:
    """Take a cut after all keys that change have changed again, and some have become others."""
    before = job.status().total().records
    wait_for(lambda: job.status().total().records > before + 2 * DRIFT_TIMES * changed, "keys have changed")
    return Epoch(job.cut())


def _files_of_a_task(store: CutStore, epoch: Epoch) -> int:
    tasks = store.manifest_of(epoch).tasks.values()
    return max(1 + len(files.below) for files in tasks if files.task.name == OPERATOR)


def restored_ms(notes: list[tuple[float, float]], began_s: float) -> float:
    """The longest time of a task from its start to its first record, if both tasks have had one; else 0."""
    noted = [(at_s, int(pid)) for at_s, pid in notes if at_s >= began_s]
    first_s = {-pid: at_s for at_s, pid in noted if pid < 0}
    given_s = {pid: at_s for at_s, pid in reversed(noted) if pid in first_s}
    if len(first_s) < SLICES["parallelism"]:
        return 0.0
    return max(first_s[pid] - given_s[pid] for pid in first_s) * 1e3


# -- the stall ---------------------------------------------------------------------------------------------------


def stalls_ms(keys: int, changed: int) -> list[float]:
    """The longest time between two calls of the function of a task that holds all keys, in each of some windows."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "gaps")
        flow = counting_flow(keys_of(keys, changed), gap_noting(path))
        job = begin(flow, f"{folder}/cuts", EVERY_S, SHORT_QUEUES)
        try:
            wait_for(lambda: job.status().total().records > 3 * keys, "all keys are there")
            wait_for(lambda: holds_what_changed(f"{folder}/cuts", changed), "cuts hold what changed")
            limits_s = [time.monotonic()]
            first = job.status().snapshots
            for cuts in range(first + STALL_CUTS, first + (STALL_WINDOWS + 1) * STALL_CUTS, STALL_CUTS):
                wait_for(lambda cuts=cuts: job.status().snapshots >= cuts, f"{STALL_CUTS} more cuts are complete")
                limits_s.append(time.monotonic())
        finally:
            job.cancel()
        notes = read_notes(path)
    gaps = ((gap for at_s, gap in notes if began_s <= at_s <= ended_s) for began_s, ended_s in pairwise(limits_s))
    return [max(window, default=GAP_NOTED_S) * 1e3 for window in gaps]


def gap_noting(path: str) -> Any:
    """A count that notes when it has not been called for a while."""
    called_at_s = time.perf_counter()

    def look(value: int, key: int) -> tuple[int, int]:
        nonlocal called_at_s
        now_s = time.perf_counter()
        if now_s - called_at_s > GAP_NOTED_S:
            note(path, now_s - called_at_s)
        called_at_s = now_s
        return value + 1, key

    return look
