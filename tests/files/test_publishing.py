"""Published output is never replaced, and never missed when a consumer has taken it away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect
from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.file_formats import CSV
from backedge.engine.io.files.services import FileServices
from backedge.graphs.ids import Attempt
from tests.files.disks import Crash, CrashingDisk
from tests.files.opened import (
    AT_ONCE,
    RUN,
    at_once,
    claim,
    everything,
    place,
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

NOTES = Path("_staging", "job", "out", "published")


def prepared(out: Path, name: str, *, value: int = 1, **more: Any) -> Any:
    """A writer that has prepared a transaction of one record."""
    opened = writer(at_once(out), opened=services(**more))
    stage(opened, [{"n": value}], name)
    return opened


def take_away(out: Path) -> list[str]:
    """A consumer moves what it finds to a place of its own; says what that holds by now."""
    taken = out.parent / "taken"
    taken.mkdir(exist_ok=True)
    for name in visible(out):
        (out / name).rename(taken / name)
    return visible(taken)


def published(out: Path) -> Any:
    """The same, and committed it."""
    opened = prepared(out, transaction(1))
    opened.commit(transaction(1))
    return opened


# -- what a consumer has taken ---------------------------------------------------------------------------------------


def test_a_part_that_was_taken_is_not_published_again_after_a_crash_at_any_step(tmp_path: Path):
    """The consumer takes what is noted, as the documentation says."""
    crashes = 0
    for step in range(40):
        out = tmp_path / str(step) / "out"
        opened = prepared(out, transaction(1), disk=(disk := CrashingDisk()))
        disk.dies_before = len(disk.steps) + step
        try:
            opened.commit(transaction(1))
        except Crash:
            crashes += 1
        taken = take_away(out) if list((out / NOTES).glob("*")) else []
        writer(at_once(out), opened=services(attempt=Attempt(2))).commit(transaction(1))
        assert len(taken) + len(visible(out)) == 1
    assert 4 < crashes < 40


def test_a_note_goes_when_no_cut_lists_its_transaction_and_not_before(tmp_path: Path):
    published(tmp_path)
    operator = sink(at_once(tmp_path))
    services().sweep(operator, swept(noted={transaction(1)}))
    assert (tmp_path / NOTES / transaction(1)).exists()
    services().sweep(operator, swept())
    assert everything(tmp_path) == [f"part-{RUN}.out.0.attempt-1.epoch-1.jsonl"]


def test_a_note_takes_no_room_of_its_own(tmp_path: Path):
    published(tmp_path)
    (part,) = visible(tmp_path)
    assert os.path.samefile(tmp_path / part, tmp_path / NOTES / transaction(1))


# -- never in place of something -------------------------------------------------------------------------------------


def test_parts_of_two_runs_have_different_names(tmp_path: Path):
    """As two jobs that write to one folder would: by the same sink, attempt and epoch."""
    for run, value in (("aaaa", 1), ("bbbb", 2)):
        job = FileServices(f"job {run}", None, lambda sink, name, records: None, run=run)
        publish(writer(at_once(tmp_path), opened=job), [{"n": value}], transaction(1))
    assert visible(tmp_path) == [f"part-{run}.out.0.attempt-1.epoch-1.jsonl" for run in ("aaaa", "bbbb")]
    assert [(tmp_path / name).read_text() for name in visible(tmp_path)] == ['{"n":1}\n', '{"n":2}\n']


# -- one job a folder ------------------------------------------------------------------------------------------------


def test_a_folder_that_another_job_writes_to_is_refused_by_the_name_of_that_job(tmp_path: Path):
    operators = [
        sink(at_once(tmp_path / "a"), "a"),
        sink(CSV(str(tmp_path / "b"), **AT_ONCE), "b"),
        sink(Collect(), "c"),
    ]
    claim(*operators, job="first", run="aaaa")
    claim(*operators, job="first", run="aaaa")  # as a run does that resumes it
    with pytest.raises(OutputError, match=r"sink 'a'.*/a\b.*'first' \(run aaaa\)"):
        claim(*operators, job="second", run="bbbb")
    with pytest.raises(OutputError, match="job 'first'"):
        claim(*operators, job="first", run="bbbb")


def test_a_run_that_is_refused_one_folder_claims_none(tmp_path: Path):
    mine, theirs = (
        sink(at_once(tmp_path / "mine"), "mine"),
        sink(at_once(tmp_path / "theirs"), "theirs"),
    )
    claim(theirs, job="other", run="aaaa")
    with pytest.raises(OutputError, match="sink 'theirs'"):
        claim(mine, theirs, job="job", run="bbbb")
    claim(mine, job="third", run="cccc")


def test_a_claim_is_given_up_by_the_run_that_has_it_alone(tmp_path: Path):
    operator = sink(at_once(tmp_path))
    claim(operator, job="job", run="aaaa")
    operator.function.release(place(run="bbbb"))
    with pytest.raises(OutputError):
        claim(operator, job="job", run="bbbb")
    operator.function.release(place(run="aaaa"))
    assert everything(tmp_path) == []


# -- late removals ---------------------------------------------------------------------------------------------------


def test_a_superseded_supervisor_that_wakes_late_removes_nothing_of_its_successors(tmp_path: Path):
    """Attempt 2 has claimed and stalls; attempt 3 takes over and prepares; attempt 2 wakes up and sweeps."""
    operator = sink(at_once(tmp_path))
    old = prepared(tmp_path, transaction(1), attempt=Attempt(1), value=1)
    late = swept_by(2)
    new = prepared(tmp_path, transaction(4, attempt=3), attempt=Attempt(3), value=3)
    new.write([{"n": 4}])
    services().sweep(operator, late)
    with pytest.raises(UnknownTransactionError):
        old.commit(transaction(1))
    new.commit(transaction(4, attempt=3))
    services().sweep(operator, late)
    assert (tmp_path / NOTES / transaction(4, attempt=3)).exists()
    assert new.prepare(transaction(5, attempt=3)), "what is open stays, too"


def test_a_sweep_goes_on_where_something_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for epoch in (1, 2, 3):
        prepared(tmp_path, transaction(epoch))
    stuck = tmp_path / "_staging" / "job" / "out" / "prepared" / f"{transaction(2)}.jsonl"
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise OSError(5, "Input/output error")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        services().sweep(sink(at_once(tmp_path)), swept())
    assert list(stuck.parent.iterdir()) == [stuck]
    monkeypatch.setattr(Path, "unlink", unlink)
    services().sweep(sink(at_once(tmp_path)), swept())
    assert everything(tmp_path) == []


def test_folders_stay_while_a_run_goes_on(tmp_path: Path):
    """A task may be about to write: the folder that it has just looked at must not go."""
    published(tmp_path)
    services().sweep(sink(at_once(tmp_path)), swept_by(5))
    folders = {path.name for path in (tmp_path / "_staging" / "job" / "out").iterdir()}
    assert folders == {"open", "prepared", "published", "rolls"}


def test_a_sweep_leaves_alone_what_is_no_transaction(tmp_path: Path):
    prepared(tmp_path, transaction(1))
    odd = tmp_path / "_staging" / "job" / "out" / "prepared" / ".nfs0001"
    odd.write_text("a file server keeps this until it is closed")
    services().sweep(sink(at_once(tmp_path)), swept())
    assert list(odd.parent.iterdir()) == [odd]
