"""What a restore reads of a cut: only the parts that it names, each verified before it is decoded."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import groups_of_task
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import Kind, Pickles, entries_of
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.parquet_tables import decode
from backedge.recovery.stores.schema import MANIFEST_SHAPE
from backedge.recovery.stores.shapes import ShapeError
from backedge.recovery.stores.state_table import state_parts
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_files import StoredFile, TaskFiles
from backedge.recovery.stores.task_tables import StoredCut
from tests.stores.snapshots import LOOPS, RANK, begun, complete, held, rank, snapshots_of

TASK = TaskId("count", 0)
TEXTS = {f"key {number}": f"value {number}" for number in range(300)}
OBJECTS = {(number, "x"): [number] for number in range(300)}
NUMBERS = {number: float(number) for number in range(1_000, 1_300)}


def written(store: CutStore, snapshot: TaskSnapshot) -> dict[TaskId, TaskFiles]:
    return {snapshot.task: store.write_task(Attempt(1), Epoch(1), snapshot, loops=LOOPS)}


def counted() -> TaskSnapshot:
    """A task whose state is of all kinds: columns of numbers, columns of texts, pickles, timers, the task's own."""
    keyed = held({**TEXTS, **OBJECTS, **NUMBERS}, [("key 3", 100, 0), ("key 3", 90, 1)])
    state = OperatorState(keyed, pending=(b"waits",), whole=pickle.dumps({"own": 1}))
    other = OperatorState(keyed=held({"other": 1}))
    return TaskSnapshot(TASK, Epoch(1), Attempt(1), {"count": state, "other": other}, (), ())


