"""What a restore reads of a cut: only the parts that it names, each verified before it is decoded."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from engine.state import decode_entries
from graphs.ids import Attempt, Epoch, TaskId
from graphs.routing import groups_of_task, key_group
from recovery.cut import Cut, OperatorState, TaskSnapshot
from recovery.outline import outline_of
from recovery.stores.local import LocalStore
from recovery.stores.store_errors import SnapshotCorruptError
from recovery.stores.task_files import TaskFiles
from tests.stores.snapshots import LOOPS, RANK, columns_of, entries_of, rank, snapshots_of

TASK = TaskId("count", 0)
TEXTS = {f"key {number}": f"value {number}" for number in range(300)}
OBJECTS = {(number, "x"): [number] for number in range(300)}
NUMBERS = {number: float(number) for number in range(1_000, 1_300)}


def written(store: LocalStore, snapshot: TaskSnapshot) -> dict[TaskId, TaskFiles]:
    return {snapshot.task: store.write_task(Attempt(1), Epoch(1), snapshot, loops=LOOPS)}


def counted() -> TaskSnapshot:
    """A task whose state is of all kinds: columns of numbers, columns of texts, pickles, timers, the task's own."""
    groups = entries_of({**TEXTS, **OBJECTS}, [("key 3", 100, 0), ("key 3", 90, 1)])
    for group, data in columns_of(NUMBERS, "f").items():
        groups[group] = groups.get(group, b"") + data
    state = OperatorState(groups=groups, pending=(b"waits",), whole=pickle.dumps({"own": 1}))
    other = OperatorState(groups=entries_of({"other": 1}))
    return TaskSnapshot(TASK, Epoch(1), Attempt(1), {"count": state, "other": other}, (), ())


@pytest.mark.parametrize("index", range(3))
def test_of_a_state_those_key_groups_are_read_that_are_asked_for(tmp_path: Path, index: int):
    store, wanted = LocalStore(str(tmp_path), "job"), groups_of_task(index, 3)
    state = store.files_of(written(store, counted())).state(TASK, "count", wanted)
    found = {entry[0]: entry[1] for entry in decode_entries(state.groups) if len(entry) == 2}
    everything = {**TEXTS, **OBJECTS, **NUMBERS}
    assert found == {key: value for key, value in everything.items() if key_group(key) in wanted}
    assert set(state.groups) == {key_group(key) for key in found}
    timers = [entry for entry in decode_entries(state.groups) if len(entry) == 3]
    assert timers == ([("key 3", 100, 0), ("key 3", 90, 1)] if key_group("key 3") in wanted else [])
    assert state.pending == (b"waits",) and state.whole is not None


def test_the_bytes_of_a_group_hold_the_same_entries(tmp_path: Path):
    store = LocalStore(str(tmp_path), "job")
    groups = store.files_of(written(store, counted())).state(TASK, "count").groups
    as_bytes = {group: groups[group] for group in groups}
    assert sorted(map(repr, decode_entries(as_bytes))) == sorted(map(repr, decode_entries(groups)))
    assert len(groups) == len(as_bytes) and groups and 128 not in groups


def test_a_file_that_is_not_asked_for_is_not_opened_and_one_that_is_gone_is_named(tmp_path: Path):
    store = LocalStore(str(tmp_path), "job")
    files = store.files_of(written(store, counted()))
    (other,) = tmp_path.glob("job/**/operator=other/*.parquet")
    other.unlink()
    assert files.state(TASK, "count").pending == (b"waits",)
    with pytest.raises(SnapshotCorruptError, match=rf"{other} is missing"):
        files.state(TASK, "other")


def test_nothing_of_a_file_that_was_changed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path), "job")
    files = store.files_of(written(store, counted()))
    (path,) = tmp_path.glob("job/**/operator=count/*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    decoded: list[str] = []
    monkeypatch.setattr("recovery.stores.task_files.decode", lambda _, __, name: decoded.append(name))
    with pytest.raises(SnapshotCorruptError, match=rf"{path} was changed"):
        files.state(TASK, "count", groups_of_task(0, 3))
    assert not decoded


def test_logs_and_rounds_come_back_as_they_were_and_the_manifest_outlines_them(tmp_path: Path):
    store, snapshot = LocalStore(str(tmp_path), "job"), rank(1)
    described = written(store, snapshot)
    files = store.files_of(described)
    assert files.logs(RANK) == {received.channel: received.log for received in snapshot.inputs if received.log}
    assert files.rounds(RANK) == snapshot.rounds
    outline = described[RANK].outline
    assert outline.logs == {received.channel: len(received.log) for received in snapshot.inputs if received.log}
    assert outline.rounds is not None and outline.rounds.in_a_round
    assert outline.operators["rank"].has_whole and not outline.operators["rank"].whole_can_move


def test_what_a_manifest_outlines_is_what_the_snapshots_say(tmp_path: Path):
    store, snapshots = LocalStore(str(tmp_path), "job"), snapshots_of(1)
    cut = Cut(Epoch(1), Attempt(1), "abc", "aligned", False, snapshots, {"rank": 1})
    for task, outline in outline_of(cut).tasks.items():
        assert written(store, snapshots[task])[task].outline == outline


def test_files_that_hold_something_else_than_the_manifest_says_are_refused(tmp_path: Path):
    store = LocalStore(str(tmp_path), "job")
    snapshot = rank(1)
    described = written(store, snapshot)[RANK]
    forged = replace(described, rounds=None, channels=())
    files = store.files_of({RANK: forged})
    for read in (files.logs, files.rounds):
        with pytest.raises(SnapshotCorruptError, match="tells something else of task rank/0"):
            read(RANK)
