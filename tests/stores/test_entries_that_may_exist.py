"""An answer that is lost or wrong never removes an entry of the chain, and never fences the run that created it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_calls import create_exclusively
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from tests.stores.snapshots import DEPLOYMENT, begin, begun, complete, manifest_for, snapshots_of, write

FILE = "a/b/file"
MANIFEST = Path("job", "epoch=1", "attempt=1", "manifest-00000002.json")


class Server:
    """A file server whose answer to the next link is not what happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._link = os.link
        self.answers: list[tuple[bool, int]] = []
        monkeypatch.setattr(os, "link", self.link)

    def link(self, *names: Any, **folders: Any) -> None:
        does, answer = self.answers.pop(0) if self.answers else (True, 0)
        if does:
            self._link(*names, **folders)
        if answer:
            raise OSError(answer, os.strerror(answer))


class SyncFails:
    """Folders cannot be synced as long as `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = True
        self._fsync = os.fsync
        monkeypatch.setattr("backedge.recovery.stores.folder_store._sync_to_disk", self.sync)

    def sync(self, descriptor: int) -> None:
        if self.fails and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_a_file_of_somebody_else_is_told_from_ours_by_its_bytes(tmp_path: Path, server: Server):
    folder = FolderStore(str(tmp_path))
    assert create_exclusively(folder, FILE, b"theirs")
    server.answers = [(False, errno.EEXIST)]
    assert not create_exclusively(folder, FILE, b"ours")
    assert folder.read(FILE) == b"theirs"


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_link_whose_answer_is_an_error_is_read_back(tmp_path: Path, server: Server, has_happened: bool):
    folder = FolderStore(str(tmp_path))
    server.answers = [(has_happened, errno.EIO)]
    if has_happened:
        assert create_exclusively(folder, FILE, b"ours")
    else:
        with pytest.raises(OutcomeUnknownError, match=r"a/b/file .*\bunknown"):
            create_exclusively(folder, FILE, b"ours")
        assert create_exclusively(folder, FILE, b"ours")


def test_a_file_stays_though_its_folder_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another run may have read it by now and built on it."""
    folder, disk = FolderStore(str(tmp_path)), SyncFails(monkeypatch)
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match=r"unknown\b.*Input/output error"):
            create_exclusively(folder, FILE, b"ours")
        assert folder.read(FILE) == b"ours"
    disk.fails = False
    assert create_exclusively(folder, FILE, b"ours")
    assert not create_exclusively(folder, FILE, b"theirs")


def test_an_error_before_anything_was_asked_for_leaves_nothing_unknown(tmp_path: Path):
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        create_exclusively(FolderStore(str(tmp_path), write=full), FILE, b"ours")
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert FolderStore(str(tmp_path)).list() == []


# -- in the chain ------------------------------------------------------------------------------------------------


def test_a_lost_reply_does_not_fence_the_run_nor_remove_its_manifest(tmp_path: Path, server: Server):
    store = CutStore(str(tmp_path), "job")
    server.answers = [(True, errno.EEXIST)]
    begin(store)
    files = write(store, snapshots_of(1))
    server.answers = [(True, errno.EEXIST)]
    assert store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert (tmp_path / MANIFEST).exists()
    assert store.cut(Epoch(1)).epoch == 1
    complete(store, 2)


def test_an_entry_that_may_exist_stays_and_others_build_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The chain has no gap, whether the run that created the entry is ever told that it did or not."""
    store = begun(tmp_path)
    files = write(store, snapshots_of(1))
    disk = SyncFails(monkeypatch)
    monkeypatch.setattr("backedge.recovery.stores.cut_store.CutStore._unsettled", lambda store, written: [])
    make_durable = FolderStore.make_durable

    def settle_the_chain(folder: FolderStore, names: Collection[str]) -> None:
        if any(name.startswith("chain/") for name in names):
            make_durable(folder, names)

    monkeypatch.setattr(FolderStore, "make_durable", settle_the_chain)
    with pytest.raises(OutcomeUnknownError):
        store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    disk.fails = False
    other = CutStore(str(tmp_path), "job")
    assert other.create(3, AttemptStart(Attempt(2), Epoch(1), "other"))
    assert other.cut(Epoch(1)).epoch == 1
    assert store.create(2, manifest_for(files, 1), files, DEPLOYMENT), "it is there, and it is ours"
    assert [number for number, _ in CutStore(str(tmp_path), "job").numbered()] == [1, 2, 3]


def test_a_manifest_is_not_removed_while_its_entry_may_exist(tmp_path: Path, server: Server):
    """The put hangs, the disk fills up, and the put lands."""
    disk_is_full = [False]

    def write_some(descriptor: int, data: memoryview) -> int:
        if disk_is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    store = CutStore(FolderStore(str(tmp_path), write=write_some), "job")
    begin(store)
    files = write(store, snapshots_of(1))
    entry = manifest_for(files, 1)
    server.answers = [(False, errno.EIO)]
    with pytest.raises(OutcomeUnknownError):
        store.create(2, entry, files, DEPLOYMENT)
    disk_is_full[0] = True
    with pytest.raises(OutcomeUnknownError, match=r"\bentry 2\b.*\bunknown"):
        store.create(2, entry, files, DEPLOYMENT)
    assert (tmp_path / MANIFEST).exists()
    disk_is_full[0] = False
    assert store.create(2, entry, files, DEPLOYMENT)
    assert CutStore(str(tmp_path), "job").cut(Epoch(1)).epoch == 1


def test_an_unknown_entry_whose_number_another_one_got_is_lost(tmp_path: Path, server: Server):
    store, other = CutStore(str(tmp_path), "job"), CutStore(str(tmp_path), "job")
    begin(store)
    files = write(store, snapshots_of(1))
    server.answers = [(False, errno.EIO)]
    with pytest.raises(OutcomeUnknownError):
        store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert other.create(2, AttemptStart(Attempt(2), None, "other"))
    assert not store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert not (tmp_path / MANIFEST).exists(), "nothing will ever name it"
