"""A store is opened where it can be kept, under its own name, and never given a second identity."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import SnapshotAuthError, SnapshotCorruptError, StoreError
from tests.faults.evidence import Evidence
from tests.stores.snapshots import begin, complete


def test_a_store_makes_its_folders_keeps_its_identity_and_holds_no_run_yet(tmp_path: Path):
    root = str(tmp_path / "a" / "b")
    for job in ("job", "_job", "~job", "größe 1", "x" * 150):
        assert Path(CutStore(root, job).path) == tmp_path / "a" / "b" / job
    store = CutStore(root, "job")
    assert CutStore(root, "job").job_id == store.job_id != CutStore(root, "other").job_id
    assert not store.holds_a_run and store.chain() == []
    begin(store)
    assert store.holds_a_run


@pytest.mark.slow
def test_those_who_open_a_store_at_once_agree_on_its_identity(tmp_path: Path):
    for n in range(20):
        ids: list[str] = []
        barrier = threading.Barrier(4)

        def open_it(ids: list[str] = ids, barrier: threading.Barrier = barrier, job: str = f"job-{n}") -> None:
            barrier.wait()
            ids.append(CutStore(str(tmp_path), job).job_id)

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 4
        assert len(set(ids)) == 1


@pytest.mark.parametrize("job", ["../job", "/job", "a/b", "..", "", "job\0", "a\nb", "x" * 300, ".hidden"])
def test_a_job_of_a_bad_name_is_refused_and_nothing_is_written(tmp_path: Path, job: str, evidence: Evidence):
    with pytest.raises(ValueError, match="job name"):
        CutStore(str(tmp_path / "root"), job)
    evidence.happened("bad names of jobs", 1)
    evidence.survived("folders with nothing in them", not list(tmp_path.iterdir()))


def test_a_root_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "root").write_text("mine")
    with pytest.raises(StoreError, match=r"root/job\b.*root\b.* file\b"):
        CutStore(str(tmp_path / "root"), "job")
    assert (tmp_path / "root").read_text() == "mine"


def test_a_job_that_is_a_file_or_a_link_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"/file\b.* file\b"):
        CutStore(str(tmp_path), "file")
    for job in ("link", "dangling"):
        with pytest.raises(StoreError, match="symbolic link"):
            CutStore(str(tmp_path), job)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@contextmanager
def somebody_without_rights() -> Iterator[None]:
    """Root may write everywhere, so it becomes somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_in_a_store_that_is_closed_to_this_user_is_named_in_full(tmp_path: Path):
    let_others_reach(tmp_path)
    (tmp_path / "job" / "epoch=1").mkdir(parents=True)
    (tmp_path / "job" / "epoch=1").chmod(0o000)
    with somebody_without_rights(), pytest.raises(PermissionError) as refused:
        FolderStore(str(tmp_path)).read("job/epoch=1/manifest.json")
    assert refused.value.filename == str(tmp_path / "job" / "epoch=1")


def test_a_job_in_a_closed_folder_is_not_taken_for_a_missing_one(tmp_path: Path):
    let_others_reach(tmp_path)
    (tmp_path / "cuts" / "job").mkdir(parents=True)
    (tmp_path / "cuts").chmod(0o000)
    with somebody_without_rights(), pytest.raises(UnreadableError, match=r"/cuts/job .*Permission denied.*: grant"):
        JobFolder.open(str(tmp_path / "cuts" / "job"), None)


def let_others_reach(folder: Path) -> None:
    """Open the folders of pytest that lead there to other users."""
    for above in (folder, *folder.parents):
        if any(part.startswith("pytest-") for part in above.parts):
            above.chmod(0o755)


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path):
    # Otherwise they would not even see that they may not write there.
    let_others_reach(tmp_path)
    (tmp_path / "job").mkdir(mode=0o555)
    with somebody_without_rights():
        with pytest.raises(StoreError, match=r"/job\b.*\b(write|rights)\b"):
            CutStore(str(tmp_path), "job")
        with pytest.raises(StoreError, match=r"/job/below\b.*\b(write|rights)\b"):
            CutStore(str(tmp_path / "job" / "below"), "other")


def test_a_lost_identity_is_told_and_no_new_one_is_made(tmp_path: Path, evidence: Evidence):
    begin(CutStore(str(tmp_path), "job"))
    (tmp_path / "job" / "job.json").unlink()
    with pytest.raises(SnapshotCorruptError, match=r"job\.json is missing\b.*\bchain\b"):
        CutStore(str(tmp_path), "job")
    evidence.happened("identities that were deleted", 1)
    evidence.survived("identities that were not made again", not (tmp_path / "job" / "job.json").exists())


def test_a_folder_under_another_name_is_refused(tmp_path: Path):
    CutStore(str(tmp_path), "job")
    (tmp_path / "job").rename(tmp_path / "renamed")
    with pytest.raises(StoreError, match=r"'job'.*'renamed'"):
        CutStore(str(tmp_path), "renamed")


@pytest.mark.parametrize(("first", "then"), [(b"key", b"other"), (b"key", None), (None, b"key")])
def test_a_store_is_opened_with_the_key_it_was_made_with(
    tmp_path: Path, first: bytes | None, then: bytes | None, evidence: Evidence
):
    CutStore(str(tmp_path), "job", first)
    with pytest.raises(SnapshotAuthError, match=r"job\.json"):
        CutStore(str(tmp_path), "job", then)
    evidence.happened("keys that are not that of the store", 1)
    evidence.survived("stores that were not opened", 1)


def test_a_store_travels_to_another_process_and_does_not_tell_its_key(tmp_path: Path):
    store = CutStore(str(tmp_path), "job", b"very secret")
    begin(store)
    complete(store, 1)
    other = pickle.loads(pickle.dumps(store))
    assert other.chain() == store.chain()
    assert "secret" not in repr(store)


def test_a_relative_root_stays_where_it_was_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = CutStore("snapshots", "job")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begin(store)
    assert (tmp_path / "snapshots" / "job" / "chain").is_dir()
