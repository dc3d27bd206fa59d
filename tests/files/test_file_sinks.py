"""File sinks are exactly once: visible is what was committed, whole, whatever dies in between."""

from __future__ import annotations

import os
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.io.files.file_errors import OutputError, UnfinishedOutputError, UnknownTransactionError
from backedge.engine.io.files.services import FileServices
from backedge.engine.operators.services import commit_all
from backedge.graphs.ids import Attempt, TaskId
from tests.files.disks import Crash, CrashingDisk, FullDisk, LossyDisk
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

ROLLED: dict[str, Any] = {"roll_bytes": 150, "roll_s": None}
"""Two or three transactions go into a file."""


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_published_by_commit_alone_and_once(tmp_path: Path, kind: Any):
    out = tmp_path / "parent" / "out"
    opened = writer(at_once(out, kind))
    opened.write(batch(1, 2))
    assert visible(out) == []
    assert opened.prepare(transaction(1))
    opened.write(batch(3))
    assert visible(out) == []
    opened.commit(transaction(1))
    opened.commit(transaction(1))
    assert numbers(out, kind) == [1, 2]
    assert opened.prepare(transaction(2))
    opened.commit(transaction(2))
    assert numbers(out, kind) == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_preparing_nothing_makes_no_transaction_and_no_file(tmp_path: Path, kind: Any):
    opened = writer(at_once(tmp_path, kind))
    assert opened.prepare(transaction(1)) is False
    opened.write([])
    assert opened.prepare(transaction(2)) is False
    assert everything(tmp_path) == []


def test_preparing_again_changes_nothing(tmp_path: Path):
    opened = writer(at_once(tmp_path))
    stage(opened, batch(1), transaction(1))
    publish(opened, batch(2), transaction(1))
    assert numbers(tmp_path) == [1]
    assert opened.prepare(transaction(2))
    assert writer(at_once(tmp_path)).prepare(transaction(2))


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


@pytest.mark.parametrize("kind", KINDS)
def test_rolling_back_keeps_what_the_cut_lists_and_what_is_visible(tmp_path: Path, kind: Any):
    opened = writer(at_once(tmp_path, kind))
    for epoch in (1, 2, 3):
        stage(opened, batch(epoch), transaction(epoch))
    opened.commit(transaction(1))
    opened.write(batch(4))
    services().sweep(sink(at_once(tmp_path, kind)), swept({transaction(1), transaction(2)}))
    later = writer(at_once(tmp_path, kind))
    later.commit(transaction(2))
    with pytest.raises(LookupError):
        later.commit(transaction(3))
    assert numbers(tmp_path, kind) == [1, 2]


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


def test_what_a_task_of_a_dead_attempt_still_prepares_is_listed_by_no_cut_and_removed_at_the_end(tmp_path: Path):
    dead = writer(at_once(tmp_path), index=1)
    dead.write(batch(1))
    operator = sink(at_once(tmp_path))
    services().sweep(operator, swept())
    with pytest.raises(OSError, match="No such file"):
        dead.prepare(transaction(1, index=1))
    late = writer(at_once(tmp_path), index=1)
    stage(late, batch(2), transaction(2, index=1))
    alive = writer(at_once(tmp_path))
    publish(alive, batch(3), transaction(1, attempt=2))
    services().sweep(operator, swept())
    assert everything(tmp_path) == ["part-5f3a.out.0.attempt-2.epoch-1.jsonl"]
    assert numbers(tmp_path) == [3]


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
@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize(
    "rolled", [AT_ONCE, {"roll_bytes": 1, "roll_s": None}, {"roll_bytes": 1 << 20, "roll_s": None}]
)
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, kind: Any, power_fails: bool, rolled: dict[str, Any]
):
    for step in count():
        out = tmp_path / str(step)
        disk = LossyDisk(dies_before=step)
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
        if power_fails:
            disk.lose_power(random.Random(step))
        if step % 2:
            services().sweep(sink(kind(str(out), **rolled)), swept(prepared))
        again = writer(kind(str(out), **rolled), opened=services(attempt=Attempt(2)))
        commit_all(again, prepared)
        again.close()
        assert numbers(out, kind) == [10, 11, 20, 21][: 2 * len(prepared)]
        if survived:  # there is no later step
            break
    assert step > 10


@pytest.mark.parametrize("kind", FEWER_FAST)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rolled", [AT_ONCE, ROLLED])
def test_whatever_happens_visible_is_what_was_committed_once(
    tmp_path: Path, kind: Any, seed: int, rolled: dict[str, Any]
):
    """Random writes, prepares, commits, crashes, power failures and roll-backs, against a model of two dicts."""
    chance = random.Random(seed)
    model = _Model(kind(str(tmp_path), **rolled))
    for _ in range(120):
        model.step(chance)
    model.restart(chance)
    commit_all(model.opened, [*model.committed, *model.prepared])
    model.opened.close()
    expected = [n for numbers in (model.prepared | model.committed).values() for n in numbers]
    assert sorted(numbers(tmp_path, kind)) == sorted(expected)
    assert model.crashes > 1, "more than the restart above"
    assert expected


class _Model:
    """A writer, and what the cuts of its run list: what is prepared was told so, what is committed was asked for."""

    def __init__(self, described: Any) -> None:
        self.operator = sink(described)
        self.prepared: dict[str, list[int]] = {}
        self.committed: dict[str, list[int]] = {}
        self.written: list[int] = []
        self.next = 0
        self.attempt = 0
        self.crashes = -1
        self.restart(random.Random(0))

    def restart(self, chance: random.Random) -> None:
        """Another attempt: it commits what is to be committed, and drops some of the rest."""
        self.crashes += 1
        self.attempt += 1
        self.written = []
        self.disk = LossyDisk()
        object.__setattr__(self.operator.function, "disk", self.disk)
        opened = services(attempt=Attempt(self.attempt))
        if chance.random() < 0.5:
            for name in list(self.prepared):
                if chance.random() < 0.3:
                    del self.prepared[name]
            opened.sweep(self.operator, swept(self.prepared.keys() | self.committed.keys()))
        self.opened: Any = opened.writer(self.operator, TaskId("out", 0))
        commit_all(self.opened, list(self.committed))

    def step(self, chance: random.Random) -> None:
        self.disk.dies_before = len(self.disk.steps) + chance.randrange(12) if chance.random() < 0.3 else None
        try:
            chance.choice([self.write, self.write, self.prepare, self.commit])(chance)
        except Crash:
            if chance.random() < 0.5:
                self.disk.lose_power(chance)
            self.restart(chance)

    def write(self, chance: random.Random) -> None:
        values = list(range(self.next, self.next + chance.randrange(4)))
        self.next += len(values)
        self.opened.write(batch(*values))
        self.written += values

    def prepare(self, chance: random.Random) -> None:
        name = transaction(self.next, self.attempt)
        if name in self.prepared or name in self.committed:
            return
        assert self.opened.prepare(name) is bool(self.written)
        if self.written:
            self.prepared[name] = self.written
            self.written = []

    def commit(self, chance: random.Random) -> None:
        for name in list(self.prepared)[: chance.randrange(3)]:
            # The cut that lists it is complete before anybody commits it.
            self.committed[name] = self.prepared.pop(name)
            self.opened.commit(name)


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
