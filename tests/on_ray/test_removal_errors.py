"""A disk that fails while something is removed never fails a run: it is reported, and tried again."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Rollback, SinkPlace
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.on_ray.job_store import SWEEP_PAUSE_S, ChainInFolder, ChainInMemory
from backedge.engine.on_ray.supervisor import beside
from backedge.engine.on_ray.supervisor.beside import Beside
from backedge.engine.on_ray.supervisor.kept_lines import KeptLines
from backedge.engine.on_ray.supervisor.published_output import Output
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import Complete, Sweep
from backedge.recovery.stores import chain as chains
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotCorruptError
from tests.gates import HANG_S
from tests.on_ray.supervised import Supervised
from tests.stores.snapshots import begin, complete, sweep

EIO = OSError(errno.EIO, os.strerror(errno.EIO))


class Stubborn(ChainInMemory):
    """A store whose files cannot be removed for a while."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.dropped: list[Epoch] = []
        self.sweeps: list[Sweep] = []

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise EIO

    def drop(self, epoch: Epoch) -> None:
        self._fail()
        self.dropped.append(epoch)

    def sweep(self, sweep: Sweep) -> None:
        self._fail()
        self.sweeps.append(sweep)

    def manifest(self, epoch: Epoch) -> Any:
        return None


def test_a_cut_that_cannot_be_removed_is_reported_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch):
    store = Stubborn(failures=10**6)
    run = Supervised(monkeypatch, store, keep=1)
    run.begin()
    epochs = [run.take_a_cut() for _ in range(4)]
    assert run.told(Complete) == epochs
    assert store.dropped == store.sweeps == []
    assert f"cut {epochs[0]} could not be removed (" in run.lines and "Input/output error" in run.lines
    assert run.lines.count("what attempts have left behind could not be removed") == 1, "said once"
    run.lose_a_process()
    assert [attempt for attempt, _ in run.actors.attempts] == [1, 2]
    assert run.take_a_cut() in run.told(Complete)


def test_what_could_not_be_removed_is_removed_by_a_later_sweep(monkeypatch: pytest.MonkeyPatch):
    store = Stubborn(failures=0)
    run = Supervised(monkeypatch, store, keep=1)
    run.begin()
    first = run.take_a_cut()
    store.failures = 1
    second, third = run.take_a_cut(), run.take_a_cut()
    assert first not in store.dropped and second in store.dropped
    assert store.sweeps[-1].last == third
    assert store.sweeps[-1].removes_epoch(Epoch(first), run.supervisor.attempt), "the sweep has it again"
    assert not store.sweeps[-1].removes_epoch(Epoch(third), run.supervisor.attempt)


def test_output_that_cannot_be_removed_is_reported_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch):
    run = Supervised(monkeypatch)

    def refuse(sweep: Sweep) -> None:
        raise EIO

    monkeypatch.setattr(run.run.output, "roll_back", refuse)
    run.begin()
    assert "output that will not be published could not be removed" in run.lines
    assert run.take_a_cut() in run.told(Complete)


