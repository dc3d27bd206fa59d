"""The chain of a job: each place is taken once, and what is in it is what was put there."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores import documents
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.schema import ENTRY
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotAuthError, SnapshotCorruptError, StoreError
from tests.stores.snapshots import DEPLOYMENT, RANK, SINK, begin, begun, complete, manifest_for, snapshots_of, write


def chain_of(tmp_path: Path, key: bytes | None = None) -> CutStore:
    store = CutStore(str(tmp_path), "job", key)
    begin(store)
    complete(store, 1)
    complete(store, 2, name="before the upgrade")
    begin(store, 2, restored=2)
    complete(store, 5, 2, ended=True)
    return store


def test_entries_come_back_in_order_as_they_were_created(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    start = AttemptStart(Attempt(1), None)
    assert store.create(1, start)
    first = complete(store, 1)
    last = complete(store, 4, ended=True, name="kept")
    again = AttemptStart(Attempt(2), Epoch(4))
    assert store.create(4, again)
    assert store.chain() == [start, first, last, again]
    assert CutStore(str(tmp_path), "job").chain() == store.chain()
    assert last.files[SINK] is None
    assert last.transactions == {SINK: ("done.0.late", "done.0.early")}


def test_a_coordinator_that_wakes_late_finds_its_place_taken_and_leaves_nothing(tmp_path: Path):
    late, other = CutStore(str(tmp_path), "job"), CutStore(str(tmp_path), "job")
    begin(late)
    files = write(late, snapshots_of(1))
    begin(other, 2)
    assert not late.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    assert not list(tmp_path.rglob("manifest-*.json"))
    assert late.chain() == [AttemptStart(Attempt(1), None), AttemptStart(Attempt(2), None)]


def test_of_all_who_claim_a_place_at_once_one_gets_it(tmp_path: Path):
    stores = [CutStore(str(tmp_path), "job") for _ in range(6)]
    for number in range(1, 21):
        winners: list[int] = []
        barrier = threading.Barrier(len(stores))

        def claim(who: int, number: int = number, winners: list[int] = winners, barrier: threading.Barrier = barrier):
            barrier.wait()
            if stores[who].create(number, AttemptStart(Attempt(100 * number + who), None)):
                winners.append(who)

        threads = [threading.Thread(target=claim, args=(who,)) for who in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert stores[0].chain()[-1] == AttemptStart(Attempt(100 * number + winners[0]), None)
    assert len(list((tmp_path / "job" / "chain").iterdir())) == 20


def test_an_entry_that_would_leave_a_gap_is_refused(tmp_path: Path):
    store = chain_of(tmp_path)
    with pytest.raises(StoreError, match=r"\bentry 6\b"):
        store.create(7, AttemptStart(Attempt(3), None))
    with pytest.raises(ValueError, match=r"\bnumber 0\b"):
        store.create(0, AttemptStart(Attempt(3), None))
    assert len(store.chain()) == 5


def test_a_manifest_that_names_other_files_than_are_given_is_refused(tmp_path: Path):
    store = begun(tmp_path)
    files = write(store, snapshots_of(1))
    entry = manifest_for(files, 1)
    without = {task: described for task, described in files.items() if task != RANK}
    of_another_attempt = {**files, RANK: write(store, snapshots_of(1, 2))[RANK]}
    for given in (None, without, of_another_attempt, {**files, RANK: files[SINK]}):
        with pytest.raises(ValueError, match=r"task rank/0 .*epoch 1|task orders/0 .*file"):
            store.create(2, entry, given, DEPLOYMENT)
    with pytest.raises(ValueError, match=r"\bdeployment"):
        store.create(2, entry, files)
    assert len(store.chain()) == 1
    assert not list(tmp_path.rglob("manifest-*.json"))


def test_a_torn_file_is_never_an_entry(tmp_path: Path):
    store = chain_of(tmp_path)
    chain = tmp_path / "job" / "chain"
    (chain / ".part-0123").write_bytes((chain / "00000005.json").read_bytes()[:40])
    (chain / "00000006.json.tmp").write_bytes(b"{")
    assert len(CutStore(str(tmp_path), "job").chain()) == 5
    assert store.create(6, AttemptStart(Attempt(3), Epoch(5)))


def test_a_missing_entry_is_an_error_and_so_is_a_chain_that_is_shorter_than_it_was(tmp_path: Path):
    store = chain_of(tmp_path)
    for number in range(1, 6):
        path = tmp_path / "job" / "chain" / f"{number:08d}.json"
        right = path.read_bytes()
        path.unlink()
        for reader in (store, CutStore(str(tmp_path), "job"))[: 2 if number < 5 else 1]:
            with pytest.raises(SnapshotCorruptError, match=rf"{number:08d}\.json is missing"):
                reader.chain()
        path.write_bytes(right)


def test_entries_that_are_exchanged_or_brought_from_elsewhere_are_found(tmp_path: Path):
    chain_of(tmp_path / "here")
    chain_of(tmp_path / "there")
    here, there = (tmp_path / place / "job" / "chain" for place in ("here", "there"))
    right = (here / "00000003.json").read_bytes()
    (here / "00000003.json").write_bytes((there / "00000003.json").read_bytes())
    with pytest.raises(SnapshotCorruptError, match="elsewhere"):
        CutStore(str(tmp_path / "here"), "job").chain()
    (here / "00000003.json").write_bytes((here / "00000004.json").read_bytes())
    with pytest.raises(SnapshotCorruptError, match=r"\bentry 4 of job\b"):
        CutStore(str(tmp_path / "here"), "job").chain()
    (here / "00000003.json").write_bytes(right)
    assert len(CutStore(str(tmp_path / "here"), "job").chain()) == 5


def test_an_entry_that_is_written_anew_breaks_the_chain(tmp_path: Path):
    store = chain_of(tmp_path)
    for number in (5, 4):
        (tmp_path / "job" / "chain" / f"{number:08d}.json").rename(tmp_path / f"{number}")
    assert CutStore(str(tmp_path), "job").create(4, AttemptStart(Attempt(7), None))
    (tmp_path / "5").rename(tmp_path / "job" / "chain" / "00000005.json")
    with pytest.raises(SnapshotCorruptError, match=r"00000005\.json .*\bentry\b.*\b4\b"):
        CutStore(str(tmp_path), "job").chain()
    assert store.holds_a_run


@pytest.mark.parametrize("seal", [b"", b',"seal":{"sha256":"%s"}' % (b"0" * 64)], ids=["none", "unsigned"])
def test_what_is_not_signed_is_not_parsed(seal: bytes, monkeypatch: pytest.MonkeyPatch):
    parsed: list[str] = []
    monkeypatch.setattr(documents.json, "loads", parsed.append)
    with pytest.raises((SnapshotAuthError, SnapshotCorruptError)):
        documents.opened(b'{"a":[' + b"{}," * 100 + b"{}]" + seal + b"}\n", b"key", "00000001.json", ENTRY)
    assert parsed == []


def test_an_epoch_that_no_entry_records_is_no_cut(tmp_path: Path):
    store = chain_of(tmp_path)
    write(store, snapshots_of(6, 2))
    for read in (store.cut, store.manifest_of, store.drop):
        with pytest.raises(NoSuchCutError, match=r"\bepoch 6\b"):
            read(Epoch(6))
    assert (tmp_path / "job" / "epoch=6").exists()


def test_a_manifest_tells_what_a_cut_is(tmp_path: Path):
    store = chain_of(tmp_path)
    described = store.manifest_of(Epoch(2))
    assert (described.epoch, described.attempt, described.mode.value) == (2, 1, "aligned")
    assert (described.savepoint, described.graph_hash) == ("before the upgrade", "abc")
    assert described.parallelism == {"rank": 1}
    assert (described.logs["again"].batches, described.logs["again"].records) == (4, 4)
    assert described.size == sum(path.stat().st_size for path in (tmp_path / "job" / "epoch=2").rglob("*.parquet"))
    assert {file.name for file in described.files} == {
        path.relative_to(tmp_path / "job").as_posix() for path in (tmp_path / "job" / "epoch=2").rglob("*.parquet")
    }


def test_the_description_of_a_graph_is_kept_once(tmp_path: Path):
    store = CutStore(str(tmp_path), "job", b"key")
    store.describe_graph("ab12", {"edges": [], "name": "größe", "operators": []})
    store.describe_graph("ab12", {"edges": [], "name": "other", "operators": []})
    assert store.graph("ab12") == {"edges": [], "name": "größe", "operators": []}
    with pytest.raises(SnapshotCorruptError, match=r"graph-cd34\.json is missing"):
        store.graph("cd34")
    (tmp_path / "job" / "graph-cd34.json").write_bytes((tmp_path / "job" / "graph-ab12.json").read_bytes())
    with pytest.raises(SnapshotCorruptError, match="another job or graph"):
        store.graph("cd34")


def test_a_document_of_another_format_is_refused_by_its_path(tmp_path: Path):
    chain_of(tmp_path)
    path = tmp_path / "job" / "chain" / "00000001.json"
    body = json.loads(path.read_bytes())
    del body["seal"]
    again = documents.sealed(body, None)
    assert again == path.read_bytes()
    ours, later_one = documents.FORMAT, documents.FORMAT + 1
    path.write_bytes(again.replace(b'"format":%d' % ours, b'"format":%d' % later_one))
    with pytest.raises(SnapshotCorruptError, match="digest"):
        CutStore(str(tmp_path), "job").chain()
    with pytest.MonkeyPatch.context() as later:
        later.setattr(documents, "FORMAT", later_one)
        path.write_bytes(documents.sealed(body, None))
    with pytest.raises(StoreError, match=rf"00000001\.json .*\bformat {later_one}\b.*\b{ours}\b"):
        CutStore(str(tmp_path), "job").chain()
