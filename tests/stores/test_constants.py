"""Constants beside the cuts: written once, named by every cut, verified before they are decoded, removed at last."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from backedge.engine.batches.constant_bytes import constant_bytes, constant_in
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.chain_view import claimant_of
from backedge.recovery.protocol.orders import AttemptStart, Sweep
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.spark.audit.file_verification import check_file
from backedge.recovery.stores.constants import StoredConstants
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_files import StoredFile
from tests.stores.snapshots import DEPLOYMENT, append, manifest_for


def kept(store: CutStore, run: str = "77aa", **values: bytes) -> dict[str, StoredFile]:
    return dict(zip(values, store.constants.keep(values.values(), run), strict=True))


def cut(store: CutStore, epoch: int, constants: Mapping[str, StoredFile], *, keeps: tuple[int, ...]) -> None:
    """A complete cut of no task, after which these cuts are kept."""
    entry = replace(manifest_for({}, epoch), kept=tuple(map(Epoch, keeps)))
    assert store.create(len(store.chain()) + 1, entry, {}, DEPLOYMENT, constants)


def there(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "job" / "constants").iterdir()}


def test_every_cut_names_them_and_they_are_written_once(store: CutStore, tmp_path: Path):
    files = kept(store, prices=b"12", same=b"12", rates=b"3")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "job" / "constants").iterdir()}
    assert len(written) == 2
    for epoch in (1, 2):
        cut(store, epoch, files, keeps=(1, 2)[:epoch])
        described = CutStore(str(tmp_path), "job").manifest_of(Epoch(epoch))
        assert described.constants == files
        assert set(files.values()) <= set(described.files)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert CutStore(str(tmp_path), "job").constants.read("rates", files["rates"]) == b"3"


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def changed(path: Path) -> None:
    *data, last = path.read_bytes()
    path.write_bytes(bytes([*data, last ^ 1]))


@pytest.mark.parametrize("damage", [torn, changed, Path.unlink])
def test_damage_is_found_before_anything_is_decoded_and_by_the_audit(
    store: CutStore, tmp_path: Path, damage: Callable[[Path], None]
):
    (file,) = (files := kept(store, prices=pickle.dumps([1, 2]))).values()
    cut(store, 1, files, keeps=(1,))
    audited = (store.path, file.name, file.size, file.digest)
    store.verify(Epoch(1))
    assert check_file(*audited) is None
    damage(tmp_path / "job" / file.name)
    for read in (lambda: store.constants.read("prices", file), lambda: store.verify(Epoch(1))):
        with pytest.raises(SnapshotCorruptError, match="constants/"):
            read()
    assert "constants/" in str(check_file(*audited))


def test_a_name_that_leads_elsewhere_is_forged(store: CutStore, tmp_path: Path):
    for name in ("job.json", "constants/../job.json", "../x/1.constant"):
        with pytest.raises(SnapshotCorruptError, match="forged"):
            store.constants.read("prices", StoredFile(name, 1, "00", None))
        with pytest.raises(SnapshotCorruptError, match="forged"):
            store.constants.remove([StoredFile(name, 1, "00", None)])
    assert (tmp_path / "job" / "job.json").exists()


def test_they_are_removed_with_the_last_cut_that_names_them(store: CutStore, tmp_path: Path):
    former, later = kept(store, prices=b"1"), kept(store, "88bb", prices=b"2")
    cut(store, 1, former, keeps=(1,))
    cut(store, 2, former, keeps=(1, 2))
    cut(store, 3, later, keeps=(2, 3))
    # Another process, which has written none of these cuts.
    store = CutStore(str(tmp_path), "job")
    store.drop(Epoch(1))
    assert len(there(tmp_path)) == 2
    cut(store, 4, later, keeps=(3, 4))
    store.drop(Epoch(2))
    assert [f"constants/{name}" for name in there(tmp_path)] == [later["prices"].name]
    store.drop(Epoch(3))
    assert len(there(tmp_path)) == 1


def test_a_removal_that_is_carried_out_late_spares_the_file_of_a_new_run_with_the_same_value(
    store: CutStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cut(store, 1, kept(store, prices=b"1"), keeps=(1,))
    cut(store, 2, {}, keeps=(2,))
    theirs: dict[str, StoredFile] = {}
    remove = StoredConstants.remove

    def sleep(constants: StoredConstants, files: Iterable[StoredFile]) -> None:
        """The new run begins when it is decided what to remove."""
        other = CutStore(str(tmp_path), "job")
        theirs.update(kept(other, "88bb", prices=b"1"))
        cut(other, 3, theirs, keeps=(2, 3))
        remove(constants, files)

    monkeypatch.setattr(StoredConstants, "remove", sleep)
    store.drop(Epoch(1))
    assert [f"constants/{name}" for name in there(tmp_path)] == [theirs["prices"].name]
    assert store.constants.read("prices", theirs["prices"]) == b"1"


def test_nothing_is_removed_while_a_cut_cannot_be_read(store: CutStore, tmp_path: Path):
    cut(store, 1, kept(store, prices=b"1"), keeps=(1,))
    cut(store, 2, kept(store, "88bb", prices=b"2"), keeps=(1, 2))
    cut(store, 3, {}, keeps=(2, 3))
    changed(tmp_path / "job/epoch=2/attempt=1/manifest-00000003.json")
    CutStore(str(tmp_path), "job").drop(Epoch(1))
    assert len(there(tmp_path)) == 2


def test_arrays_and_tables_are_views_of_the_bytes_that_cannot_be_written_to():
    value: dict[str, Any] = {
        "array": np.arange(1_000.0),
        "odd": np.arange(3, dtype=np.int8),
        "table": pa.table({"n": np.arange(1_000), "text": ["a"] * 1_000}),
        "plain": {"rates": [1, 2.5]},
    }
    data = constant_bytes(value)
    first = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    found = constant_in(memoryview(data))
    assert found["plain"] == value["plain"] and found["table"] == value["table"]
    for name in ("array", "odd"):
        assert np.array_equal(found[name], value[name])
        place = found[name].__array_interface__["data"][0] - first
        assert 0 <= place < len(data) and place % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            found[name][0] = 7
    for column in found["table"].columns:
        places = [b.address - first for chunk in column.chunks for b in chunk.buffers() if b is not None]
        assert places and all(0 <= place < len(data) for place in places)


def claim(store: CutStore, run: str, attempt: int) -> Sweep:
    """A run claims the job. Gives what it has removed then."""
    append(store, AttemptStart(Attempt(attempt), None, claimant_of(run, "1")))
    reader = Supervisor(claimant_of(run, "1"))
    reader.read(store.numbered())
    reader.attempt = Attempt(attempt)
    return reader.sweep()


def test_those_of_runs_that_died_before_their_first_cut_are_removed_by_the_next_run(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    for attempt, run in enumerate(("11aa", "22bb"), 1):
        kept(store, run, prices=b"1")
        claim(store, run, attempt)
    ours = kept(store, "33cc", prices=b"1")
    store.sweep(claim(store, "33cc", 3))
    assert {f"constants/{name}" for name in there(tmp_path)} == {ours["prices"].name}


def test_those_that_a_kept_cut_names_stay_and_those_of_a_run_that_may_claim_later(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    first = kept(store, "11aa", prices=b"1")
    claim(store, "11aa", 1)
    cut(store, 1, first, keeps=(1,))
    later = claim(store, "22bb", 2)
    starting = kept(store, "33cc", prices=b"1")
    store.sweep(later)
    names = {file.name for files in (first, starting) for file in files.values()}
    assert {f"constants/{name}" for name in there(tmp_path)} == names
