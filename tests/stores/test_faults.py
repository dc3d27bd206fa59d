"""Whatever happens to the files of a cut, nothing wrong is ever decoded, and nothing else is read in its place."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from backedge.engine.on_ray.api.cut_lookup import read_cut
from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.digests import digest_of_task_file
from backedge.recovery.stores.documents import sealed, sha256
from backedge.recovery.stores.older_cuts import with_older_cut
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotAuthError, SnapshotCorruptError, StoreError
from tests.faults.evidence import Evidence
from tests.stores.snapshots import begin, begun, complete, snapshots_of, sweep, write

MANIFEST = "epoch=1/attempt=1/manifest-00000002.json"
ENTRY = "chain/00000002.json"
ROUNDS = "epoch=1/attempt=1/table=rounds/rank.0.parquet"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """One cut, the sink's part a last state."""
    store = begun(tmp_path)
    complete(store, 1, ended=True)
    return tmp_path / "job"


def signed(tmp_path: Path) -> Path:
    store = CutStore(str(tmp_path / "signed"), "job", b"key")
    begin(store)
    complete(store, 1, ended=True)
    return tmp_path / "signed" / "job"


def reopened(job: Path, key: bytes | None = None) -> CutStore:
    return CutStore(str(job.parent), job.name, key)


def files_of(job: Path) -> list[Path]:
    tables = sorted(job.rglob("*.parquet"))
    assert len(tables) == 6
    return [*tables, job / MANIFEST, job / ENTRY]


def changed(path: Path, change: Callable[[bytes], Iterator[bytes]]) -> Iterator[bytes]:
    """Each change made to the file, which is put right in the end."""
    right = path.read_bytes()
    for wrong in change(right):
        path.write_bytes(wrong)
        yield wrong
    path.write_bytes(right)


def is_refused(job: Path, path: Path, key: bytes | None = None) -> bool:
    with pytest.raises(SnapshotCorruptError) as caught:
        reopened(job, key).cut(Epoch(1))
    return str(path) in str(caught.value)


