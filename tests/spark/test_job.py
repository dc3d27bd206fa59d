"""The folder of a job is read, verified and never changed; what cannot be read is said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backedge.recovery.orders import AttemptStart, Manifest
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import rows_of
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from tests.stores.snapshots import begin, complete

KEY = b"a secret of 22 bytes.."


def job_in(root: Path, job: str = "job", key: bytes | None = None) -> Path:
    """A job with three cuts, the last of them with a task that has ended; the first was dropped."""
    store = CutStore(str(root), job, key)
    begin(store)
    complete(store, 1)
    complete(store, 3)
    begin(store, 2, restored=3)
    complete(store, 4, attempt=2, ended=True)
    store.describe_graph("abc", {"name": job, "operators": [], "edges": []})
    store.drop(complete(store, 5, attempt=2).epoch)
    return Path(store.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return job_in(tmp_path / "snapshots")


def refusal(path: str | Path, epoch: int | None = None, key: bytes | None = None) -> str:
    with pytest.raises(UnreadableError) as caught:
        folder = JobFolder.open(str(path), key)
        folder.links()
        if epoch is not None:
            folder.manifest(epoch)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_job_is_found_by_its_folder_and_by_the_one_above(path: Path):
    for name in (str(path), str(path.parent), f"{path}/", path.as_uri()):
        folder = JobFolder.open(name)
        assert (folder.path, folder.job) == (str(path), "job")
        assert folder.job_id == CutStore(str(path.parent), "job").job_id


def test_a_path_may_lead_over_a_link(path: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(path)
    assert JobFolder.open(str(tmp_path / "link")).path == str(path)


def test_the_chain_tells_attempts_and_cuts_in_order(path: Path):
    entries = [link.entry for link in JobFolder.open(str(path)).links()]
    assert [type(entry) for entry in entries] == [AttemptStart, Manifest, Manifest, AttemptStart, Manifest, Manifest]


def test_cuts_are_those_that_are_complete_and_still_there(path: Path):
    folder = JobFolder.open(str(path))
    assert folder.cuts() == [1, 3, 4]
    assert folder.latest() == 4


def test_a_manifest_is_the_document_as_it_was_written(path: Path):
    manifest = JobFolder.open(str(path)).manifest(4)
    assert (manifest["epoch"], manifest["attempt"], manifest["mode"], manifest["job"]) == (4, 2, "aligned", "job")
    assert [task["task"] for task in manifest["tasks"]] == ["orders", "rank", "done"]
    written = json.loads((path / "epoch=4/attempt=2/manifest-00000005.json").read_text())
    assert manifest == {key: value for key, value in written.items() if key != "seal"}


def test_a_graph_is_what_was_kept_of_it(path: Path):
    assert JobFolder.open(str(path)).graph("abc")["name"] == "job"


def test_nothing_is_written(path: Path):
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    folder = JobFolder.open(str(path))
    folder.manifest(folder.latest())
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_what_a_run_adds_is_seen(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    begin(store)
    folder = JobFolder.open(str(tmp_path))
    assert folder.cuts() == []
    complete(store, 1)
    assert folder.cuts() == [1]


# -- what cannot be read -----------------------------------------------------------------------------------------


def test_no_such_folder(tmp_path: Path):
    assert refusal(tmp_path / "x").startswith(f"{tmp_path}/x does not exist: give the folder")
    (tmp_path / "file").write_text("")
    assert "/file is a file: give the folder" in refusal(tmp_path / "file")
    assert not (tmp_path / "x").exists()


def test_a_folder_without_a_job(tmp_path: Path):
    assert refusal(tmp_path).startswith(f"{tmp_path} holds no job: give")


def test_a_folder_of_several_jobs_names_them(tmp_path: Path):
    for job in ("b", "a"):
        begin(CutStore(str(tmp_path), job))
    assert refusal(tmp_path) == f"{tmp_path} holds 2 jobs (a, b): give the location of one, SNAPSHOTS/JOB"


def test_a_store_that_nothing_opens():
    assert refusal("nowhere://bucket/job").startswith("nowhere://bucket/job cannot be opened: no installed package")


def test_a_job_in_a_store_that_is_no_folder(tmp_path: Path):
    location = f"sqlite://{tmp_path}/cuts.db"
    assert refusal(location) == f"{location} holds no job: give the location of one, SNAPSHOTS/JOB"
    begin(CutStore(location, "a"))
    assert JobFolder.open(location).job == "a" and JobFolder.open(f"{location}/a").path == f"{location}/a"
    begin(CutStore(location, "b"))
    assert refusal(location) == f"{location} holds 2 jobs (a, b): give the location of one, SNAPSHOTS/JOB"


def test_a_job_without_cuts(tmp_path: Path):
    begin(CutStore(str(tmp_path), "job"))
    with pytest.raises(UnreadableError, match="has no complete cut: run it"):
        JobFolder.open(str(tmp_path)).latest()


def test_an_epoch_that_is_not_complete_or_was_dropped(path: Path):
    assert refusal(path, 2) == (f"epoch 2 of job job in {path} is not complete: choose an existing epoch (1, 3, 4)")
    assert "epoch 5 of job job in" in refusal(path, 5)
    assert "was removed: choose an existing epoch (1, 3, 4)" in refusal(path, 5)


@pytest.mark.parametrize("name", ["job.json", "chain/00000003.json", "epoch=3/attempt=1/manifest-00000003.json"])
def test_a_document_that_was_changed_is_named(path: Path, name: str):
    data = (path / name).read_bytes()
    (path / name).write_bytes(data.replace(b'"format":', b'"formaT":'))
    assert str(path / name) in refusal(path, 3)
    (path / name).write_bytes(data[:-9])
    assert str(path / name) in refusal(path, 3)


def test_an_entry_that_is_missing_is_named(path: Path):
    os.remove(path / "chain/00000002.json")
    assert f"{path}/chain/00000002.json is missing" in refusal(path)


def test_a_manifest_of_another_cut_is_refused(path: Path):
    """Sealed right, and not what the chain records."""
    other = (path / "epoch=1/attempt=1/manifest-00000002.json").read_bytes()
    (path / "epoch=3/attempt=1/manifest-00000003.json").write_bytes(other)
    assert "is not the manifest recorded in the chain" in refusal(path, 3)


def test_a_graph_that_is_missing_or_of_another_job(path: Path, tmp_path: Path):
    folder = JobFolder.open(str(path))
    with pytest.raises(UnreadableError, match=r"graph-xyz\.json is missing"):
        folder.graph("xyz")
    other = job_in(tmp_path / "others")
    (path / "graph-abc.json").write_bytes((other / "graph-abc.json").read_bytes())
    with pytest.raises(UnreadableError, match="belongs to another job or graph"):
        folder.graph("abc")


def test_a_newer_format_says_to_use_another_version(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.documents.FORMAT", 99)
    newer = job_in(path.parent.parent / "newer")
    monkeypatch.undo()
    assert "job.json has format 99, and this version reads" in refusal(newer)
    assert "use the version that wrote it" in refusal(newer)


def test_a_job_that_is_signed_is_read_with_its_key_alone(tmp_path: Path):
    path = job_in(tmp_path, key=KEY)
    assert JobFolder.open(str(path), KEY).manifest(4)["epoch"] == 4
    assert "is signed, and no key is given" in refusal(path)
    assert "is not signed with this key" in refusal(path, key=b"another one of 22 bytes")


def test_a_link_that_was_planted_is_not_followed(path: Path):
    (path / "job.json").rename(path.parent / "elsewhere.json")
    (path / "job.json").symlink_to(path.parent / "elsewhere.json")
    assert "job.json should be a file and is a symbolic link" in refusal(path)


def test_positions_are_rows(path: Path):
    folder = JobFolder.open(str(path))
    positions = rows_of("positions", folder, {3: folder.manifest(3)})
    assert {split: number for *_, split, number, _ in positions} == {"a.jsonl": 7, "b.jsonl": 3, "ä/ö": None}
