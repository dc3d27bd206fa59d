"""Versions beside the cuts: written once, named by every cut whose task keeps them, verified, removed at last."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot, Version
from backedge.recovery.spark.audit.file_verification import check_file
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.digests import digest_of_task_file
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.names import path_of, version_file
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_files import TaskFiles
from tests.stores.snapshots import DEPLOYMENT, begin, manifest_for, sweep

LEARN = TaskId("learn", 0)


def version(number: int, attempt: int = 1) -> Version:
    return Version("w", number, b"%d of %d" % (number, attempt))


def in_file(version: Version, attempt: int = 1) -> Version:
    """A version as it is restored."""
    digest = digest_of_task_file(version.data)
    file = path_of(version_file(digest, Attempt(attempt), "w", version.number))
    return Version("w", version.number, None, file, len(version.data), digest)


def written(store: CutStore, epoch: int, *versions: Version, attempt: int = 1) -> Mapping[TaskId, TaskFiles]:
    state = OperatorState(versions=versions, whole=b"whole")
    snapshot = TaskSnapshot(LEARN, Epoch(epoch), Attempt(attempt), {"learn": state}, (), ())
    return {LEARN: store.write_task(Attempt(attempt), Epoch(epoch), snapshot, left_bytes_max=10**9)}


def cut(store: CutStore, epoch: int, *versions: Version, keeps: tuple[int, ...], attempt: int = 1) -> None:
    files = written(store, epoch, *versions, attempt=attempt)
    entry = replace(manifest_for(files, epoch, attempt), kept=tuple(map(Epoch, keeps)))
    assert store.create(len(store.chain()) + 1, entry, files, DEPLOYMENT)


def there(tmp_path: Path) -> list[int]:
    """The numbers of the versions whose files are there."""
    return sorted(int(path.name.split(".")[1]) for path in (tmp_path / "job" / "constants").iterdir())


def test_each_is_written_once_and_restored_and_removed_with_the_last_cut_that_names_it(store: CutStore, tmp_path: Path):
    first, second, third = (version(number) for number in (1, 2, 3))
    cut(store, 1, first, second, keeps=(1,))
    before = (tmp_path / "job" / in_file(second).file).stat().st_mtime_ns
    cut(store, 2, second, third, keeps=(1, 2))
    assert (tmp_path / "job" / in_file(second).file).stat().st_mtime_ns == before
    # Another process, which has written none of these cuts.
    store = CutStore(str(tmp_path), "job")
    described = store.manifest_of(Epoch(2))
    assert described.size == sum(file.size for file in described.of_tasks) + len(second.data) + len(third.data)
    (state,) = store.cut(Epoch(2)).snapshots[LEARN].operators.values()
    assert state.versions == (in_file(second), in_file(third))
    assert [store.constants.read_version(each) for each in described.versions] == [second.data, third.data]
    store.drop(Epoch(1))
    assert there(tmp_path) == [2, 3]
    begin(store, 2, restored=2)
    # What was restored has no bytes, because its file is there.
    cut(store, 3, in_file(third), keeps=(3,), attempt=2)
    store.drop(Epoch(2))
    assert there(tmp_path) == [3]


def test_versions_of_the_same_content_have_one_file(store: CutStore, tmp_path: Path):
    first = version(1)
    cut(store, 1, first, replace(first, number=2), keeps=(1,))
    assert there(tmp_path) == [1]
    described = store.manifest_of(Epoch(1))
    assert [found.number for found in described.versions] == [1, 2]
    assert len(described.shared) == 1


def test_what_an_attempt_has_written_and_no_cut_names_is_removed_by_a_later_one(store: CutStore, tmp_path: Path):
    cut(store, 1, version(1), keeps=(1,))
    written(store, 2, version(1), version(2))
    sweep(store, 1)
    assert there(tmp_path) == [1, 2], "a later cut of this attempt may name it"
    begin(store, 2, restored=1)
    written(store, 2, version(3, attempt=2), attempt=2)
    sweep(store, 2)
    assert there(tmp_path) == [1, 3]


def test_what_a_process_has_left_that_died_while_it_wrote_one_is_removed_by_a_later_attempt(
    store: CutStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cut(store, 1, version(1), keeps=(1,))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        patch.setattr(os, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            written(store, 2, version(2))
    assert len(list((tmp_path / "job" / "constants").iterdir())) == 2
    begin(store, 2, restored=1)
    sweep(store, 2)
    assert there(tmp_path) == [1]


def die(*names: str, **folders: int) -> None:
    raise KeyboardInterrupt


class FailsOnce(FolderStore):
    """Cannot remove files below a folder when it is asked for the first time."""

    folder = ""

    def remove(self, names: Collection[str]) -> None:
        if self.folder and any(name.startswith(self.folder) for name in names):
            self.folder = ""
            raise OSError(errno.EIO, "the store is away")
        super().remove(names)


@pytest.mark.parametrize("folder", ["epoch=1/", "constants/"])
def test_what_could_not_be_removed_with_its_cut_is_removed_with_a_later_one(tmp_path: Path, folder: str):
    store: Any = CutStore(FailsOnce(str(tmp_path)), "job")
    begin(store)
    cut(store, 1, version(1), version(2), keeps=(1,))
    cut(store, 2, in_file(version(2)), version(3), keeps=(2,))
    store._store.folder = folder
    with suppress(OSError):
        store.drop(Epoch(1))
    cut(store, 3, in_file(version(3)), keeps=(3,))
    store.drop(Epoch(2))
    assert there(tmp_path) == [3]


def test_a_late_removal_knows_nothing_of_a_cut_that_was_never_complete(tmp_path: Path):
    """A supervisor fails to record a cut and falls asleep; its successor takes one of the same number."""
    full = [False]

    def write(descriptor: int, data: memoryview) -> int:
        if full[0] and b'"kind":"manifest"' in bytes(data):
            raise OSError(errno.ENOSPC, "no space left")
        return os.write(descriptor, data)

    store = CutStore(FolderStore(str(tmp_path), write), "job")
    begin(store)
    cut(store, 1, version(1), version(2), keeps=(1,))
    cut(store, 2, in_file(version(2)), version(3), keeps=(2,))
    full[0] = True
    with pytest.raises(OSError, match="no space left"):
        cut(store, 3, in_file(version(3)), version(4), keeps=(3,))
    successor = CutStore(str(tmp_path), "job")
    begin(successor, 2, restored=2)
    cut(successor, 3, in_file(version(2)), in_file(version(3)), keeps=(2, 3), attempt=2)
    cut(successor, 4, in_file(version(3)), keeps=(3, 4), attempt=2)
    successor.drop(Epoch(2))
    store.drop(Epoch(1))
    successor.verify(Epoch(3))


def test_damage_is_found_before_anything_is_decoded_and_by_the_audit(store: CutStore, tmp_path: Path):
    cut(store, 1, version(1), keeps=(1,))
    (found,) = store.manifest_of(Epoch(1)).versions
    audited = (store.path, found.file.name, found.file.size, found.file.digest)
    assert check_file(*audited) is None
    path = tmp_path / "job" / found.file.name
    path.write_bytes(b"1 of 2")
    for read in (lambda: store.constants.read_version(found), lambda: store.verify(Epoch(1))):
        with pytest.raises(SnapshotCorruptError, match="constants/"):
            read()
    assert "constants/" in str(check_file(*audited))
    path.unlink()
    with pytest.raises(SnapshotCorruptError, match="version 1 of 'w'"):
        store.constants.read_version(found)
