"""Cuts on Ray that hold what changed: processes die, also while they compact, and every record counts once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Range, RunOptions
from backedge.faults import Faults, run_with_faults
from graphs.ids import TaskId
from recovery.orders import Manifest, StateFile
from recovery.stores.cut_store import CutStore
from recovery.stores.task_files import StoredFile
from recovery.stores.task_tables import TaskReader
from tests.faults.evidence import Evidence
from tests.on_ray.fault_points import FaultPoint, Setting

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

RECORDS, KEYS, PER_KEY = 1_500_000, 20_000, 500
RATE = 500_000
"""Slow enough for dozens of cuts, however fast the machine is."""
PER_FRAGILE_KEY = 250
AGAIN, PER_KEY_AGAIN = 50, 30_000
COUNTS = TaskId("counts", 0)


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


def counting(
    count: Callable[[int, int], tuple[int, tuple[int, int]]] = counted_once,
    rate: float = RATE,
    records: int = RECORDS,
) -> Flow:
    """Count the records of each key."""
    flow = Flow("counting")
    numbers = flow.read(Range(records, rate=rate), name="numbers").key_by(key_of)
    counted = numbers.stateful_map(count, initial=0, name="counts")
    counted.filter(lambda pair: pair[1] == PER_KEY).write(Collect(), name="counted")
    return flow


def fragile(records: int, marker: str) -> Flow:
    """Count the records of each key, with counts that do not survive their first compaction."""
    flow = Flow("counting")
    numbers = flow.read(Range(records, rate=RATE), name="numbers").key_by(lambda n: n // PER_FRAGILE_KEY)

    def count(value: Fragile | None, n: int) -> tuple[Fragile, tuple[int, int]]:
        now = 1 if value is None else value.count + 1
        return Fragile(now, marker), (n // PER_FRAGILE_KEY, now)

    counted = numbers.stateful_map(count, initial=None, name="counts")
    counted.filter(lambda pair: pair[1] == PER_FRAGILE_KEY).write(Collect(), name="counted")
    return flow


def lists_of(folder: Path) -> dict[int, tuple[StateFile, ...]]:
    """Epoch of each cut -> the files with the state of the counting task."""
    entries = CutStore(str(folder), "counting").chain()
    return {entry.epoch: entry.states[COUNTS] for entry in entries if isinstance(entry, Manifest)}


def test_a_process_that_dies_restores_a_base_and_its_deltas(tmp_path: Path):
    options = RunOptions(snapshots=tmp_path, every=0.05, keep=2, progress=False)
    result = run_with_faults(counting(), Faults(kills=["counts@records=1200000"]), options)
    assert result.state == "finished"
    assert sorted(result.outputs["counted"]) == [(key, PER_KEY) for key in range(KEYS // PER_KEY, RECORDS // PER_KEY)]
    lists = lists_of(tmp_path)
    (restored,) = (lists[restore["epoch"]] for restore in result.restores)
    assert len(restored) > 1, "the restored cut holds everything"
    across = [files for files in lists.values() if len({file.attempt for file in files}) > 1]
    assert across, "the attempt after it did not write what changed since the cut that it restored"
    store = CutStore(str(tmp_path), "counting")
    for epoch in store.cuts():
        files = store.manifest_of(epoch).tasks[COUNTS]
        assert [layer.size for layer in (*files.below, files.layer)] == [file.size for file in lists[epoch]]


def reads_deltas(reader: TaskReader, operator: str, file: StoredFile) -> int | None:
    """Whether a task that restores its keyed state reads one of the several files that make it up."""
    is_restore = not threading.current_thread().name.startswith("compaction")
    return 0 if operator == "counts" and reader._described.below and is_restore else None


def test_a_process_that_dies_between_two_files_of_its_state_reads_them_again(tmp_path: Path, evidence: Evidence):
    """The source dies, so the task with the state stays, goes back in place, and dies behind the first file.

    The source dies three times: a cut may happen to hold everything.
    """
    note = tmp_path / "note"
    point = FaultPoint(str(note), TaskReader, "state_part", "after", reads_deltas, number=1)
    options = RunOptions(snapshots=tmp_path / "cuts", every=0.05, keep=2, actors="task", progress=False)
    kills = Faults(kills=[f"numbers@records={records}" for records in (600_000, 900_000, 1_200_000)])
    result = run_with_faults(counting(Setting(point, counted_once)), kills, options)
    evidence.happened("processes that died", len(result.kills))
    evidence.happened("processes that died while they read deltas", note.exists())
    restored = [restore["epoch"] for restore in result.restores]
    again = [first for first, second in pairwise(restored) if first == second]
    assert len(restored) == 4 and again, "nothing was complete in between"
    evidence.happened("files below a delta that was restored", len(lists_of(tmp_path / "cuts")[again[0]]) - 1)
    evidence.same(result.outputs["counted"], [(key, PER_KEY) for key in range(KEYS // PER_KEY, RECORDS // PER_KEY)])
    evidence.cuts(tmp_path / "cuts")


def test_a_process_that_dies_in_a_compaction_loses_nothing(tmp_path: Path, evidence: Evidence):
    marker, records = tmp_path / "died", RECORDS // 2
    options = RunOptions(snapshots=tmp_path / "cuts", every=0.03, keep=2, progress=False)
    result = run_with_faults(fragile(records, str(marker)), Faults(), options)
    evidence.happened("processes that died in a compaction", marker.exists())
    assert result.state == "finished" and len(result.restores) == 1
    evidence.same(result.outputs["counted"], [(key, PER_FRAGILE_KEY) for key in range(records // PER_FRAGILE_KEY)])
    evidence.cuts(tmp_path / "cuts")
    (restored,) = (lists_of(tmp_path / "cuts")[restore["epoch"]] for restore in result.restores)
    assert len(restored) > 1, "the restored cut is not the one that was being compacted, or a later one"


def again(n: int) -> int:
    """Many keys at the beginning; after that, the same ones again and again."""
    return n if n < KEYS else n % AGAIN


def count_again(count: int, n: int) -> tuple[int, tuple[int, int]]:
    """One more of its key."""
    return count + 1, (again(n), count + 1)


def superseded(lists: dict[int, tuple[StateFile, ...]]) -> list[int]:
    """The cuts whose own file has taken the place of that of the cut before."""
    pairs = pairwise(lists.items())
    return [epoch for (_, before), (epoch, files) in pairs if len(files) > 1 and files[:-1] == before[:-1]]


def test_a_process_that_dies_restores_a_delta_that_has_taken_the_place_of_others(tmp_path: Path, evidence: Evidence):
    flow = Flow("counting")
    numbers = flow.read(Range(KEYS + AGAIN * PER_KEY_AGAIN, rate=500_000), name="numbers").key_by(again)
    counted = numbers.stateful_map(count_again, initial=0, name="counts")
    counted.filter(lambda pair: pair[1] == PER_KEY_AGAIN + 1).write(Collect(), name="counted")
    options = RunOptions(snapshots=tmp_path / "cuts", every=0.05, keep=2, progress=False)
    result = run_with_faults(flow, Faults(kills=["counts@epoch=5", "numbers@epoch=9"]), options)
    evidence.happened("processes that died", len(result.kills))
    lists = lists_of(tmp_path / "cuts")
    evidence.happened("deltas that took the place of others", len(superseded(lists)))
    restored = {restore["epoch"] for restore in result.restores}
    evidence.happened("restores of such a delta", len(restored.intersection(superseded(lists))))
    evidence.same(result.outputs["counted"], [(key, PER_KEY_AGAIN + 1) for key in range(AGAIN)])
    evidence.cuts(tmp_path / "cuts")