def test_a_file_that_is_not_asked_for_is_not_opened_and_one_that_is_gone_is_named(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    files = store.files_of(written(store, counted()))
    (other,) = tmp_path.glob("job/**/operator=other/*.parquet")
    other.unlink()
    assert files.state(TASK, "count").pending == (b"waits",)
    with pytest.raises(SnapshotCorruptError, match=rf"{other} is missing"):
        list(files.state(TASK, "other").keyed)


def test_nothing_of_a_file_that_was_changed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = CutStore(str(tmp_path), "job")
    files = store.files_of(written(store, counted()))
    (path,) = tmp_path.glob("job/**/operator=count/count.0.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    decoded: list[str] = []

    def noted(data: bytes, of: Any, name: str) -> Any:
        decoded.append(name)
        return decode(data, of, name)

    monkeypatch.setattr("backedge.recovery.stores.task_tables.decode", noted)
    with pytest.raises(SnapshotCorruptError, match=rf"{path} was changed"):
        list(files.state(TASK, "count", groups_of_task(0, 3)).keyed)
    assert decoded and not any(name.endswith("count.0.parquet") for name in decoded)


def test_logs_and_rounds_come_back_as_they_were_and_the_manifest_outlines_them(tmp_path: Path):
    store, snapshot = CutStore(str(tmp_path), "job"), rank(1)
    described = written(store, snapshot)
    files = store.files_of(described)
    assert files.logs(RANK) == {received.channel: received.log for received in snapshot.inputs if received.log}
    assert files.rounds(RANK) == snapshot.rounds
    outline = described[RANK].outline
    assert outline.logs == {received.channel: len(received.log) for received in snapshot.inputs if received.log}
    assert outline.rounds is not None and outline.rounds.in_a_round
    assert outline.operators["rank"].has_whole and not outline.operators["rank"].whole_can_move


def test_what_a_manifest_outlines_is_what_the_snapshots_say(tmp_path: Path):
    store, snapshots = CutStore(str(tmp_path), "job"), snapshots_of(1)
    cut = Cut(Epoch(1), Attempt(1), "abc", "aligned", False, snapshots, {"rank": 1})
    for task, outline in outline_of(cut).tasks.items():
        assert written(store, snapshots[task])[task].outline == outline


def test_files_that_hold_something_else_than_the_manifest_says_are_refused(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    snapshot = rank(1)
    described = written(store, snapshot)[RANK]
    forged = replace(described, rounds=None, channels=())
    files = store.files_of({RANK: forged})
    for read in (files.logs, files.rounds):
        with pytest.raises(SnapshotCorruptError, match="tells something else of task rank/0"):
            read(RANK)
    (facts, *others) = described.operators
    for forged in (
        replace(described, transactions=("rank.0.attempt-1.epoch-1",)),
        replace(described, operators=(replace(facts, has_whole=False), *others)),
    ):
        with pytest.raises(SnapshotCorruptError, match="tells something else of task rank/0"):
            store.files_of({RANK: forged}).state(RANK, "rank")


# -- a state of several files ------------------------------------------------------------------------------------


def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int = 2_000) -> tuple[CutStore, TaskFiles]:
    monkeypatch.setattr("backedge.recovery.stores.state_table.PART_BYTES", part_bytes)
    store = CutStore(str(tmp_path), "job")
    return store, written(store, counted())[TASK]


def state_files(described: TaskFiles) -> list[StoredFile]:
    return [file for file in described.files if "operator=count" in file.name]


def test_a_large_state_has_several_files_of_whole_key_groups_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, described = in_parts(tmp_path, monkeypatch)
    *keyed, last = state_files(described)
    assert last.groups is None
    spans = [file.groups for file in keyed if file.groups is not None]
    assert len(spans) == len(keyed) > 10
    assert all(end < start for (_, end), (start, _) in pairwise(spans))
    assert [first for first, _ in spans] != [last for _, last in spans]
    names = ["count.0.parquet", *(f"count.0-{number}.parquet" for number in range(1, len(keyed) + 1))]
    assert [file.name.rpartition("/")[2] for file in (*keyed, last)] == names


def test_no_file_is_written_after_many_others_were_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.task_tables.WRITTEN_AT_ONCE_BYTES", 1)
    encoded: list[int] = []
    write = FolderStore.write

    def noted(folder: FolderStore, files: dict[str, bytes]) -> None:
        encoded.append(len(files))
        write(folder, files)

    monkeypatch.setattr(FolderStore, "write", noted)
    _, described = in_parts(tmp_path, monkeypatch)
    assert encoded == [1] * len(described.files)


@pytest.mark.parametrize(
    ("parallelism", "part_bytes"),
    [(1, 2_000), (3, 2_000), (3, 1 << 20), pytest.param(40, 2_000, marks=pytest.mark.slow)],
)
def test_of_a_state_those_key_groups_and_files_are_read_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, part_bytes: int
):
    store, described = in_parts(tmp_path, monkeypatch, part_bytes)
    read: list[StoredFile] = []

    class Reading(StoredCut):
        def __init__(self) -> None:
            super().__init__({TASK: described}, self.verified)

        def verified(self, file: StoredFile) -> bytes:
            read.append(file)
            return (Path(store.path) / file.name).read_bytes()

    everything, found, timers = {**TEXTS, **OBJECTS, **NUMBERS}, dict[object, object](), list[Any]()
    for index in range(parallelism):
        read.clear()
        wanted = groups_of_task(index, parallelism)
        state = Reading().state(TASK, "count", wanted)
        parts = list(state.keyed)
        found |= {entry[0]: entry[1] for entry in entries_of(parts) if len(entry) == 2}
        timers += [entry for entry in entries_of(parts) if len(entry) == 3]
        assert {group for part in parts for group in part.groups.tolist()} <= {*wanted}
        assert state.pending == (b"waits",) and state.whole is not None
        read.sort(key=described.files.index)
        spans = {file: range(file.groups[0], file.groups[1] + 1) if file.groups else wanted for file in described.files}
        assert read == [file for file in state_files(described) if {*spans[file]} & {*wanted}]
    assert found == everything and timers == [("key 3", 100, 0), ("key 3", 90, 1)]


def test_a_file_with_other_key_groups_than_the_manifest_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, described = in_parts(tmp_path, monkeypatch, 1 << 20)
    of_groups, of_none = state_files(described)
    assert of_groups.groups is not None
    first, last = of_groups.groups
    forgeries = [replace(of_groups, groups=groups) for groups in ((first, last - 1), (first + 1, last), None)]
    for forged in (*forgeries, replace(of_none, groups=(0, 127))):
        kept = tuple(file for file in described.files if file.name != forged.name)
        files = store.files_of({TASK: replace(described, files=(*kept, forged))})
        with pytest.raises(SnapshotCorruptError, match=r"\((key groups|state) of count\)"):
            list(files.state(TASK, "count").keyed)


def test_the_files_of_a_part_are_removed_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, described = in_parts(tmp_path, monkeypatch)
    other = replace(counted(), task=TaskId("count", 1))
    kept = store.write_task(Attempt(1), Epoch(1), other)
    store.discard_task(Attempt(1), Epoch(1), TASK)
    left = {str(path.relative_to(store.path)) for path in Path(store.path).rglob("*.parquet")}
    assert left == {file.name for file in kept.files}
    assert len(described.files) > 10


def test_a_file_is_read_only_when_its_key_groups_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, described = in_parts(tmp_path, monkeypatch)
    state = store.files_of({TASK: described}).state(TASK, "count")
    *_, last, of_none = [Path(store.path) / file.name for file in state_files(described)]
    of_none.unlink()
    last.unlink()
    parts = iter(state.keyed)
    assert 0 < len(next(parts).groups) < 100
    with pytest.raises(SnapshotCorruptError, match=rf"{last} is missing"):
        list(parts)


@pytest.mark.parametrize(
    "entries",
    [
        {f"{number:04}{'k' * 1_000}": number for number in range(300)},
        {f"{number:04}{'k' * 1_000}": "v" for number in range(300)},
        dict.fromkeys(range(300), "😀" * 250),
    ],
    ids=["long keys of numbers", "long keys of texts", "texts of four bytes a character"],
)
def test_a_file_has_few_bytes_whatever_the_keys_and_values_are(entries: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.state_table.PART_BYTES", 20_000)
    sizes = [part.rows.nbytes for part in state_parts(OperatorState(held(entries)))]
    assert len(sizes) >= 15
    assert max(sizes) < 25_000


@pytest.mark.parametrize(("kind", "entry"), [("value", ("a", 5, 0)), ("gone", ("a", [1])), ("timer", ("a", [1]))])
def test_an_entry_that_is_filed_as_another_kind_is_refused(kind: Kind, entry: Any):
    """A digest is right of what a wrong program has written, too."""
    data = pickle.dumps(entry)
    part = Pickles(kind, np.array([3]), np.array([0, len(data)]), data)
    with pytest.raises(SnapshotCorruptError, match=kind):
        keyed_entries(OperatorState([part]))


def test_a_manifest_does_not_say_whether_files_are_settled(tmp_path: Path):
    store = begun(tmp_path)
    complete(store, 1)
    (file,) = Path(store.path).glob("epoch=1/*/manifest-*.json")
    document = json.loads(file.read_text())
    del document["seal"]
    MANIFEST_SHAPE(document)
    document["tasks"][0]["is_settled"] = True
    with pytest.raises(ShapeError, match=r"tasks\[0\] has a field 'is_settled'"):
        MANIFEST_SHAPE(document)
