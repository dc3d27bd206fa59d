"""What an entry of the chain names is durable before the entry is, whoever has the disk keep it."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import Flow, Items, Print
from backedge.engine.on_ray.actor import task_host as host
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.on_ray.transport.control_messages import SUPERVISOR, Begin
from backedge.engine.on_ray.transport.mailbox import Address
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.stores import folder_store
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.task_files import TaskFiles
from tests.gates import HANG_S
from tests.stores.snapshots import DEPLOYMENT, RANK, begun, complete, manifest_for, snapshots_of, write


class Disk:
    """Notes what is synced, in order, and what had been when a file was linked to its name."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.synced: list[str] = []
        self.before_link: list[str] = []
        self.fails_at = ""
        self._link = os.link
        monkeypatch.setattr(folder_store, "_sync_to_disk", self.sync)
        monkeypatch.setattr(os, "link", self.link)

    def sync(self, descriptor: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), self.top)
        if self.fails_at and path.endswith(self.fails_at):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.append(path)

    def link(self, *names: str, **folders: int | bool) -> None:
        self.before_link = list(self.synced)
        self._link(*names, **folders)  # type: ignore[arg-type]

    def expect_settled(self, name: str, synced: list[str]) -> None:
        """The file, and behind it all folders above it, from below."""
        parts = name.split("/")
        above = ["/".join(parts[:depth]) or "." for depth in reversed(range(len(parts)))]
        last = [len(synced) - 1 - synced[::-1].index(path) for path in (name, *above)]
        assert last == sorted(last), f"{name} and {above} were synced in the order {last}"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "job", monkeypatch)


LARGE = 1 << 40


@pytest.mark.parametrize("settle", [True, False])
def test_all_of_a_cut_is_settled_before_its_entry_is_there(tmp_path: Path, disk: Disk, settle: bool):
    store = begun(tmp_path)
    disk.synced.clear()
    files = write(store, snapshots_of(1), 0 if settle else LARGE)
    names = [file.name for of_task in files.values() for file in of_task.files]
    assert len(names) == 6
    assert bool(disk.synced) is settle
    if settle:
        for name in names:
            disk.expect_settled(name, disk.synced)
    assert store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    for name in [*names, "epoch=1/attempt=1/manifest-00000002.json"]:
        disk.expect_settled(name, disk.before_link)
    assert store.cut(Epoch(1)).epoch == 1


@pytest.mark.parametrize("fails_at", ["rank.0.parquet", "operator=rank", "manifest-00000002.json", "attempt=1"])
def test_a_disk_that_cannot_keep_a_cut_fails_it(tmp_path: Path, disk: Disk, fails_at: str):
    """It is the coordinator who hears of it: no entry is made, no manifest stays, and the next cut completes."""
    store = begun(tmp_path)
    files = write(store, snapshots_of(1), LARGE)
    disk.fails_at = fails_at
    with pytest.raises(OSError, match="Input/output error"):
        store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert len(store.chain()) == 1
    assert not list(tmp_path.rglob("manifest-*.json"))
    disk.fails_at = ""
    complete(store, 2)
    assert store.cut(Epoch(2)).epoch == 2


def test_a_file_that_has_gone_fails_the_cut(tmp_path: Path):
    store = begun(tmp_path)
    files = write(store, snapshots_of(1), LARGE)
    next(tmp_path.rglob("rank.0.parquet")).unlink()
    with pytest.raises(FileNotFoundError):
        store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert len(store.chain()) == 1


def test_what_is_large_is_settled_by_who_has_written_it(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    part = snapshots_of(1)[RANK]
    size = sum(file.size for file in store.write_task(Attempt(1), Epoch(1), part).files)
    assert not store.write_task(Attempt(1), Epoch(2), part, left_bytes_max=size + 9).is_settled
    assert store.write_task(Attempt(1), Epoch(3), part, left_bytes_max=size - 9).is_settled


class Waiting(FolderStore):
    """A store in which the first call to make files durable lasts until all files are written, and then may fail."""

    def __init__(self, location: str, files: int, error: OSError | None = None) -> None:
        super().__init__(location)
        self.names: list[str] = []
        self.durable: list[str] = []
        self._files = files
        self._error = error
        self._are_written = Event()

    def below(self, folder: str) -> Waiting:
        return self

    def write(self, files: Mapping[str, bytes]) -> None:
        super().write(files)
        self.names += files
        if len(self.names) == self._files:
            self._are_written.set()

    def make_durable(self, names: Collection[str]) -> None:
        if names and self.names[0] in names and self._files:
            assert self._are_written.wait(HANG_S)
            if self._error is not None:
                raise self._error
        super().make_durable(names)
        self.durable += names


def files_of_a_large_snapshot(store: Store, monkeypatch: pytest.MonkeyPatch) -> TaskFiles:
    monkeypatch.setattr("backedge.recovery.stores.task_tables.WRITTEN_AT_ONCE_BYTES", 1)
    return CutStore(store, "job").write_task(Attempt(1), Epoch(1), snapshots_of(1)[RANK])


def test_the_first_files_become_durable_while_the_next_are_written_or_fail_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Waiting(str(tmp_path), 5)
    files = files_of_a_large_snapshot(store, monkeypatch)
    assert files.is_settled and [file.name for file in files.files] == store.names
    assert sorted(store.durable) == sorted(store.names) and len(store.names) == 5
    broken = Waiting(str(tmp_path), 5, OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(OSError, match="Input/output error"):
        files_of_a_large_snapshot(broken, monkeypatch)


@pytest.mark.parametrize(("is_beside", "epoch", "is_settled"), [(True, 1, False), (True, None, True), (False, 1, True)])
def test_tasks_beside_the_supervisor_leave_it_to_that(
    tmp_path: Path, is_beside: bool, epoch: int | None, is_settled: bool
):
    """But not what several cuts may name, nor what another host has written."""
    flow = Flow("any")
    flow.read(Items([1]), name="numbers").write(Print(), name="shown")
    tasks = TasksInFolder(CutStore(str(tmp_path), "job"), flow.plan(), is_beside)
    part = snapshots_of(1)[RANK]
    written = tasks.write_task(Attempt(1), None if epoch is None else Epoch(epoch), part)
    assert written.is_settled is is_settled


def test_an_actor_knows_whether_it_is_beside_the_supervisor(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []

    def open_store(options: Any, plan: Any, is_beside: bool) -> None:
        asked.append(is_beside)
        raise OSError("no store here")

    monkeypatch.setattr(host, "open_store", open_store)
    monkeypatch.setattr(host.cluster, "place", lambda: "here")
    monkeypatch.setattr(host.cluster, "name_process", lambda title: None)
    deployment, options = SimpleNamespace(plan=SimpleNamespace(name="flow"), tasks={}), SimpleNamespace(job="job")
    for place in ("here", "elsewhere"):
        ours = host.TaskHost(supervisor=None)
        ours._mailbox, ours._met = SimpleNamespace(close=lambda: None), Attempt(1)  # type: ignore[assignment]
        addresses = {SUPERVISOR: Address(place, "ipc:///nowhere")}
        begin = Begin(Attempt(1), "a", deployment, {}, addresses, options, ())  # type: ignore[arg-type]
        assert ours.take_part(begin).end == "failed"
    assert asked == [True, False]
