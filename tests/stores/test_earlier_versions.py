"""Cuts of an earlier version are read: `earlier/state-2` has no column for bytes in its files of state, and SHA-256 as
digests."""

from __future__ import annotations

import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from engine.state import decode_entries, keyed_entries
from graphs.ids import Attempt, Epoch
from recovery.cut import OperatorState, TaskSnapshot
from recovery.orders import FileId, Manifest, StateFile
from recovery.spark.audit.file_checks import faults_in
from recovery.spark.audit.file_verification import check_file
from recovery.spark.cut_tables.file_rows import batches_of
from recovery.stores.cut_store import CutStore
from recovery.stores.digests import digest_shape
from recovery.stores.parquet_tables import decode, pa
from recovery.stores.shapes import ShapeError
from recovery.stores.state_table import ADDED, STATE
from recovery.stores.store_errors import SnapshotCorruptError
from tests.stores.snapshots import DEPLOYMENT, RANK, entries_of, manifest_for, meaning, snapshots_of

EARLIER = Path(__file__).parent / "earlier" / "state-2"
HELD = {1: b"one", 2: 5, 3: [b"x"], "a": b"two", b"k": b"v"}
FILE = "epoch=7/attempt=1/table=state/operator=held/rank.0.parquet"


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    return CutStore(str(tmp_path), "job")


def test_the_files_are_those_of_the_earlier_version():
    manifest = json.loads((EARLIER / "job/epoch=7/attempt=1/manifest.json").read_bytes())
    assert manifest["codecs"]["state"] == 2
    assert parquet.ParquetFile(EARLIER / "job" / FILE).schema_arrow.names == [n for n in STATE.names if n not in ADDED]


@pytest.mark.slow
def test_an_earlier_cut_comes_back_in_meaning(store: CutStore):
    store.verify(Epoch(7))
    snapshots = store.cut(Epoch(7)).snapshots
    held = dict(snapshots[RANK].operators).pop("held")
    assert dict(decode_entries(held.groups)) == HELD
    for task, part in snapshots_of(7).items():
        found = meaning(snapshots[task])
        assert {name: found.operators[name] for name in part.operators} == meaning(part).operators
        assert (found.inputs, found.outputs, found.rounds) == (part.inputs, part.outputs, part.rounds)


def test_a_changed_file_of_an_earlier_cut_is_refused_by_the_digest_of_its_time(store: CutStore):
    (file,) = (file for file in store.manifest_of(Epoch(7)).files if file.name == FILE)
    assert file.digest.startswith("sha256:")
    path = Path(store.path) / FILE
    data = path.read_bytes()
    assert check_file(store.path, *file) is None
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SnapshotCorruptError, match=FILE):
        store.verify(Epoch(7))
    with pytest.raises(SnapshotCorruptError, match=FILE):
        store.cut(Epoch(7))
    assert "was changed" in str(check_file(store.path, *file))


@pytest.mark.parametrize("digest", ["0" * 64, "md5:" + "0" * 64, "blake3:" + "0" * 63, "blake3:" + "G" * 64, 7, None])
def test_what_is_no_digest_is_refused(digest: Any):
    with pytest.raises(ShapeError):
        digest_shape(digest)


def test_a_cut_may_be_on_top_of_an_earlier_one(store: CutStore):
    changed = {"held": OperatorState(entries_of({1: b"new", 9: b"nine"}))}
    nothing = dict.fromkeys(("rank", "counts"), OperatorState())
    snapshot = TaskSnapshot(RANK, Epoch(8), Attempt(1), {**nothing, **changed}, (), (), base=Epoch(7))
    files = store.write_task(Attempt(1), Epoch(8), snapshot)
    states = {RANK: (StateFile(Attempt(1), Epoch(7), 5), StateFile(Attempt(1), Epoch(8), 2))}
    entry = manifest_for({RANK: files}, 8)
    entry = Manifest(entry.epoch, entry.attempt, entry.mode, entry.files, {}, states=states)
    assert store.create(3, entry, {RANK: files}, DEPLOYMENT)
    assert entry.named == {FileId(Attempt(1), Epoch(7), RANK), FileId(Attempt(1), Epoch(8), RANK)}
    state = CutStore(str(Path(store.path).parent), "job").cut(Epoch(8)).snapshots[RANK].operators["held"]
    assert keyed_entries(state).values == {**HELD, 1: b"new", 9: b"nine"}


def test_rows_of_an_earlier_cut_have_no_bytes_in_the_column_for_them():
    data = (EARLIER / "job" / FILE).read_bytes()
    schema = pa.schema([*STATE, pa.field("key", pa.string()), pa.field("value", pa.string())])
    (rows,) = batches_of("state", data, FILE, {}, schema)
    found = {row["key"]: (row["value_bytes"], row["value"]) for row in rows.to_pylist()}
    assert found["1"] == (None, '{"base64":"b25l"}') and found["2"] == (None, "5")
    groups = [row["key_group"] for row in rows.to_pylist()]
    assert faults_in("state", BytesIO(data), (min(groups), max(groups))) == []


def test_a_file_that_lacks_another_column_is_refused(store: CutStore):
    rows: Any = parquet.ParquetFile(EARLIER / "job" / FILE).read().drop_columns(["value_str"])
    sink = BytesIO()
    parquet.write_table(rows, sink)
    with pytest.raises(SnapshotCorruptError, match="columns"):
        decode(sink.getvalue(), STATE, FILE, ADDED)
    with pytest.raises(pa.ArrowInvalid, match="columns"):
        faults_in("state", BytesIO(sink.getvalue()))
