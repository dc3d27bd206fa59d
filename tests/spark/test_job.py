"""The folder of a job is read, verified and never changed; what cannot be read is said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import files_in, rows_of
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


def test_a_job_is_found_by_its_folder_by_the_one_above_and_over_a_link(path: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(path)
    for name in (str(path), str(path.parent), f"{path}/", path.as_uri(), str(tmp_path / "link")):
        folder = JobFolder.open(name)
        assert (folder.path, folder.job) == (str(path), "job")
        assert folder.job_id == CutStore(str(path.parent), "job").job_id


def test_the_documents_of_a_job_are_read_and_nothing_is_written(path: Path):
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    folder = JobFolder.open(str(path))
    entries = [type(link.entry) for link in folder.links()]
    assert entries == [AttemptStart, Manifest, Manifest, AttemptStart, Manifest, Manifest]
    assert (folder.cuts(), folder.latest()) == ([1, 3, 4], 4)
    manifest = folder.manifest(4)
    assert (manifest["epoch"], manifest["attempt"], manifest["mode"], manifest["job"]) == (4, 2, "aligned", "job")
    assert [task["task"] for task in manifest["tasks"]] == ["orders", "rank", "done"]
    written = json.loads((path / "epoch=4/attempt=2/manifest-00000005.json").read_text())
    assert manifest == {key: value for key, value in written.items() if key != "seal"}
    assert folder.graph("abc")["name"] == "job"
    positions = rows_of("positions", folder, {3: folder.manifest(3)})
    assert {split: number for *_, split, number, _ in positions} == {"a.jsonl": 7, "b.jsonl": 3, "ä/ö": None}
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_what_a_run_adds_is_seen(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    begin(store)
    folder = JobFolder.open(str(tmp_path))
    assert folder.cuts() == []
    with pytest.raises(UnreadableError, match=r"\bjob\b"):
        folder.latest()
    complete(store, 1)
    assert folder.cuts() == [1]


# -- what cannot be read -----------------------------------------------------------------------------------------


def test_a_place_without_a_job_or_with_several_is_refused_by_its_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in ("x", "file"):
        assert str(tmp_path / place) in refusal(tmp_path / place)
    assert not (tmp_path / "x").exists()
    assert "nowhere://bucket/job" in refusal("nowhere://bucket/job")
    for location in (str(tmp_path), f"sqlite://{tmp_path}/cuts.db"):
        assert refusal(location).startswith(location)
        begin(CutStore(location, "a"))
        assert JobFolder.open(location).job == "a" and JobFolder.open(f"{location}/a").path == f"{location}/a"
        begin(CutStore(location, "b"))
        assert "(a, b)" in refusal(location)


def test_no_file_of_a_store_without_links_is_fetched_to_look_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    location = f"sqlite://{tmp_path}/cuts.db"
    store = CutStore(location, "job")
    begin(store)
    complete(store, 1)
    folder = JobFolder.open(location)
    name = files_in(folder.manifest(1))[0]["name"]
    monkeypatch.setattr(type(folder._store), "read", lambda *_: pytest.fail("a file is read"))
    assert folder.foreign_file(name) is None


def test_an_epoch_that_is_not_complete_or_was_dropped_is_answered_with_those_that_are_there(path: Path):
    for epoch in (2, 5):
        said = refusal(path, epoch)
        assert f"epoch {epoch} of job job" in said and "(1, 3, 4)" in said


@pytest.mark.parametrize("name", ["job.json", "chain/00000003.json", "epoch=3/attempt=1/manifest-00000003.json"])
def test_a_document_that_was_changed_is_named(path: Path, name: str):
    data = (path / name).read_bytes()
    for changed in (data.replace(b'"format":', b'"formaT":'), data[:-9]):
        (path / name).write_bytes(changed)
        assert str(path / name) in refusal(path, 3)


def test_an_entry_that_is_missing_or_a_manifest_of_another_cut_is_named(path: Path):
    """The other one is sealed right, and not what the chain records."""
    other, wanted = (f"epoch={epoch}/attempt=1/manifest-0000000{number}.json" for epoch, number in ((1, 2), (3, 3)))
    (path / wanted).write_bytes((path / other).read_bytes())
    assert wanted in refusal(path, 3)
    os.remove(path / "chain/00000002.json")
    assert f"{path}/chain/00000002.json" in refusal(path)


def test_a_graph_that_is_missing_or_of_another_job(path: Path, tmp_path: Path):
    folder = JobFolder.open(str(path))
    other = job_in(tmp_path / "others")
    (path / "graph-abc.json").write_bytes((other / "graph-abc.json").read_bytes())
    for name in ("xyz", "abc"):
        with pytest.raises(UnreadableError, match=rf"graph-{name}\.json"):
            folder.graph(name)


def test_a_newer_format_says_to_use_another_version(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.documents.FORMAT", 99)
    newer = job_in(path.parent.parent / "newer")
    monkeypatch.undo()
    said = refusal(newer)
    assert "job.json" in said and "99" in said and "version" in said


def test_a_job_that_is_signed_is_read_with_its_key_alone(tmp_path: Path):
    path = job_in(tmp_path, key=KEY)
    assert JobFolder.open(str(path), KEY).manifest(4)["epoch"] == 4
    assert "key" in refusal(path) and "key" in refusal(path, key=b"another one of 22 bytes")


def test_a_link_that_was_planted_is_not_followed(path: Path):
    (path / "job.json").rename(path.parent / "elsewhere.json")
    (path / "job.json").symlink_to(path.parent / "elsewhere.json")
    assert "job.json" in refusal(path)