def test_a_store_sweeps_what_it_can_and_the_rest_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two epochs of attempt 1 are incomplete; the files of one cannot be removed at first."""
    store = CutStore(str(tmp_path), "job")
    begin(store)
    complete(store, 1)
    for epoch in (2, 3):
        (tmp_path / "job" / f"epoch={epoch}" / "attempt=1").mkdir(parents=True)
        (tmp_path / "job" / f"epoch={epoch}" / "attempt=1" / "file").write_text("x")
    begin(store, 2, restored=1)
    remove = FolderStore.remove

    def refuse(folder: FolderStore, names: list[str]) -> None:
        if any(name.startswith("epoch=2/") for name in names):
            raise EIO
        remove(folder, names)

    monkeypatch.setattr(FolderStore, "remove", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        sweep(store, 2)
    assert {path.name for path in (tmp_path / "job").glob("epoch=*")} == {"epoch=1", "epoch=2"}
    monkeypatch.setattr(FolderStore, "remove", remove)
    sweep(store, 2)
    assert {path.name for path in (tmp_path / "job").glob("epoch=*")} == {"epoch=1"}
    assert store.cut(Epoch(1)).epoch == 1


def test_sweeps_that_follow_closely_wait_for_a_later_one(tmp_path: Path):
    """Before each sweep an epoch is left behind. The first of an attempt and the last of the run do not wait."""
    now_s = 0.0
    store = ChainInFolder(CutStore(str(tmp_path), "job"), clock_s=lambda: now_s)

    def left_after(attempt: int, epoch: int, *, is_over: bool = False) -> set[str]:
        folder = tmp_path / "job" / f"epoch={epoch}" / "attempt=1"
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        order = Sweep(Attempt(attempt), is_over, frozenset(), Epoch(9), frozenset(), frozenset())
        store.sweep(order)
        return {path.name for path in (tmp_path / "job").glob("epoch=*")}

    assert left_after(1, 1) == set()
    now_s = SWEEP_PAUSE_S / 2
    assert left_after(1, 2) == {"epoch=2"}
    assert left_after(2, 3) == set()
    assert left_after(2, 4) == {"epoch=4"}
    now_s = 2 * SWEEP_PAUSE_S
    assert left_after(2, 5) == set()
    assert left_after(2, 6, is_over=True) == set()


def test_a_sweep_that_failed_does_not_put_off_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    swept: list[Sweep] = []

    def fail_once(store: CutStore, sweep: Sweep) -> None:
        swept.append(sweep)
        if len(swept) == 1:
            raise EIO

    monkeypatch.setattr(CutStore, "sweep", fail_once)
    store = ChainInFolder(CutStore(str(tmp_path), "job"), clock_s=lambda: 0.0)
    order = Sweep(Attempt(1), False, frozenset(), None, frozenset(), frozenset())
    with pytest.raises(OSError, match="Input/output error"):
        store.sweep(order)
    for _ in range(3):
        store.sweep(order)
    assert len(swept) == 2


def test_a_cut_that_was_removed_by_hand_is_dropped_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The chain has been shortened since, so it does not know the cut any more."""
    monkeypatch.setattr(chains, "ENTRIES_KEPT", 2)
    store = CutStore(str(tmp_path), "job")
    begin(store)
    for epoch in range(1, 8):
        complete(store, epoch)
        for removed in (2, 3) if epoch == 4 else ():
            CutStore(str(tmp_path), "job").drop(Epoch(removed))
        if epoch > 5:
            store.drop(Epoch(epoch - 1))
    with pytest.raises(NoSuchCutError):
        store.drop(Epoch(2))
    ChainInFolder(store).drop(Epoch(2))
    assert store.cut(Epoch(1)).epoch == 1


def test_a_damaged_file_that_a_removal_meets_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    class Damaged(Stubborn):
        def drop(self, epoch: Epoch) -> None:
            raise SnapshotCorruptError("a manifest was changed")

    run = Supervised(monkeypatch, Damaged(0), keep=1)
    run.begin()
    epochs = [run.take_a_cut() for _ in range(3)]
    assert run.told(Complete) == epochs
    assert "a manifest was changed" in run.lines


def test_the_loop_does_not_wait_for_removals_and_the_end_of_the_run_does():
    said: list[str] = []
    done: list[int] = []
    is_slow = Event()
    slow = Beside(said.append)
    slow.do(lambda: done.append(is_slow.wait()))
    slow.do(lambda: done.append(1 // 0))
    slow.do(lambda: done.append(2))
    assert done == []
    is_slow.set()
    slow.finish()
    assert done == [True, 2]
    assert len(said) == 1 and "ZeroDivisionError" in said[0]


def test_the_end_of_a_run_that_waits_for_removals_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(beside, "TOLD_S", 0.0)
    is_told, done = Event(), list[bool]()
    waiting = Beside(lambda line: is_told.set())
    waiting.do(lambda: done.append(is_told.wait(HANG_S)))
    waiting.finish()
    assert done == [True]


class Locked(Collect):
    """A sink of others, over a database that is locked when something is to be removed."""

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        raise sqlite3.OperationalError("database is locked")

    withdraw = roll_back  # type: ignore[assignment]


def test_whatever_a_sink_of_others_raises_in_a_removal_counts_as_a_failing_disk():
    flow = Flow("locked")
    flow.read(Items([1]), name="one").write(Locked(), name="table")
    output = Output(flow.plan(), TaskOptions(job="locked"), KeptLines(1))
    sweep = Sweep(Attempt(2), False, frozenset(), Epoch(1), frozenset(), frozenset())
    later = LaterOutput(Attempt(2), Epoch(1), Attempt(1), frozenset())
    for removal in (lambda: output.roll_back(sweep), lambda: output.replace(later)):
        with pytest.raises(OSError, match=r"sink 'table' raised OperationalError: database is locked \(.*, line"):
            removal()
