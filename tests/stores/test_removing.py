"""What retention drops is gone, and nothing that could still be read is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.names import CHAIN
from backedge.recovery.stores.store_errors import NoSuchCutError
from tests.stores.snapshots import (
    DEPLOYMENT,
    RANK,
    SINK,
    begin,
    complete,
    manifest_for,
    rank,
    sink,
    snapshots_of,
    source,
    sweep,
    write,
)


def folders(store: CutStore, below: str = "") -> list[str]:
    return sorted(path.name for path in (Path(store.path) / below).iterdir() if path.is_dir())


def test_a_dropped_cut_is_gone_and_the_others_stay(store: CutStore):
    for epoch in (1, 2, 3):
        complete(store, epoch)
    store.drop(Epoch(2))
    assert folders(store) == ["chain", "epoch=1", "epoch=3"]
    with pytest.raises(NoSuchCutError, match=r"\bretention\b"):
        store.cut(Epoch(2))
    for epoch in (1, 3):
        assert store.cut(Epoch(epoch)).epoch == epoch


class ListingNoted(FolderStore):
    listed: list[str]

    def list(self, folder: str = "") -> list[str]:
        self.listed.append(folder)
        return super().list(folder)


def test_to_drop_a_cut_the_chain_is_not_listed(tmp_path: Path):
    """A run with ten cuts a second would list hundreds of entries for each."""
    at = ListingNoted(str(tmp_path))
    at.listed = []
    store = CutStore(at, "job")
    begin(store)
    for epoch in (1, 2):
        complete(store, epoch)
    at.listed.clear()
    store.drop(Epoch(1))
    assert at.listed
    assert CHAIN not in at.listed
    assert folders(store) == ["chain", "epoch=2"]


def test_the_chain_still_tells_a_dropped_cut_and_a_drop_that_was_cut_short_can_be_finished(store: CutStore):
    entry = complete(store, 1)
    (Path(store.path) / "epoch=1" / "attempt=1" / "manifest-00000002.json").unlink()
    for _ in range(2):
        store.drop(Epoch(1))
        assert folders(store) == ["chain"]
    assert store.chain()[1:] == [entry]
    assert CutStore(str(Path(store.path).parent), "job").chain()[1:] == [entry]


def test_last_states_stay_while_a_later_manifest_names_them(store: CutStore):
    ended = store.write_task(Attempt(1), None, sink(1, ended=True))
    for epoch in (1, 2, 3):
        files = {part.task: store.write_task(Attempt(1), Epoch(epoch), part) for part in (source(epoch), rank(epoch))}
        files[SINK] = ended
        assert store.create(epoch + 1, manifest_for(files, epoch), files, DEPLOYMENT)
    store.drop(Epoch(1))
    store.drop(Epoch(2))
    assert store.cut(Epoch(3)).snapshots[SINK].ended
    begin(store, 2, restored=3)
    sweep(store, 2)
    assert store.cut(Epoch(3)).snapshots[SINK].ended
    complete(store, 4, 2, ended=True)
    store.drop(Epoch(3))
    assert folders(store, "epoch=last") == ["attempt=2"]
    assert store.cut(Epoch(4)).snapshots[SINK].ended


def test_a_last_state_that_no_manifest_names_yet_outlives_the_drop_of_a_cut(store: CutStore):
    complete(store, 1, ended=True)
    complete(store, 2, ended=True)
    store.write_task(Attempt(1), None, TaskSnapshot(TaskId("printed", 0), Epoch(2), Attempt(1), {}, (), (), True))
    files = write(store, {RANK: rank(3)})
    store.drop(Epoch(1))
    assert store.cut(Epoch(2)).epoch == 2
    assert files[RANK].files


def test_what_dead_attempts_left_is_forgotten_and_what_is_complete_stays(store: CutStore):
    complete(store, 1)
    write(store, snapshots_of(2))
    write(store, snapshots_of(3, ended=True))
    begin(store, 2, restored=1)
    write(store, snapshots_of(2, 2))
    write(store, snapshots_of(2, 2, ended=True))
    sweep(store, 2)
    assert folders(store) == ["chain", "epoch=1", "epoch=2", "epoch=last"]
    assert folders(store, "epoch=2") == ["attempt=2"]
    assert folders(store, "epoch=last") == ["attempt=2"]
    assert store.cut(Epoch(1)).epoch == 1


def test_a_cut_whose_manifest_is_missing_is_not_forgotten(store: CutStore):
    complete(store, 1)
    manifest = Path(store.path) / "epoch=1" / "attempt=1" / "manifest-00000002.json"
    right = manifest.read_bytes()
    manifest.unlink()
    begin(store, 2)
    sweep(store, 2)
    manifest.write_bytes(right)
    assert store.cut(Epoch(1)).epoch == 1


def tables(store: CutStore, folder: str) -> set[str]:
    return {path.name for path in (Path(store.path) / folder).rglob("*.parquet")}


def test_of_last_states_only_those_stay_that_a_manifest_names(store: CutStore):
    complete(store, 1, ended=True)
    store.write_task(Attempt(1), None, rank(2))
    begin(store, 2, restored=1)
    sweep(store, 2)
    assert tables(store, "epoch=last") == {"done.0.parquet"}
    assert store.cut(Epoch(1)).epoch == 1


def test_the_files_of_an_aborted_epoch_are_discarded_task_by_task(store: CutStore):
    complete(store, 1)
    write(store, snapshots_of(2))
    store.discard_task(Attempt(1), Epoch(2), RANK)
    assert tables(store, "epoch=2") == {"done.0.parquet"}
    for task in snapshots_of(2):
        store.discard_task(Attempt(1), Epoch(2), task)
        store.discard_task(Attempt(1), Epoch(2), task)
    assert folders(store) == ["chain", "epoch=1"]


@pytest.mark.slow
def test_tasks_may_write_while_others_discard_the_same_epoch(store: CutStore):
    tasks = [TaskId("rank", index) for index in range(4)]
    barrier = threading.Barrier(len(tasks))
    errors: list[BaseException] = []

    def write_and_discard(task: TaskId) -> None:
        try:
            barrier.wait()
            for _ in range(15):
                part = TaskSnapshot(task, Epoch(2), Attempt(1), rank(2).operators, (), ())
                store.write_task(Attempt(1), Epoch(2), part)
                store.discard_task(Attempt(1), Epoch(2), task)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=write_and_discard, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert folders(store) == ["chain"]
