"""Cuts on Ray that hold what changed: processes die, also while they compact, and every record counts once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Job, Range
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.orders import Manifest, StateFile
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import StoredFile
from backedge.recovery.stores.task_tables import TaskReader
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.fault_points import FaultPoint, Setting
from tests.on_ray.flows import begin, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

RECORDS, KEYS, PER_KEY = 30_000, 20_000, 100
"""The first cut holds a count of each key; after that a key is counted `PER_KEY` times before the next one."""

STEP = 500
COUNTED = [(key, PER_KEY) for key in range(KEYS // PER_KEY, RECORDS // PER_KEY)]
PER_FRAGILE_KEY = 10
AGAIN, PER_KEY_AGAIN = 50, 100
COUNTS = TaskId("counts", 0)
OPTIONS: dict[str, Any] = {"every": None, "keep": 2}


class Fragile:
    """A count that kills the process that reads it back for a compaction, once: then the marker is there."""

    def __init__(self, count: int, marker: str) -> None:
        self.count = count
        self.marker = marker

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        if threading.current_thread().name.startswith("compaction"):
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def key_of(n: int) -> int:
    """Many keys at the beginning; after that, few of them between two cuts."""
    return n if n < KEYS else n // PER_KEY


def counted_once(count: int, n: int) -> tuple[int, tuple[int, int]]:
    """One more of its key."""
    return count + 1, (key_of(n), count + 1)


def counting(gate: Gate, count: Callable[[int, int], tuple[int, tuple[int, int]]] = counted_once) -> Flow:
    """Count the records of each key."""
    flow = Flow("counting")
    numbers = flow.read(Gated(Range(RECORDS), gate), name="numbers").key_by(key_of)
    counted = numbers.stateful_map(count, initial=0, name="counts")
    counted.filter(lambda pair: pair[1] == PER_KEY).write(Collect(), name="counted")
    return flow


def fragile(gate: Gate, marker: str) -> Flow:
    """Count the records of each key, with counts that do not survive their first compaction."""
    flow = Flow("counting")
    numbers = flow.read(Gated(Range(RECORDS), gate), name="numbers").key_by(lambda n: n // PER_FRAGILE_KEY)

    def count(value: Fragile | None, n: int) -> tuple[Fragile, tuple[int, int]]:
        now = 1 if value is None else value.count + 1
        return Fragile(now, marker), (n // PER_FRAGILE_KEY, now)

    counted = numbers.stateful_map(count, initial=None, name="counts")
    counted.filter(lambda pair: pair[1] == PER_FRAGILE_KEY).write(Collect(), name="counted")
    return flow


def cut_at(job: Job, gate: Gate, *counts: int) -> list[int]:
    """Take a cut whenever so many records have come; the epochs."""
    epochs: list[int] = []
    for count in counts:
        gate.let(count)
        until(job, lambda story, count=count: story.by_task().get(COUNTS, 0) >= count, f"{count} records are counted")
        epochs.append(job.cut())
    return epochs


def lists_of(folder: Path) -> dict[int, tuple[StateFile, ...]]:
    """Epoch of each cut -> the files with the state of the counting task."""
    entries = CutStore(str(folder), "counting").chain()
    return {entry.epoch: entry.states[COUNTS] for entry in entries if isinstance(entry, Manifest)}


def reads_deltas(reader: TaskReader, operator: str, file: StoredFile) -> int | None:
    """Whether a task that restores its keyed state reads one of the several files that make it up."""
    is_restore = not threading.current_thread().name.startswith("compaction")
    return 0 if operator == "counts" and reader._described.below and is_restore else None


def test_a_process_that_dies_between_two_files_of_its_state_reads_them_again(tmp_path: Path, evidence: Evidence):
    """The source dies, so the task with the state stays, goes back in place, and dies behind the first file."""
    note, gate, cuts = tmp_path / "note", Gate(tmp_path / "gate"), tmp_path / "cuts"
    point = FaultPoint(str(note), TaskReader, "state_part", "after", reads_deltas, number=1)
    flow, kills = counting(gate, Setting(point, counted_once)), [f"numbers@records={KEYS + 3 * STEP}"]
    job = begin(flow, snapshots=cuts, actors="task", kills=kills, **OPTIONS)
    *_, last = cut_at(job, gate, KEYS, KEYS + STEP, KEYS + 2 * STEP)
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", len(result.kills))
    evidence.happened("processes that died while they read deltas", note.exists())
    assert [restore["epoch"] for restore in result.restores] == [last, last], "nothing was complete in between"
    evidence.happened("files below a delta that was restored", len(lists_of(cuts)[last]) - 1)
    evidence.same(result.outputs["counted"], COUNTED)
    evidence.cuts(cuts)


def test_a_process_that_dies_in_a_compaction_loses_nothing(tmp_path: Path, evidence: Evidence):
    marker, gate, cuts = tmp_path / "died", Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = begin(fragile(gate, str(marker)), snapshots=cuts, **OPTIONS)
    counts = iter(range(KEYS, RECORDS, STEP))
    while not marker.exists():
        cut_at(job, gate, next(counts))
    gate.open()
    result = job.wait()
    evidence.happened("processes that died in a compaction", marker.exists())
    assert result.state == "finished"
    evidence.same(result.outputs["counted"], [(key, PER_FRAGILE_KEY) for key in range(RECORDS // PER_FRAGILE_KEY)])
    evidence.cuts(cuts)
    (restored,) = (lists_of(cuts)[restore["epoch"]] for restore in result.restores)
    assert len(restored) > 1, "the restored cut is not the one that was being compacted, or a later one"
