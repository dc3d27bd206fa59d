"""The journal of a task: when pieces are written, what a failure costs, and when pieces are removed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.batches.batch import Batch
from backedge.engine.task.kept_inputs import PIECE_BYTES, Journal, entries_in
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.input_pieces import NO_CUT, InputPieces, PieceId
from tests.stores.snapshots import append, begin, complete

TASK = TaskId("rank", 0)
FLOW = "0" * 64


class Clock:
    """Seconds that a test lets pass."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    return CutStore(str(tmp_path), "job")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def journal_of(store: CutStore, clock: Clock, attempt: int = 1, restored: Epoch = NO_CUT) -> Journal:
    return Journal(TASK, Attempt(attempt), restored, store.inputs, FLOW, clock)


def call(journal: Journal, *records: Any) -> None:
    journal.begin("process", ("in", Batch(list(records)), 0))
    journal.end([])


def kinds(store: CutStore, epoch: int = 0, attempt: int = 1) -> list[str]:
    return [entry[0] for entry in entries_in(store.inputs, TASK, Attempt(attempt), Epoch(epoch))]


def test_a_killed_process_leaves_all_but_the_last_second_and_a_large_batch_is_written_at_once(
    store: CutStore, clock: Clock
):
    journal = journal_of(store, clock)
    call(journal, "a")
    assert kinds(store) == []
    clock.now_s = 1.0
    call(journal, "b")
    call(journal, "c")
    assert kinds(store) == ["ran", "ran"]
    call(journal, b"x" * PIECE_BYTES)
    assert kinds(store) == ["ran"] * 4


def test_a_replay_goes_on_past_the_captures_of_the_attempt_and_says_where_it_ends(store: CutStore, clock: Clock):
    journal = journal_of(store, clock)
    call(journal, "a")
    journal.captured(Epoch(3))
    call(journal, "b")
    journal.close()
    assert kinds(store) == ["ran", "cut", "ran", "closed"]
    assert kinds(store, 3) == ["ran", "closed"]


def test_a_call_in_which_the_task_was_closed_has_no_outcome(store: CutStore, clock: Clock):
    journal = journal_of(store, clock)
    journal.begin("process", ("in", Batch(["a"]), 0))
    journal.close()
    assert [entry[-1] for entry in entries_in(store.inputs, TASK, Attempt(1), NO_CUT)] == [None, "closed"]


def test_what_does_not_pickle_ends_the_journal_until_the_next_capture_and_fails_nothing(
    store: CutStore, clock: Clock, capsys: pytest.CaptureFixture[str]
):
    journal = journal_of(store, clock)
    call(journal, "a")
    call(journal, lambda: None)
    call(journal, "b")
    journal.captured(Epoch(3))
    call(journal, "c")
    journal.close()
    assert kinds(store) == ["ran", "broken"]
    assert kinds(store, 3) == ["ran", "closed"]
    assert "inputs of task rank/0 are not kept until its next cut" in capsys.readouterr().err


def test_a_full_disk_ends_the_journal_until_the_next_capture(
    store: CutStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    journal = journal_of(store, clock)
    with monkeypatch.context() as patch:
        patch.setattr(InputPieces, "write", full_disk)
        clock.now_s = 1.0
        call(journal, "a")
    call(journal, "b")
    journal.captured(Epoch(3))
    call(journal, "c")
    journal.close()
    assert kinds(store) == []
    assert kinds(store, 3) == ["ran", "closed"]
    assert "No space left" in capsys.readouterr().err


def full_disk(pieces: InputPieces, id: PieceId, flow: str, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# -- removal -------------------------------------------------------------------------------------------------------


def keep(store: CutStore, clock: Clock, attempt: int, *epochs: int) -> None:
    """Keep something after each of these epochs; the first one was restored, or is 0."""
    journal = journal_of(store, clock, attempt, Epoch(epochs[0]))
    for epoch in epochs[1:]:
        journal.captured(Epoch(epoch))
    journal.close()


def kept(store: CutStore) -> list[str]:
    return sorted(str(path.relative_to(store.path)) for path in Path(store.path).rglob("*.piece"))


def test_inputs_are_removed_with_the_cut_that_they_follow(store: CutStore, clock: Clock):
    begin(store)
    for epoch in (1, 2, 4):
        complete(store, epoch)
    keep(store, clock, 1, 0, 1, 2, 3, 4)  # epoch 3 was aborted
    begin(store, 2, restored=2)
    keep(store, clock, 2, 2)
    store.drop(Epoch(1))
    assert kept(store) == [
        f"inputs/epoch={epoch}/attempt={attempt}/rank.0-1.piece" for epoch, attempt in ((2, 1), (2, 2), (3, 1), (4, 1))
    ]
    store.drop(Epoch(2))
    assert kept(store) == ["inputs/epoch=4/attempt=1/rank.0-1.piece"]


def test_inputs_after_an_epoch_of_the_same_number_that_was_never_complete_are_not_those_after_the_cut(
    store: CutStore, clock: Clock
):
    begin(store)
    keep(store, clock, 1, 0, 2)
    begin(store, 2)
    complete(store, 2, attempt=2)
    keep(store, clock, 2, 0, 2)
    assert [piece.id.attempt for piece in store.inputs_after(Epoch(2))] == [2]
    assert [piece.id.attempt for piece in store.inputs_after(NO_CUT)] == [2, 1]


def test_inputs_of_another_pipeline_stay(store: CutStore, clock: Clock):
    begin(store)
    append(store, AttemptStart(Attempt(2), None, pipeline="prices"))
    complete(store, 1)
    keep(store, clock, 1, 0, 1)
    keep(store, clock, 2, 0)
    store.drop(Epoch(1))
    assert kept(store) == ["inputs/epoch=0/attempt=2/rank.0-1.piece"]
