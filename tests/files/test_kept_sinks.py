"""Collect, Print and Call: what is committed is kept and handed over, after a crash too."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from backedge import Call, Collect, Print, Sink
from backedge.engine.io.files.file_errors import DamagedOutputError, UnwritableRecordError
from backedge.engine.io.files.names import path_name
from backedge.engine.on_ray.job_store import open_services
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.task_errors import MisuseError, UserFunctionError
from backedge.recovery.protocol.orders import Sweep
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import StoreError
from tests.files.disks import Crash
from tests.files.opened import (
    JOB,
    RUN,
    SINK,
    Deliveries,
    collected,
    publish,
    services,
    sink,
    stage,
    swept,
    transaction,
    writer,
)


@pytest.fixture(params=["in memory", "in a folder"])
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where what is written waits for its commit."""
    return None if request.param == "in memory" else tmp_path


RECORDS = [1, "text", (2, 3), {"a": {4}}, None]


def _stepped(name: str) -> Any:
    method = getattr(FolderStore, name)

    def stepped(store: CrashingStore, *given: Any) -> Any:
        if next(store._steps, None) is None:
            raise Crash
        return method(store, *given)

    return stepped


class CrashingStore(FolderStore):
    """Dies before the n-th step. What it did before that is done."""

    def __init__(self, folder: Path, dies_before: int) -> None:
        super().__init__(str(folder))
        self.prepare(is_signed=True)
        self._steps = iter(range(dies_before))

    read, write_pieces, make_durable, move, remove = map(
        _stepped, ("read", "write_pieces", "make_durable", "move", "remove")
    )


@pytest.mark.parametrize("description", [Collect(), Print("> ")])
def test_records_are_delivered_at_commit_with_sink_and_transaction(staging: Path | None, description: Sink[Any]):
    delivered = Deliveries()
    opened = writer(description, opened=services(staging, delivered))
    opened.write(RECORDS[:2])
    stage(opened, RECORDS[2:], transaction(1))
    assert opened.prepare(transaction(2)) is False
    assert delivered.all == []
    opened.commit(transaction(1))
    handed_on = RECORDS if isinstance(description, Collect) else [f"> {record}" for record in RECORDS]
    assert delivered.all == [("out", transaction(1), handed_on)]


def test_what_is_collected_comes_in_the_order_of_epochs_attempts_and_tasks(staging: Path | None):
    opened = services(staging)
    names = [transaction(10), transaction(9), transaction(9, attempt=2), transaction(9, index=1), transaction(2)]
    for number, name in enumerate(names):
        publish(writer(Collect(), opened=opened), [number], name)
    assert collected(opened, "out") == [4, 1, 3, 2, 0]
    assert collected(opened, "other") == []


@pytest.mark.parametrize("description", [Collect(), Print(), Call[Any](print)])
def test_committing_what_nobody_prepared_is_refused(staging: Path | None, description: Sink[Any]):
    opened = writer(description, opened=services(staging))
    with pytest.raises(LookupError, match=r"'out\.0\.attempt-1\.epoch-1'"):
        opened.commit(transaction(1))


def test_what_is_collected_again_is_delivered_again_under_the_same_name(tmp_path: Path):
    delivered = Deliveries()
    publish(writer(Collect(), opened=services(tmp_path, delivered)), [1], transaction(1))
    writer(Collect(), opened=services(tmp_path, delivered)).commit(transaction(1))
    assert delivered.names == [transaction(1)] * 2
    assert collected(services(tmp_path), "out") == [1]


def test_a_call_gets_the_records_of_an_epoch_once_when_nothing_fails(staging: Path | None):
    calls: list[list[int]] = []
    opened = writer(Call(calls.append), opened=services(staging))
    opened.write([1])
    publish(opened, [2], transaction(1))
    opened.commit(transaction(1))
    assert calls == [[1, 2]]


def test_what_was_printed_or_called_takes_no_room(tmp_path: Path):
    opened = services(tmp_path)
    for number, description in enumerate([Print(), Call[Any](len)]):
        publish(
            writer(description, opened=opened, name=f"s{number}"), ["x" * 10_000], transaction(1, name=f"s{number}")
        )
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert sizes == [0, 0]


