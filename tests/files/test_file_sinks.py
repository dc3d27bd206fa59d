"""File sinks are exactly once: visible is what was committed, whole, whatever dies in between."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.io.files.file_errors import OutputError, UnfinishedOutputError, UnknownTransactionError
from backedge.engine.io.files.services import FileServices
from backedge.engine.operators.services import commit_all
from backedge.graphs.ids import Attempt, TaskId
from tests.files.disks import Crash, CrashingDisk, FullDisk
from tests.files.opened import (
    AT_ONCE,
    FEWER_FAST,
    KINDS,
    RUN,
    at_once,
    batch,
    everything,
    numbers,
    publish,
    services,
    sink,
    stage,
    swept,
    swept_by,
    transaction,
    visible,
    writer,
)


def test_committing_what_nobody_prepared_is_refused_and_changes_nothing(tmp_path: Path):
    opened = writer(at_once(tmp_path))
    stage(opened, batch(1), transaction(1))
    with pytest.raises(LookupError, match=r"\.epoch-9'.*\.epoch-1\b"):
        opened.commit(transaction(9))
    assert visible(tmp_path) == []
    assert UnknownTransactionError in OutputError.__subclasses__()


def test_what_a_dead_writer_left_open_is_removed_with_its_attempt(tmp_path: Path):
    one = writer(at_once(tmp_path), opened=services(attempt=Attempt(1)))
    two = writer(at_once(tmp_path), opened=services(attempt=Attempt(2)))
    one.write(batch(1))
    two.write(batch(2))
    services().sweep(sink(at_once(tmp_path)), swept_by(2))
    with pytest.raises(OSError, match="No such file"):
        one.prepare(transaction(1))
    assert two.prepare(transaction(1, attempt=2))
    two.commit(transaction(1, attempt=2))
    assert numbers(tmp_path) == [2]


def test_a_closed_writer_leaves_nothing_open(tmp_path: Path):
    opened = writer(at_once(tmp_path))
    opened.write(batch(1))
    opened.close()
    services().sweep(sink(at_once(tmp_path)), swept())
    assert everything(tmp_path) == []


def test_rolling_back_leaves_other_sinks_and_other_jobs_alone(tmp_path: Path):
    path = at_once(tmp_path)
    other_job = FileServices("other", None, lambda sink, name, records: None, run=RUN)
    writers = [
        writer(path, name="a"),
        writer(path, name="b"),
        other_job.writer(sink(path, "a"), TaskId("a", 0)),
    ]
    for number, (opened, name) in enumerate(zip(writers, "aba", strict=True)):
        stage(opened, batch(number), transaction(1, name=name))
    services().sweep(sink(path, "a"), swept())
    with pytest.raises(LookupError):
        writers[0].commit(transaction(1, name="a"))
    writers[1].commit(transaction(1, name="b"))
    writers[2].commit(transaction(1, name="a"))
    assert sorted(numbers(tmp_path)) == [1, 2]


def test_what_a_run_of_that_name_left_prepared_is_not_taken_for_what_is_written_now(tmp_path: Path):
    dead = writer(at_once(tmp_path))
    stage(dead, batch(1), transaction(1))
    opened = writer(at_once(tmp_path))
    publish(opened, batch(2), transaction(1))
    assert numbers(tmp_path) == [2]


@pytest.mark.parametrize("name", ["../out", "a/b", "..", "_x", ".x", "/etc/x", "a\0b", "ü" * 70, "%2e"])
def test_no_name_leads_out_of_the_folder_or_is_hidden(tmp_path: Path, name: str):
    out = tmp_path / "out"
    opened = writer(at_once(out), name=name)
    publish(opened, batch(1), transaction(1, name=name))
    assert os.listdir(tmp_path) == ["out"]
    assert len(visible(out)) == 1
    assert numbers(out) == [1]


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path):
    for name in ("", "x" * 300):
        with pytest.raises(ValueError, match="name"):
            writer(at_once(tmp_path / "out"), name=name)
    assert os.listdir(tmp_path) == []


def test_who_finds_a_note_makes_that_durable_since_the_one_before_may_have_died(tmp_path: Path):
    first = writer(at_once(tmp_path))
    publish(first, batch(1), transaction(1))
    disk = CrashingDisk()
    writer(at_once(tmp_path), opened=services(disk=disk)).commit(transaction(1))
    assert ("sync_folder", tmp_path / "_staging" / "job" / "out" / "published") in disk.steps


@pytest.mark.parametrize("kind", FEWER_FAST)
@pytest.mark.parametrize(
    "rolled", [AT_ONCE, {"roll_bytes": 1, "roll_s": None}, {"roll_bytes": 1 << 20, "roll_s": None}]
)
def test_a_crash_at_any_step_loses_and_doubles_nothing(tmp_path: Path, kind: Any, rolled: dict[str, Any]):
    for step in count():
        out = tmp_path / str(step)
        disk = CrashingDisk(dies_before=step)
        prepared: list[str] = []
        survived = False
        try:
            opened = writer(kind(str(out), **rolled), opened=services(disk=disk))
            for epoch in (1, 2):
                opened.write(batch(10 * epoch))
                stage(opened, batch(10 * epoch + 1), transaction(epoch))
                prepared.append(transaction(epoch))
            for name in prepared:
                opened.commit(name)
            opened.close()
            survived = True
        except Crash:
            assert len(disk.steps) == step
        if step % 2:
            services().sweep(sink(kind(str(out), **rolled)), swept(prepared))
        again = writer(kind(str(out), **rolled), opened=services(attempt=Attempt(2)))
        commit_all(again, prepared)
        again.close()
        assert numbers(out, kind) == [10, 11, 20, 21][: 2 * len(prepared)]
        if survived:  # there is no later step
            break
    assert step > 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_and_what_was_half_written_is_never_published(tmp_path: Path, kind: Any):
    disk = FullDisk(bytes_max=10_000)
    opened = writer(at_once(tmp_path, kind), opened=services(disk=disk))
    stage(opened, batch(1), transaction(1))
    disk.bytes_left = 20
    with pytest.raises(OSError, match=r"'out' .*/_staging/job/out/open/"):
        for _ in range(50):
            stage(opened, batch(2), transaction(2))
    disk.bytes_left = 10_000
    for again in (lambda: opened.write(batch(3)), lambda: opened.prepare(transaction(3))):
        with pytest.raises(UnfinishedOutputError, match=r"failed to write"):
            again()
    later = writer(at_once(tmp_path, kind), opened=services(disk=disk))
    later.commit(transaction(1))
    assert numbers(tmp_path, kind) == [1]