@pytest.mark.slow
def test_a_file_cut_at_any_length_is_refused_by_its_path(job: Path, evidence: Evidence):
    def cut(right: bytes) -> Iterator[bytes]:
        yield from (right[:length] for length in {0, 1, 4, len(right) // 3, len(right) // 2, len(right) - 1})
        yield right + b"\0"

    refused = [is_refused(job, path) for path in files_of(job) for _ in changed(path, cut)]
    evidence.happened("files that were cut short", len(refused))
    assert all(refused)
    reopened(job).cut(Epoch(1))
    evidence.survived("files that were refused by their paths", len(refused))


@pytest.mark.parametrize("key", [None, pytest.param(b"key", marks=pytest.mark.slow)])
def test_a_flipped_bit_is_refused_by_the_files_path(tmp_path: Path, job: Path, key: bytes | None, evidence: Evidence):
    def flip(right: bytes) -> Iterator[bytes]:
        for position in range(0, len(right), max(1, len(right) // 7)):
            yield right[:position] + bytes([right[position] ^ (1 << position % 8)]) + right[position + 1 :]

    home = job if key is None else signed(tmp_path)
    refused = [is_refused(home, path, key) for path in files_of(home) for _ in changed(path, flip)]
    evidence.happened("bits that were flipped, in each file", len(refused))
    assert all(refused)
    reopened(home, key).cut(Epoch(1))
    evidence.survived("files that were refused by their paths", len(refused))


def test_a_missing_file_is_told_by_its_path_and_no_earlier_cut_is_taken(job: Path, evidence: Evidence):
    begin(reopened(job), 2, restored=1)
    complete(reopened(job), 2, 2, ended=True)
    tables = [path for path in job.rglob("*.parquet") if "attempt=2" in path.parts]
    assert len(tables) == 6
    for path in [*tables, job / "epoch=2/attempt=2/manifest-00000004.json"]:
        right = path.read_bytes()
        path.unlink()
        evidence.happened("files of a cut that were deleted", 1)
        with pytest.raises((SnapshotCorruptError, NoSuchCutError)) as caught:
            reopened(job).cut(Epoch(2))
        assert f"{path} is missing" in str(caught.value)
        evidence.survived("errors that name the path", 1)
        path.write_bytes(right)
    reopened(job).cut(Epoch(2))


def test_the_error_of_a_damaged_cut_names_the_latest_older_one_that_is_no_part_of_the_damage(job: Path):
    store = reopened(job)
    complete(store, 2)
    complete(store, 3)
    paths = [next(job.glob(f"epoch={epoch}/attempt=1/manifest-*.json")) for epoch in (2, 3)]
    for path, older in zip(reversed(paths), (2, 1), strict=True):
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(SnapshotCorruptError, match=rf"{paths[1]} .*cut {older} .*--resume {older}\b"):
            read_cut(reopened(job), Epoch(3))
    elsewhere = SnapshotCorruptError(f"{job / ENTRY} is torn")
    assert with_older_cut(elsewhere, Epoch(1), [Epoch(1)], store.manifest_of) is elsewhere


# -- forgeries ---------------------------------------------------------------------------------------------------


class Planted:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def plant(job: Path, mark: Path) -> None:
    table = parquet.ParquetFile(job / ROUNDS).read()
    data = pa.array([pickle.dumps(Planted(mark))], pa.binary())
    parquet.write_table(table.set_column(table.schema.get_field_index("data"), "data", data), job / ROUNDS)


def forge_manifest(job: Path, key: bytes | None, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Let the manifest say what is there, sealed as well as the forger can."""
    document = json.loads((job / MANIFEST).read_bytes())
    del document["seal"]
    for task in document["tasks"]:
        for file in task["files"]:
            data = (job / file["name"]).read_bytes()
            file.update(size=len(data), digest=digest_of_task_file(data))
    if change is not None:
        change(document)
    (job / MANIFEST).write_bytes(sealed(document, key))


def forge_entry(job: Path, key: bytes | None) -> None:
    """Let the chain say that this is the manifest."""
    document = json.loads((job / ENTRY).read_bytes())
    del document["seal"]
    data = (job / MANIFEST).read_bytes()
    document["manifest"].update(size=len(data), sha256=sha256(data))
    (job / ENTRY).write_bytes(sealed(document, key))


def read_everything(job: Path, key: bytes | None) -> None:
    store = reopened(job, key)
    store.chain()
    store.cut(Epoch(1))


@pytest.mark.parametrize("key", [None, b"key"])
def test_a_planted_pickle_is_never_run(tmp_path: Path, job: Path, key: bytes | None, evidence: Evidence):
    home, mark = job if key is None else signed(tmp_path), tmp_path / "mark"
    plant(home, mark)
    with pytest.raises(SnapshotCorruptError, match="rounds"):
        read_everything(home, key)
    forge_manifest(home, None)
    with pytest.raises(SnapshotCorruptError if key is None else SnapshotAuthError, match=MANIFEST):
        read_everything(home, key)
    evidence.happened("pickles that were planted", 1)
    evidence.survived("pickles that were not run", not mark.exists())


def test_without_a_key_whoever_can_write_everything_is_believed(tmp_path: Path, job: Path):
    """What the key is for, and that the tests above would notice a pickle that is run."""
    plant(job, tmp_path / "mark")
    forge_manifest(job, None)
    forge_entry(job, None)
    with pytest.raises(TypeError):
        read_everything(job, None)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("forgers", [None, b"another key"])
def test_with_a_key_even_a_forgery_of_everything_is_refused(tmp_path: Path, forgers: bytes | None, evidence: Evidence):
    job = signed(tmp_path)
    plant(job, tmp_path / "mark")
    forge_manifest(job, forgers)
    forge_entry(job, forgers)
    with pytest.raises(SnapshotAuthError, match=r"00000002\.json .*\bnot signed"):
        read_everything(job, b"key")
    shutil.rmtree(job / "chain")
    with pytest.raises(NoSuchCutError):
        read_everything(job, b"key")
    evidence.happened("manifests that were forged", 1)
    evidence.survived("pickles that were not run", not (tmp_path / "mark").exists())


def files_of_task(document: dict[str, Any], name: str) -> list[Any]:
    return next(task["files"] for task in document["tasks"] if task["task"] == name)


@pytest.mark.parametrize("name", ["../../outside", "/etc/hostname", "epoch=1/../../../outside", "epoch=1/a\0b"])
def test_a_manifest_that_names_a_file_outside_is_refused(job: Path, name: str):
    (job.parent / "outside").write_bytes(b"")

    def lead_out(document: dict[str, Any]) -> None:
        files_of_task(document, "rank")[0].update(name=name, size=0, digest=digest_of_task_file(b""))

    forge_manifest(job, None, lead_out)
    forge_entry(job, None)
    with pytest.raises(SnapshotCorruptError, match="forged"):
        read_everything(job, None)


def leave_out_a_file(document: dict[str, Any]) -> None:
    files = files_of_task(document, "rank")
    files[:] = [file for file in files if "table=log" not in file["name"]]


def add_a_file(document: dict[str, Any]) -> None:
    files_of_task(document, "rank").append(files_of_task(document, "done")[0])


def change_a_figure(document: dict[str, Any]) -> None:
    next(task for task in document["tasks"] if task["task"] == "rank")["channels"][0]["logged"] = [[0, 1]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        *((change, r"\btask rank/0\b") for change in (leave_out_a_file, add_a_file, change_a_figure)),
        (lambda document: document.pop("tasks"), r"\bthis version\b"),
        (lambda document: document.update(codecs={"state": 99}), r"\bthis version\b"),
        (lambda document: document.update(mode="sometimes"), r"\bthis version\b"),
        (lambda document: document.update(tasks=[1]), r"\bthis version\b"),
    ],
)
def test_a_manifest_that_tells_something_else_than_the_files_or_is_of_another_version_is_refused(
    job: Path, change: Callable[[dict[str, Any]], None], told: str
):
    forge_manifest(job, None, change)
    forge_entry(job, None)
    with pytest.raises(SnapshotCorruptError, match=told):
        read_everything(job, None)


def test_a_table_of_other_columns_is_refused(job: Path):
    other = io.BytesIO()
    parquet.write_table(pa.table({"a": [1]}), other)
    for data, told in ((other.getvalue(), "columns"), (b"PAR1 nothing", "this version")):
        (job / ROUNDS).write_bytes(data)
        forge_manifest(job, None)
        forge_entry(job, None)
        with pytest.raises(SnapshotCorruptError, match=rf"rank\.0\.parquet .*\b{told}\b"):
            read_everything(job, None)


# -- links and other things that the store never makes ---------------------------------------------------------------


def test_a_file_or_a_folder_replaced_by_a_link_is_refused(job: Path):
    outside, files = job.parent / "outside", files_of(job)
    folders = {folder for path in files for folder in path.parents if job in folder.parents}
    assert len(folders) > 12
    for path in [*files, *sorted(folders)]:
        path.rename(outside)
        path.symlink_to(outside)
        with pytest.raises(StoreError, match="symbolic link"):
            read_everything(job, None)
        path.unlink()
        outside.rename(path)
    read_everything(job, None)


def test_nothing_is_written_through_a_planted_link(job: Path, evidence: Evidence):
    outside = job.parent / "outside"
    outside.mkdir()
    (job / "epoch=2").symlink_to(outside)
    with pytest.raises(StoreError, match="symbolic link"):
        write(reopened(job), snapshots_of(2))
    (job / "epoch=2").unlink()
    (job / "epoch=2" / "attempt=1").mkdir(parents=True)
    (job / "epoch=2" / "attempt=1" / "table=state").symlink_to(outside)
    with pytest.raises(StoreError, match="symbolic link"):
        write(reopened(job), snapshots_of(2))
    evidence.happened("links that were planted", 2)
    evidence.survived("folders outside with nothing in them", not list(outside.iterdir()))


def test_a_link_in_place_of_a_file_is_replaced_and_not_written_through(job: Path):
    precious = job.parent / "precious"
    precious.write_text("mine")
    target = job / "epoch=2/attempt=1/table=state/operator=rank/rank.0.parquet"
    target.parent.mkdir(parents=True)
    target.symlink_to(precious)
    write(reopened(job), snapshots_of(2))
    assert precious.read_text() == "mine"
    assert not target.is_symlink()


def test_removing_follows_no_link(job: Path):
    precious = job.parent / "precious"
    precious.mkdir()
    (precious / "rank.0.parquet").write_text("mine")
    store = reopened(job)
    write(store, snapshots_of(2))
    (job / "epoch=1" / "attempt=1" / "table=state" / "link").symlink_to(precious)
    (job / "epoch=2" / "attempt=1" / "table=state" / "link").symlink_to(precious)
    store.drop(Epoch(1))
    begin(store, 2, restored=1)
    sweep(store, 2)
    assert not (job / "epoch=1").exists()
    assert not (job / "epoch=2").exists()
    (job / "epoch=3").symlink_to(precious)
    sweep(store, 3)
    with pytest.raises(StoreError, match="symbolic link"):
        write(store, snapshots_of(3))
    assert (precious / "rank.0.parquet").read_text() == "mine"


def test_a_pipe_in_place_of_a_file_is_refused_and_nobody_waits_for_it(job: Path):
    (job / ROUNDS).unlink()
    os.mkfifo(job / ROUNDS)
    with pytest.raises(StoreError, match="regular file"):
        read_everything(job, None)