def test_what_the_function_of_a_call_raises_is_told_with_the_users_frames(staging: Path | None):
    def send(records: list[int]) -> None:
        raise ConnectionError("no route")

    opened = writer(Call(send), opened=services(staging))
    stage(opened, [1, 2], transaction(1))
    with pytest.raises(UserFunctionError) as caught:
        opened.commit(transaction(1))
    said = str(caught.value)
    assert said.startswith(
        "operator 'out' raised ConnectionError: no route in function(records), called with the 2 rec"
    )
    assert 'raise ConnectionError("no route")' in said
    assert "dead_letter" not in said


def test_a_call_that_failed_is_made_again_by_the_next_attempt(tmp_path: Path):
    calls: list[list[int]] = []

    def send(records: list[int]) -> None:
        calls.append(records)
        if len(calls) == 1:
            raise ConnectionError

    opened = writer(Call(send), opened=services(tmp_path))
    stage(opened, [1], transaction(1))
    with pytest.raises(UserFunctionError):
        opened.commit(transaction(1))
    writer(Call(send), opened=services(tmp_path)).commit(transaction(1))
    writer(Call(send), opened=services(tmp_path)).commit(transaction(1))
    assert calls == [[1], [1]]


@pytest.mark.parametrize("kind", ["collect", "print", "call"])
def test_a_crash_at_any_step_hands_over_every_record_at_least_once(tmp_path: Path, kind: str):
    survived = 0
    for step in range(30):
        staging = tmp_path / str(step)
        delivered = Deliveries()
        calls: list[int] = []
        description: Sink[Any] = {"collect": Collect(), "print": Print(), "call": Call(calls.extend)}[kind]
        prepared: list[str] = []
        try:
            opened = writer(description, opened=services(CrashingStore(staging, step), delivered))
            for epoch in (1, 2):
                stage(opened, [epoch], transaction(epoch))
                prepared.append(transaction(epoch))
            for name in prepared:
                opened.commit(name)
            survived += 1
        except Crash:
            pass
        later = services(staging, delivered)
        later.sweep(sink(description), swept(prepared))
        again = writer(description, opened=later)
        for name in prepared:
            again.commit(name)
        if kind == "collect":
            assert collected(later, "out") == [1, 2][: len(prepared)]
        seen = set(calls) if kind == "call" else {int(n) for _, _, records in delivered.all for n in records}
        assert seen == {1, 2} & set(range(1, len(prepared) + 1))
    assert 10 < survived < 25


def test_rolling_back_drops_what_is_prepared_and_not_listed_of_this_sink_alone(staging: Path | None):
    opened = services(staging)
    writers = {name: writer(Collect(), opened=opened, name=name) for name in "ab"}
    for name, prepared in writers.items():
        for epoch in (1, 2, 3):
            stage(prepared, [epoch], transaction(epoch, name=name))
        prepared.commit(transaction(1, name=name))
    opened.sweep(sink(Collect(), "a"), swept({transaction(2, name="a")}))
    for name in "ab":
        writers[name].commit(transaction(2, name=name))
    with pytest.raises(LookupError):
        writers["a"].commit(transaction(3, name="a"))
    writers["b"].commit(transaction(3, name="b"))
    assert (collected(opened, "a"), collected(opened, "b")) == ([1, 2], [1, 2, 3])


def test_a_record_changed_after_it_was_written_is_delivered_as_it_was(staging: Path | None):
    delivered, record = Deliveries(), {"n": 1}
    opened = writer(Collect(), opened=services(staging, delivered))
    opened.write([record])
    record["n"] = 2
    opened.prepare(transaction(1))
    opened.commit(transaction(1))
    assert delivered.all[0][2] == [{"n": 1}]


def test_a_record_that_does_not_pickle_is_told_with_sink_and_record(tmp_path: Path):
    opened = writer(Collect(), opened=services(tmp_path))
    with pytest.raises(UnwritableRecordError, match=r"(?s)sink 'out'.* pickle\b.*record: \[1, <"):
        opened.write([[0], [1, threading.Lock()]])


