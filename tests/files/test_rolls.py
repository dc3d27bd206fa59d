"""Files of several cuts: exactly once like those of one cut, in as many files as the limits ask for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import Attempt
from tests.files.disks import Crash, CrashingDisk, FailingDisk, WatchedDisk
from tests.files.opened import (
    AT_ONCE,
    BIG,
    FEWER_FAST,
    KINDS,
    RUN,
    Clock,
    batch,
    everything,
    files,
    finish,
    numbers,
    publish,
    services,
    stage,
    sweep,
    swept,
    swept_by,
    transaction,
    visible,
    writer,
)


def write(opened: Any, *epochs: int, attempt: int = 1, **columns: Any) -> None:
    """A transaction of one record for each epoch, committed."""
    for epoch in epochs:
        publish(opened, [{"n": epoch, **columns}], transaction(epoch, attempt))


def rolls_in(folder: Path) -> list[Path]:
    return list(folder.glob("_staging/job/out/*/attempt-*.*-*/"))


# -- when a file is published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_transactions_of_several_cuts_become_one_file_in_their_order(tmp_path: Path, kind: Any):
    opened = files(tmp_path, kind=kind)
    write(opened, 3, 1, 2)
    assert visible(tmp_path) == []
    opened.close()
    assert visible(tmp_path) == [f"part-{RUN}.out.0.attempt-1.epoch-3{kind.ending}"]
    assert numbers(tmp_path, kind) == [3, 1, 2]


def test_a_file_is_published_when_it_is_large_enough(tmp_path: Path):
    opened = writer(JsonLines(str(tmp_path), roll_bytes=24, roll_s=None))
    write(opened, *range(9))  # lines of 8 bytes
    assert [len((tmp_path / name).read_text().splitlines()) for name in visible(tmp_path)] == [3, 3, 3]


def test_a_file_is_published_when_its_first_record_has_waited_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr("backedge.engine.io.files.writers.monotonic", clock)
    opened = writer(JsonLines(str(tmp_path), roll_bytes=None, roll_s=60))
    clock.now_s = 100
    write(opened, 1)
    clock.now_s = 159
    write(opened, 2)
    assert visible(tmp_path) == []
    clock.now_s = 160
    assert not opened.prepare(transaction(3)), "a cut without new records is enough"
    assert numbers(tmp_path) == [1, 2]
    write(opened, 4)
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("limits", [{"roll_bytes": 0}, {"roll_bytes": 1.5}, {"roll_s": 0}, {"roll_s": float("nan")}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]):
    with pytest.raises(BadOptionError, match=next(iter(limits))):
        JsonLines("out", **limits)


# -- what a file holds -----------------------------------------------------------------------------------------------


def test_a_csv_file_has_one_header_even_one_with_line_ends(tmp_path: Path):
    opened = files(tmp_path, 1, CSV, BIG)
    write(opened, 1, 2, **{'a "long"\nname': "x"})
    opened.close()
    (name,) = visible(tmp_path)
    assert (tmp_path / name).read_text() == 'n,"a ""long""\nname"\n1,x\n2,x\n'


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_records_with_other_columns_go_into_another_file(tmp_path: Path, kind: Any):
    opened = files(tmp_path, kind=kind)
    write(opened, 1, 2)
    write(opened, 3, more="x")
    write(opened, 4)
    opened.close()
    assert [name.split(".epoch-")[1] for name in visible(tmp_path)] == [f"{n}{kind.ending}" for n in (1, 3, 4)]


def test_the_rows_of_a_parquet_file_share_a_row_group(tmp_path: Path):
    opened = files(tmp_path, 1, Parquet, BIG)
    write(opened, *range(20))
    opened.close()
    (name,) = visible(tmp_path)
    assert pq.ParquetFile(tmp_path / name).num_row_groups == 1


# -- who publishes ---------------------------------------------------------------------------------------------------


def test_the_next_attempt_publishes_what_a_task_that_died_has_left(tmp_path: Path):
    write(files(tmp_path), 1, 2)
    assert visible(tmp_path) == []
    later = writer(JsonLines(str(tmp_path), **BIG), index=5, opened=services(attempt=Attempt(2)))
    assert numbers(tmp_path) == [1, 2] and not rolls_in(tmp_path)
    for epoch in (1, 2):
        later.commit(transaction(epoch))
    later.close()
    assert numbers(tmp_path) == [1, 2]


def test_the_end_of_a_run_publishes_what_is_left_and_removes_the_staging(tmp_path: Path):
    write(files(tmp_path), 1, 2)
    sweep(tmp_path, swept())
    assert numbers(tmp_path) == [1, 2]
    assert everything(tmp_path) == visible(tmp_path)


def test_a_removal_during_the_run_leaves_rolls_alone(tmp_path: Path):
    opened = files(tmp_path)
    write(opened, 1)
    sweep(tmp_path, swept_by(9))
    write(opened, 2)
    opened.close()
    assert numbers(tmp_path) == [1, 2]


def test_output_that_cannot_be_published_at_the_end_fails_the_run_and_says_where_it_is(tmp_path: Path):
    write(files(tmp_path), 1, 2)
    (roll,) = rolls_in(tmp_path)
    for part in roll.iterdir():
        part.unlink()
        part.mkdir()
    with pytest.raises(OutputError, match=r"'out'.*_staging/job/out.*resume"):
        sweep(tmp_path, swept())


def test_a_file_that_was_linked_by_an_attempt_that_did_not_roll_is_taken_for_done(tmp_path: Path):
    first = files(tmp_path, limits=AT_ONCE, disk=(disk := CrashingDisk()))
    stage(first, batch(1), transaction(1))
    link = disk.link

    def link_and_die(source: Path, target: Path) -> None:
        link(source, target)
        raise Crash

    disk.link = link_and_die  # type: ignore[method-assign]
    with pytest.raises(Crash):
        first.commit(transaction(1))
    later = files(tmp_path, 2)
    later.commit(transaction(1))
    write(later, 2, attempt=2)
    later.close()
    assert numbers(tmp_path) == [1, 2]


# -- another format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [BIG, AT_ONCE], ids=["rolls", "at once"])
@pytest.mark.parametrize(("former", "now"), [(JsonLines, Parquet), (Parquet, CSV), (CSV, JsonLines)])
def test_what_waits_in_a_former_format_is_published_in_that_format(
    tmp_path: Path, former: Any, now: Any, limits: dict[str, Any]
):
    """Two parts in a roll, and one that is only prepared."""
    old = files(tmp_path, 1, former, BIG)
    write(old, 1, 2)
    stage(old, [{"n": 3}], transaction(3))
    new = files(tmp_path, 2, now, limits)
    for epoch in (1, 2, 3):
        new.commit(transaction(epoch))
    write(new, 4, attempt=2)
    new.close()
    parts = [f"part-{RUN}.{transaction(n)}{former.ending}" for n in (1, 2, 3)]
    assert visible(tmp_path) == [*parts, f"part-{RUN}.{transaction(4, 2)}{now.ending}"]
    assert numbers(tmp_path, former) == [1, 2, 3] and numbers(tmp_path, now) == [4]
    sweep(tmp_path, swept(), now, limits)
    assert everything(tmp_path) == visible(tmp_path)


def test_a_former_format_that_was_joined_but_not_published_is_published_once(tmp_path: Path):
    for step in range(30):
        out = tmp_path / str(step)
        old = files(out, disk=(disk := CrashingDisk()))
        write(old, 1, 2, 3)
        disk.dies_before = len(disk.steps) + step
        with suppress(Crash):
            old.close()
        with suppress(Crash):
            files(out, 2, Parquet, disk=CrashingDisk(dies_before=step // 2))
        finish(out, 3, kind=Parquet)
        assert sorted(numbers(out)) == [1, 2, 3], f"step {step}"
        assert not rolls_in(out)


# -- crashes and consumers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies_again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_a_consumer_has_taken_is_not_published_again_after_a_crash_at_any_step(tmp_path: Path, dies_again: bool):
    """The consumer takes what is noted, as the documentation says; the next attempt may die at any step, too."""
    crashes = 0
    for step in range(60 if dies_again else 30):
        out = tmp_path / str(step) / "out"
        opened = files(out, disk=(disk := CrashingDisk()))
        write(opened, 1, 2, 3)
        disk.dies_before = len(disk.steps) + step % 30
        try:
            opened.close()
        except Crash:
            crashes += 1
        taken = take_noted(out)
        if dies_again:
            with suppress(Crash):
                files(out, 2, disk=CrashingDisk(dies_before=step // 2))
            taken += take_noted(out)
        finish(out, 4)
        assert sorted(taken + numbers(out)) == [1, 2, 3], f"step {step}"
        assert not rolls_in(out)
    assert crashes > 15


def take_noted(out: Path) -> list[int]:
    """Take every visible file that has a note of its name; return its numbers."""
    notes, target = out / "_staging" / "job" / "out" / "published", out.parent / "taken"
    found: list[int] = []
    for name in visible(out):
        if (notes / name.removeprefix(f"part-{RUN}.").removesuffix(".jsonl")).exists():
            target.mkdir(exist_ok=True)
            os.replace(out / name, target / name)
            found += numbers(target)
            (target / name).unlink()
    return found


def test_notes_that_are_forgotten_in_the_middle_do_no_harm(tmp_path: Path):
    """A sweep may remove the notes of a roll before the attempt that takes it over looks."""
    for step in range(30):
        out = tmp_path / str(step)
        opened = files(out, disk=(disk := CrashingDisk()))
        write(opened, 1, 2)
        disk.dies_before = len(disk.steps) + step
        try:
            opened.close()
        except Crash:
            sweep(out, swept_by(2))
        files(out, 2)
        assert numbers(out) == [1, 2], f"step {step}"


@pytest.mark.parametrize("kind", FEWER_FAST)
def test_a_task_that_sleeps_at_any_step_while_others_go_on_neither_loses_nor_doubles_anything(
    tmp_path: Path, kind: Any
):
    """The next attempt, its end, and the end of the run pass by; then the task goes on."""
    slept = 0
    for step in range(60):
        out = tmp_path / str(step)

        def others(out: Path = out) -> None:
            new = files(out, 2, kind)
            staged = {name.partition(".epoch-")[2] for name in everything(out) if "/prepared/" in name}
            for epoch in (int(name.partition(".")[0]) for name in staged):
                new.commit(transaction(epoch))
            write(new, 9, attempt=2)
            new.close()
            sweep(out, swept_by(3, [transaction(n) for n in (1, 2, 3)]), kind)

        disk = WatchedDisk(step, others)
        staged: list[int] = []
        with suppress(OSError, OutputError):  # fenced by what it does not find
            write_noting(files(out, kind=kind, disk=disk), staged)
        slept += disk.has_called
        finish(out, 3, staged, kind)
        assert sorted(numbers(out, kind)) == [*staged, *([9] if disk.has_called else [])], f"step {step}"
        assert not rolls_in(out)
    assert slept > 40


def write_noting(opened: Any, staged: list[int]) -> None:
    """Write transactions 1 to 3, and note each that is prepared."""
    for epoch in (1, 2, 3):
        stage(opened, batch(epoch), transaction(epoch))
        staged.append(epoch)
        opened.commit(transaction(epoch))
    opened.close()


@pytest.mark.parametrize("kind", FEWER_FAST)
def test_a_step_that_finds_no_room_loses_nothing(tmp_path: Path, kind: Any):
    failures = 0
    for step in range(60):
        out = tmp_path / str(step)
        staged: list[int] = []
        try:
            write_noting(files(out, kind=kind, disk=FailingDisk(step)), staged)
        except OSError:
            failures += 1
        finish(out, 2, staged, kind)
        assert sorted(numbers(out, kind)) == staged, f"step {step}"
    assert failures > 40


def test_a_part_whose_move_ends_after_its_roll_was_joined_becomes_a_file_of_its_own(tmp_path: Path):
    """The system looks the folder up, the folder is renamed, and the part arrives in it under its new name."""
    for step in range(30):
        out = tmp_path / str(step)
        opened = files(out)
        write(opened, 1, 2)
        stage(opened, batch(3), transaction(3))
        staging = out / "_staging" / "job" / "out"

        def arrive(staging: Path = staging) -> None:
            for joined in staging.glob("joining/*/joined.*"):
                part = f"{transaction(3)}.jsonl"
                os.replace(staging / "prepared" / part, joined.parent / f"000002.{part}")

        disk = WatchedDisk(step, arrive)
        disk.dies_before = step + 1
        with suppress(Crash):
            files(out, 2, disk=disk)
        finish(out, 3)
        assert sorted(numbers(out)) == [1, 2, 3], f"step {step}"
