"""Files are durable and whole, or not there."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

import pytest

from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import StoreContractError

FILE = "a/b/file"


def test_a_file_is_there_with_all_that_was_written(tmp_path: Path):
    folder = FolderStore(str(tmp_path), write=lambda descriptor, data: os.write(descriptor, data[:3]))
    folder.write({FILE: b"first and more", "c": b""})
    folder.write({FILE: b"second"})
    assert folder.read(FILE) == b"second"
    assert folder.read("c") == b""
    assert folder.list() == [FILE, "c"]


def test_a_large_file_goes_to_the_disk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The kernel takes it as a hint, and may refuse it."""
    monkeypatch.setattr("backedge.recovery.stores.folder_store._WRITTEN_BACK_BYTES", 10)
    told: list[tuple[int, int]] = []

    def tell(descriptor: int, start: int, size: int, advice: int) -> None:
        told.append((start, size))
        raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(os, "posix_fadvise", tell, raising=False)
    pieces = [b"x" * size for size in (4, 9, 25, 3)]
    folder = FolderStore(str(tmp_path))
    folder.write_pieces(FILE, pieces)
    assert told == [(0, 13), (13, 25)]
    assert folder.read(FILE) == b"".join(pieces)


@pytest.mark.parametrize("refused", [0, 1])
def test_the_disk_takes_whole_pages_from_memory_and_the_rest_is_copied(tmp_path: Path, refused: int):
    """Where the file system refuses that, everything is copied."""
    size = (1 << 20) + 4096 + 5
    memory = mmap.mmap(-1, size)
    memory[:] = os.urandom(size)
    sizes: list[tuple[int, bool]] = []

    def write(descriptor: int, data: memoryview) -> int:
        sizes.append((len(data), bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)))
        if len(sizes) <= refused:
            raise OSError(errno.EINVAL, "this file system refuses")
        return os.write(descriptor, data)

    folder = FolderStore(str(tmp_path), write)
    folder.write_pieces(FILE, [memoryview(memory), b"and more"])
    assert folder.read(FILE) == memory[:] + b"and more"
    rest = size if refused else 5
    assert sizes == [(size - 5, True), (rest, False), (8, False)]


def test_all_that_lists_a_file_is_synced_once_behind_the_file_when_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The folders of two files, and those above them: below first, for what is above names what is below."""
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "backedge.recovery.stores.folder_store._sync_to_disk", lambda descriptor: synced.append(identity(descriptor))
    )
    folder, files_written = FolderStore(str(tmp_path)), {FILE: b"one", "a/c/other": b"two"}
    folder.write(files_written)
    assert synced == [], "whoever writes does not promise that it lasts"
    folder.make_durable(files_written)
    files, folders = synced[:2], synced[2:]
    assert files == [identity(tmp_path / "a/b/file"), identity(tmp_path / "a/c/other")]
    expected = [identity(tmp_path / name) for name in ("a/b", "a/c", "a", ".")]
    assert sorted(folders[:2]) == sorted(expected[:2]) and folders[2:] == expected[2:]


def test_what_is_removed_leaves_no_empty_folder(tmp_path: Path):
    folder = FolderStore(str(tmp_path))
    folder.write({FILE: b"", "a/other": b""})
    for _ in range(2):
        folder.remove([FILE])
    assert folder.list() == ["a/other"]
    assert folder.folders() == ["a"] and folder.folders("a") == []
    folder.remove(["a/other"])
    assert list(tmp_path.iterdir()) == []


def identity(path: Path | int) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def open_folders() -> set[tuple[int, int]]:
    """Which files and folders this process has open."""
    found: set[tuple[int, int]] = set()
    for descriptor in range(1_024):
        with suppress(OSError):
            found.add(identity(descriptor))
    return found


def test_no_folder_stays_open(tmp_path: Path):
    folder = FolderStore(str(tmp_path))
    folder.write({FILE: b""})
    for _ in range(10):
        folder.write({FILE: b"x"})
        folder.make_durable([FILE])
        with pytest.raises(FileNotFoundError):
            folder.make_durable([FILE, "a/nothing"])
        folder.read(FILE)
        folder.create("exclusive", b"x")
        assert folder.facts("a/nothing") is None
        with pytest.raises(FileNotFoundError):
            folder.read("nowhere/file")
    assert open_folders() & {identity(folder) for folder in (tmp_path, *tmp_path.rglob("*"))} == set()
    with os.scandir(tmp_path):
        assert open_folders() & {identity(tmp_path)}, "an open folder is found"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named_as_that_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    """As FAT and many that are mounted from a bucket: no permission that the user could change would help."""

    def link(*_: object, **folders: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(
        StoreContractError, match=rf"{tmp_path}/job/job.json .*hard links .*guarantee 3.*another file system"
    ):
        CutStore(str(tmp_path), "job")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left"