class Planted:
    """Pickles as a call that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.mark,)


def file_of(folder: Path, name: str) -> Path:
    return folder / SINK / "committed" / name


@pytest.mark.parametrize("key", [b"", b"key"])
@pytest.mark.parametrize("damage", ["torn", "flipped", "planted", "emptied"])
def test_nothing_is_decoded_that_is_not_what_was_written(tmp_path: Path, damage: str, key: bytes):
    opened, mark = services(tmp_path, key=key), tmp_path / "mark"
    publish(writer(Collect(), opened=opened), [1, 2, 3], transaction(1))
    path = file_of(tmp_path, transaction(1))
    data = bytearray(path.read_bytes())
    if damage == "torn":
        del data[-1]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "planted":
        data += pickle.dumps(Planted(mark)) * 10
    else:
        data.clear()
    path.write_bytes(data)
    with pytest.raises(DamagedOutputError, match=transaction(1)):
        collected(opened)
    assert not mark.exists()


@pytest.mark.parametrize("forger", [b"", b"another key"])
def test_nothing_is_decoded_that_another_key_has_sealed(tmp_path: Path, forger: bytes):
    mark = tmp_path / "mark"
    publish(writer(Collect(), opened=services(tmp_path, key=forger)), [Planted(mark)], transaction(1))
    mark.unlink()  # a writer reads back what it has pickled
    with pytest.raises(DamagedOutputError, match="another key"):
        collected(services(tmp_path, key=b"key"))
    assert not mark.exists()


def test_batches_are_neither_repeated_nor_left_out_nor_moved_without_the_key(tmp_path: Path):
    opened = services(tmp_path, key=b"key")
    collecting = writer(Collect(), opened=opened)
    for epoch, batches in enumerate((["paid 5", "paid 7"], ["paid 9"]), 1):
        for record in batches[:-1]:
            collecting.write([record])
        publish(collecting, batches[-1:], transaction(epoch))
    first, second = (file_of(tmp_path, transaction(epoch)) for epoch in (1, 2))
    data, other = first.read_bytes(), second.read_bytes()
    batch = data[32 : 32 + 8 + int.from_bytes(data[32:40], "little")]
    forged = {
        "repeated": data + batch,
        "left out": data[:32] + data[32 + len(batch) :],
        "exchanged": data[:32] + data[32 + len(batch) :] + batch,
        "of another transaction": data + other[32:],
        "another transaction": other,
        "a length beyond the end": data[:32] + b"\xff" * 8 + data[40:],
    }
    for what, content in forged.items():
        first.write_bytes(content)
        with pytest.raises(DamagedOutputError, match=transaction(1)):
            pytest.fail(f"{what}: {collected(services(tmp_path, key=b'key'))}")
    first.write_bytes(data)
    assert collected(services(tmp_path, key=b"key")) == ["paid 5", "paid 7", "paid 9"]
    (second.parent / transaction(3)).write_bytes(other)
    with pytest.raises(DamagedOutputError, match=transaction(3)):
        collected(services(tmp_path, key=b"key"))


def test_a_pipe_or_a_link_among_the_output_is_neither_waited_for_nor_followed(tmp_path: Path):
    opened = services(tmp_path, key=b"key")
    collecting = writer(Collect(), opened=opened)
    publish(collecting, [1], transaction(1))
    path = file_of(tmp_path, transaction(1))
    path.rename(elsewhere := tmp_path / "elsewhere")
    os.mkfifo(path)
    with pytest.raises(StoreError, match="regular"):
        collected(opened)
    path.unlink()
    path.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="link"):
        collected(opened)
    prepared = path.parents[1] / "prepared"
    shutil.rmtree(prepared, ignore_errors=True)
    (outside := tmp_path / "outside").mkdir()
    prepared.symlink_to(outside)
    collecting.write([2])
    with pytest.raises(StoreError, match="link"):
        collecting.prepare(transaction(2))
    assert not list(outside.iterdir())


def test_output_in_a_folder_that_others_may_write_to_is_not_read_without_a_key(tmp_path: Path):
    """By the same rule as cuts, and at each time that it is opened."""
    options = TaskOptions(job=JOB, root=str(tmp_path), run=RUN)
    opened = open_services(options, lambda sink, name, records: None, Attempt(1))
    publish(writer(Collect(), opened=opened), [1], transaction(1))
    assert collected(opened) == [1]
    (tmp_path / JOB).chmod(0o777)
    with pytest.raises(StoreError, match="chmod go-w"):
        collected(opened)


def test_what_an_interrupted_write_has_left_is_no_output_and_goes_at_the_end(tmp_path: Path):
    opened = services(tmp_path)
    publish(writer(Collect(), opened=opened), [1], transaction(1))
    for folder in ("prepared", "committed"):
        (tmp_path / SINK / folder).mkdir(exist_ok=True)
        (tmp_path / SINK / folder / ".part-0123").write_bytes(b"half")
    assert collected(opened) == [1]
    opened.sweep(sink(Collect()), swept())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [transaction(1)]


def test_a_file_of_something_else_among_what_is_collected_is_told(tmp_path: Path):
    opened = services(tmp_path)
    publish(writer(Collect(), opened=opened), [1], transaction(1))
    (tmp_path / "out" / "committed" / "other").write_text("x")
    with pytest.raises(DamagedOutputError, match=r"'other'.*transaction"):
        collected(opened, "out")


@pytest.mark.parametrize("description", [Print("> "), Call[Any](lambda records: None)])
def test_notes_of_what_was_delivered_go_when_no_cut_asks_for_them(tmp_path: Path, description: Sink[Any]):
    opened = services(tmp_path)
    delivering = writer(description, opened=opened)
    for epoch in range(1, 6):
        publish(delivering, [epoch], transaction(epoch))
        # Retention keeps one cut.
        opened.sweep(
            sink(description),
            Sweep(Attempt(1), False, frozenset(), Epoch(epoch), frozenset(), frozenset({transaction(epoch)})),
        )
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [path_name(transaction(5))]
    delivering.commit(transaction(5))
    with pytest.raises(LookupError, match=r"\bprepared\b.*\bpublished"):
        delivering.commit(transaction(4))


def test_what_was_collected_is_not_removed_with_the_notes(tmp_path: Path):
    opened = services(tmp_path)
    collecting = writer(Collect(), opened=opened)
    for epoch in range(1, 4):
        publish(collecting, [epoch], transaction(epoch))
        opened.sweep(sink(Collect()), Sweep(Attempt(1), False, frozenset(), None, frozenset(), frozenset()))
    assert collected(opened, "out") == [1, 2, 3]


def test_what_was_collected_is_read_once(tmp_path: Path):
    opened = services(tmp_path)
    collecting, read = writer(Collect(), opened=opened), dict[str, list[Any]]()
    publish(collecting, [1], transaction(1))
    assert collected(opened, "out", read) == [1]
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(b"")
    publish(collecting, [2], transaction(2))
    assert collected(opened, "out", read) == [1, 2], "the first file was not read again"


class SentLater:
    """What an async client returns: it sends nothing unless it is awaited."""

    def __await__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("function", [lambda records: SentLater(), lambda records: (r for r in records)])
def test_a_call_that_returns_what_nobody_awaits_is_refused(staging: Path | None, function: Any):
    opened = writer(Call(function), opened=services(staging))
    with pytest.raises(MisuseError, match=r"'out'.*Call.*map_async"):
        publish(opened, [1], transaction(1))


def test_a_call_with_epoch_gets_the_epoch_that_its_records_were_prepared_for(tmp_path: Path):
    calls: list[tuple[list[int], int]] = []
    opened = writer(Call(lambda records, epoch: calls.append((records, epoch)), True), opened=services(tmp_path))
    publish(opened, [1, 2], transaction(3))
    publish(opened, [4], transaction(7))
    assert calls == [([1, 2], 3), ([4], 7)]


def test_a_sweep_that_is_carried_out_late_leaves_the_notes_of_what_was_published_since(tmp_path: Path):
    calls: list[list[int]] = []
    description = Call(calls.append)
    opened = services(tmp_path)
    delivering = writer(description, opened=opened)
    for epoch in (4, 5, 0):  # a task that ends prepares for epoch 0
        publish(delivering, [epoch], transaction(epoch))
    opened.sweep(sink(description), Sweep(Attempt(1), False, frozenset(), Epoch(4), frozenset(), frozenset()))
    for epoch in (5, 0):  # cut 6 lists them, and is restored
        delivering.commit(transaction(epoch))
    assert calls == [[4], [5], [0]]
    with pytest.raises(LookupError):
        delivering.commit(transaction(4))
