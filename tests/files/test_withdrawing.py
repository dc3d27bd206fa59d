"""A run that goes back to a cut and replaces its output removes what was published after it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import DamagedOutputError, OutputError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import CutId, Sweep
from tests.files.disks import Crash, CrashingDisk, FailingDisk
from tests.files.opened import (
    AT_ONCE,
    BIG,
    FEWER_FAST,
    KINDS,
    RUN,
    batch,
    collected,
    everything,
    files,
    publish,
    services,
    sink,
    slow,
    stage,
    transaction,
    visible,
    writer,
)
from tests.files.opened import numbers as numbers_in

RECORDS = Path("_staging", "job", "out", "rolls")


def write(opened: Any, *epochs: int, attempt: int = 1) -> None:
    """A transaction of two records for each epoch, committed."""
    for epoch in epochs:
        publish(opened, batch(epoch, epoch), transaction(epoch, attempt))


def write_all(opened: Any, *epochs: int) -> None:
    """The same, and end."""
    write(opened, *epochs)
    opened.close()


def later(epoch: int, attempt: int = 2, waiting: Iterable[int] = ()) -> LaterOutput:
    """What is later than a cut that lists these transactions."""
    listed = frozenset(map(transaction, waiting))
    return LaterOutput(Attempt(attempt), Epoch(epoch), Attempt(attempt - 1), frozenset(), listed=listed)


def withdraw(description: Any, epoch: int, attempt: int = 2, disk: Any = None, waiting: Iterable[int] = ()) -> None:
    opened = services(disk=disk)
    object.__setattr__(description, "disk", opened.disk)
    opened.withdraw(sink(description), later(epoch, attempt, waiting))


def numbers(folder: Path, kind: Any = JsonLines) -> list[int]:
    found = sorted(numbers_in(folder, kind))
    assert found[::2] == found[1::2], "both records of a transaction or none"
    return found[::2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", [BIG, AT_ONCE], ids=["rolls", "at once"])
def test_what_was_published_after_the_cut_goes_and_the_rest_stays(tmp_path: Path, kind: Any, limits: dict[str, Any]):
    write_all(files(tmp_path, kind=kind, limits=limits), 1, 2, 3, 4)
    write_all(files(tmp_path, kind=kind, limits=limits), 5, 6)
    withdraw(kind(str(tmp_path), **limits), 3)
    assert numbers(tmp_path, kind) == [1, 2, 3]
    firsts = [1] if limits is BIG else [1, 2, 3]
    assert visible(tmp_path) == [f"part-{RUN}.{transaction(n)}{kind.ending}" for n in firsts]
    assert sorted(path.name for path in (tmp_path / RECORDS).iterdir()) == [transaction(n) for n in firsts]


def test_parts_of_one_file_are_told_apart_whatever_their_order(tmp_path: Path):
    write_all(files(tmp_path), 6, 1, 5, 2, 4)
    withdraw(JsonLines(str(tmp_path), **BIG), 2)
    assert numbers(tmp_path) == [1, 2]
    withdraw(JsonLines(str(tmp_path), **BIG), 1, attempt=3)
    assert numbers(tmp_path) == [1]


def test_what_waits_to_be_published_goes_too(tmp_path: Path):
    opened = files(tmp_path)
    write(opened, 1, 2, 3)
    stage(opened, [{"n": 4}, {"n": 4}], transaction(4))
    withdraw(JsonLines(str(tmp_path), **BIG), 2, waiting=[1, 2])
    assert numbers(tmp_path) == [1, 2]
    assert not list(tmp_path.glob("_staging/*/*/prepared/*"))
    opened.close()
    with pytest.raises(OutputError):
        files(tmp_path, 2).commit(transaction(4))
    assert numbers(tmp_path) == [1, 2]


def test_nothing_goes_that_no_record_names(tmp_path: Path):
    opened = files(tmp_path, 1, JsonLines, AT_ONCE)
    write(opened, 1, 2)
    copied = tmp_path / f"part-{RUN}.{transaction(9)}.jsonl"
    copied.write_text('{"n":9}\n{"n":9}\n')
    theirs = tmp_path / "notes.jsonl"
    theirs.write_text('{"n":8}\n{"n":8}\n')
    other = writer(JsonLines(str(tmp_path), **AT_ONCE), name="other")
    publish(other, [{"n": 7}, {"n": 7}], transaction(7, name="other"))
    withdraw(JsonLines(str(tmp_path), **AT_ONCE), 1)
    assert numbers(tmp_path) == [1, 7, 8, 9]


def test_a_file_that_a_consumer_has_taken_does_not_come_back(tmp_path: Path):
    out = tmp_path / "out"
    write_all(files(out), 1, 2)
    (name,) = visible(out)
    (out / name).rename(tmp_path / name)
    withdraw(JsonLines(str(out), **BIG), 1)
    assert visible(out) == []


def test_files_of_a_former_format_are_cut_in_that_format(tmp_path: Path):
    write_all(files(tmp_path, 1, CSV, BIG), 1, 2, 3)
    withdraw(Parquet(str(tmp_path), **BIG), 2)
    assert numbers(tmp_path, CSV) == [1, 2]


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path):
    write_all(files(tmp_path), 1, 2)
    (record,) = (tmp_path / RECORDS).iterdir()
    record.write_text("[[1")
    with pytest.raises(DamagedOutputError, match=record.name):
        withdraw(JsonLines(str(tmp_path), **BIG), 1)
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("kind", FEWER_FAST)
@pytest.mark.parametrize("fault", [CrashingDisk, slow(FailingDisk)])
def test_removing_that_was_broken_off_at_any_step_is_done_again(tmp_path: Path, kind: Any, fault: Any):
    broken_off = 0
    for step in range(40):
        out = tmp_path / str(step)
        write_all(files(out, kind=kind), 1, 2, 3)
        write(files(out, kind=kind), 4)
        for attempt in (2, 3):
            try:
                withdraw(kind(str(out), **BIG), 2, attempt, fault(step if attempt == 2 else step // 2), [1, 2])
            except (Crash, OSError):
                broken_off += 1
                assert not {1, 2} - set(numbers(out, kind)), f"step {step}"
        withdraw(kind(str(out), **BIG), 2 if step % 3 else 1, 4)
        assert numbers(out, kind) == ([1, 2] if step % 3 else [1]), f"step {step}"
        assert not list(out.glob("_staging/job/out/replacing/*"))
    assert broken_off > 30


def test_a_record_stays_as_long_as_a_run_can_go_back_to_before_it(tmp_path: Path):
    write_all(files(tmp_path), 1, 2)
    write(files(tmp_path, 1, JsonLines, AT_ONCE), 3)

    def swept(first: int) -> list[str]:
        cuts = frozenset({CutId(Epoch(first), Attempt(1)), CutId(Epoch(9), Attempt(1))})
        sweep = Sweep(Attempt(2), True, cuts, Epoch(9), frozenset(), frozenset(), settled=Epoch(first))
        services().sweep(sink(JsonLines(str(tmp_path))), sweep)
        return [path.name for path in (tmp_path / RECORDS).glob("*")]

    assert sorted(swept(1)) == [transaction(1), transaction(3)]
    assert swept(2) == [transaction(3)]
    assert swept(3) == []
    assert numbers(tmp_path) == [1, 2, 3] and everything(tmp_path) == visible(tmp_path)


def test_records_are_not_listed_for_each_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There are as many as files, as long as a cut is kept that was taken before all of them."""
    write(files(tmp_path, 1, JsonLines, AT_ONCE), 2, 3)
    listed: list[str] = []
    names = Disk.names

    def noted(disk: Disk, folder: Path) -> list[str]:
        listed.append(folder.name)
        return names(disk, folder)

    monkeypatch.setattr(Disk, "names", noted)
    cuts = frozenset({CutId(Epoch(1), Attempt(1)), CutId(Epoch(9), Attempt(1))})
    for settled, is_listed in ((None, False), (Epoch(1), True)):
        sweep = Sweep(Attempt(2), False, cuts, Epoch(9), frozenset(), frozenset(), settled=settled)
        services().sweep(sink(JsonLines(str(tmp_path))), sweep)
        assert (RECORDS.name in listed) is is_listed
    assert "prepared" in listed


def test_collected_records_of_after_the_cut_go(tmp_path: Path):
    opened = writer(Collect(), opened=services(tmp_path))
    write(opened, 1, 2, 3)
    stage(opened, ["waits"], transaction(4))
    services(tmp_path).withdraw(sink(Collect()), later(2))
    assert [record["n"] for record in collected(services(tmp_path))] == [1, 1, 2, 2]
    with pytest.raises(OutputError):
        opened.commit(transaction(4))
