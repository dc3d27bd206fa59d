"""The rows of a cut and their marker are one commit of a table: it counts once, however it goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from threading import Barrier
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from backedge import (
    BadOptionError,
    DeltaTable,
    FencedError,
    Flow,
    IcebergTable,
    OutputError,
    Range,
    UncommittedOutputError,
)
from backedge.engine.io.lakes import lake_table
from backedge.engine.io.lakes.lake_table import PAUSES_S
from backedge.graphs.expansion import expand
from backedge.testing import check_sink
from tests.databases.sinks_by_hand import Rolls, place_in, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import publish, stage
from tests.lakes.lakes_by_hand import Delta, Iceberg, Lake, around_append, by_hand, lake, records, unmarked

__all__ = ["lake"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        (Delta, range(6)),
        (Iceberg, range(1)),  # a seed takes three seconds: each line of pyiceberg is a step at which a process may die
        pytest.param(Delta, range(6, 100), marks=pytest.mark.long),
        pytest.param(Iceberg, range(1, 12), marks=pytest.mark.long),
    ],
)
def test_each_row_is_in_the_table_once_whatever_happens(
    tmp_path: Path, kind: type[Lake], seeds: range, evidence: Evidence
):
    lakes: dict[str, Lake] = {}

    def new() -> Any:
        folder = tmp_path / str(len(lakes))
        folder.mkdir()
        table = kind(folder).described()
        lakes[table.title] = kind(folder)
        return table

    happened = check_sink(new, lambda table: lakes[table.title].rows(), seeds=seeds)
    if len(seeds) > 1:
        for fault in ("without an answer", "process dies", "process sleeps"):
            evidence.happened(f"a {fault}", sum(times for what, times in happened.items() if fault in what))
    evidence.survived("schedules in which each row was written once", len(seeds))


@pytest.mark.slow
def test_rows_appear_with_the_commit_and_not_before(lake: Lake):
    writer = lake.writer()
    stage(writer, records(1, 2), transaction(1))
    assert lake.rows() == []
    writer.commit(transaction(1))
    assert lake.rows() == records(1, 2)
    writer.write([])
    assert not writer.prepare(transaction(2)), "nothing was written since"


def lose_reply() -> None:
    raise ConnectionError("the reply is lost")


def test_all_transactions_of_a_cut_are_one_commit_in_whatever_order_they_come(lake: Lake):
    writer = lake.writer(wrap=around_append(after=lose_reply))
    names = [transaction(10), transaction(9), transaction(0)]
    for number, name in enumerate(names):
        stage(writer, records(number), name)
    for committed in (names[1:2], names):
        with pytest.raises(ConnectionError):
            writer.commit_together(committed)
    assert lake.ids() == [0, 1, 2] and lake.commits() == 2
    assert not lake.writer(attempt=2).commit_together(names)
    assert lake.ids() == [0, 1, 2] and lake.commits() == 2


def commit_twice(lake: Lake, **changed: Any) -> None:
    """The process dies behind the commit, before it has noted it: the next attempt commits again."""
    first = lake.writer(wrap=around_append(after=lose_reply))
    stage(first, records(1), transaction(1))
    with pytest.raises(ConnectionError):
        first.commit(transaction(1))
    assert lake.ids() == [1], "it was committed exactly when its reply was lost"
    second = lake.writer(attempt=2, **changed)
    second.commit(transaction(1))
    publish(second, records(2), transaction(2, attempt=2))


def test_a_commit_whose_reply_is_lost_counts_once(lake: Lake, evidence: Evidence):
    commit_twice(lake)
    assert lake.commits() == 2
    evidence.happened("replies to a commit that were lost", 1)
    evidence.same(lake.ids(), [1, 2])


def test_without_the_marker_it_would_count_twice(lake: Lake):
    commit_twice(lake, wrap=unmarked)
    assert lake.ids() == [1, 1, 2]


def test_the_marker_is_found_behind_commits_of_other_programs(lake: Lake):
    publish(lake.writer(), records(1), transaction(1))
    for number in (2, 3):
        lake.append(by_hand(number))
    later = lake.writer(attempt=2)
    kept = next(lake.folder.glob("kept/*/committed/*"))
    kept.unlink()
    stage(later, records(1), transaction(1))
    later.commit(transaction(1))
    assert lake.ids() == [1, 2, 3]


def test_the_sinks_of_other_runs_have_markers_of_their_own(lake: Lake):
    for run in ("5f3a", "77aa"):
        table, place = lake.described(), place_in(lake.folder / run, run=run)
        table.validate_output(place, fresh=True)
        publish(table.open_writer(place), records(1), transaction(1))
    assert lake.ids() == [1, 1]


def test_a_commit_that_another_program_is_ahead_of_is_repeated(lake: Lake, evidence: Evidence):
    publish(lake.writer(), records(1), transaction(1))
    ahead = [2, 3]

    def get_ahead() -> None:
        if ahead:
            lake.append(by_hand(ahead.pop()))

    writer = lake.writer(attempt=2, wrap=around_append(before=get_ahead))
    publish(writer, records(4), transaction(2, attempt=2))
    assert not ahead if isinstance(lake, Iceberg) else ahead == [2], "Delta adds to what others have added"
    evidence.happened("commits that another program was ahead of", 1)
    evidence.same(lake.ids(), [1, 3, 4] if ahead else [1, 2, 3, 4])


def test_a_commit_gives_up_if_another_program_is_always_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.io.lakes.lake_table.PAUSES_S", [0.0] * 3)
    lake = Iceberg(tmp_path)
    assert len(PAUSES_S) > 3
    writer = lake.writer(wrap=around_append(before=lambda: lake.append(by_hand(0))))
    stage(writer, records(1), transaction(1))
    with pytest.raises(OSError, match="another program has committed"):
        writer.commit(transaction(1))
    assert lake.ids() == [0, 0, 0]
    later = lake.writer(attempt=2)
    later.commit(transaction(1))
    assert lake.ids() == [0, 0, 0, 1]


def race(lake: Lake) -> None:
    """Two processes have read the table and commit the same transaction at the same time."""
    publish(lake.writer(), records(0), transaction(1))
    other: list[Any] = [lake.writer(attempt=2)]
    slow = lake.writer(wrap=around_append(before=lambda: other and other.pop().commit(transaction(2))))
    stage(slow, records(1), transaction(2))
    slow.commit(transaction(2))
    assert not other


def test_of_two_processes_that_commit_a_transaction_at_the_same_time_one_does(lake: Lake, evidence: Evidence):
    race(lake)
    assert lake.commits() == 2
    evidence.happened("transactions that two processes commit at the same time", 1)
    evidence.same(lake.ids(), [0, 1])


def test_a_table_that_two_attempts_would_create_is_created_once(lake: Lake):
    other: list[Any] = []
    slow = lake.writer(wrap=around_append(before=lambda: other and other.pop().commit(transaction(1))))
    stage(slow, records(1), transaction(1))
    other.append(lake.writer(attempt=2))
    slow.commit(transaction(1))
    assert not other and lake.ids() == [1] and lake.commits() == 1


@pytest.mark.slow
def test_of_two_processes_that_create_a_table_at_the_same_time_one_does(tmp_path: Path):
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        lake, both = Delta(tmp_path / str(number)), Barrier(2)
        writers = [lake.writer(attempt=attempt, wrap=around_append(before=both.wait)) for attempt in (1, 2)]
        stage(writers[0], records(1), transaction(1))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda writer: writer.commit(transaction(1)), writers))
        assert lake.ids() == [1] and lake.commits() == 1


def test_a_writer_of_an_attempt_before_the_last_that_has_committed_is_refused(lake: Lake, evidence: Evidence):
    zombie = lake.writer()
    stage(zombie, records(1), transaction(1))
    publish(lake.writer(attempt=2), records(2), transaction(2, attempt=2))
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        zombie.commit(transaction(1))
    evidence.happened("commits of an earlier attempt that were refused", 1)
    evidence.same(lake.ids(), [2])


def test_what_is_rolled_back_is_never_committed(lake: Lake):
    writer = lake.writer()
    stage(writer, records(1), transaction(1))
    lake.described().roll_back(place_in(lake.folder), Rolls(removes=[transaction(1)]))
    with pytest.raises(LookupError, match="neither prepared"):
        writer.commit(transaction(1))
    assert lake.rows() == []


def test_a_commit_that_fails_for_good_keeps_its_records_and_says_how_to_go_on(tmp_path: Path):
    lake = Delta(tmp_path)
    lake.create(by_hand(1).schema)
    writer = lake.writer()
    stage(writer, records(99), transaction(1))
    deltalake.DeltaTable(lake.path).alter.add_constraint({"small": "id < 10"})
    for _ in range(2):
        with pytest.raises(UncommittedOutputError, match=r"1 records.*resume") as failed:
            writer.commit(transaction(1))
    exec(str(failed.value).split("execute in Python: ")[1].split(" and resume")[0])
    writer.commit(transaction(1))
    publish(writer, records(2), transaction(2))
    assert lake.ids() == [2]


def test_iceberg_says_how_to_go_on_without_records_as_well(tmp_path: Path):
    lake = Iceberg(tmp_path)
    lake.create(by_hand(1).schema)
    writer = lake.writer()
    stage(writer, records(99), transaction(1))
    with lake.described().connected() as catalog, catalog.load_table("shop.rows").update_schema(True) as changed:
        changed.add_column("must", StringType(), required=True, default_value="x")
    with pytest.raises(UncommittedOutputError, match=r"1 records.*resume") as failed:
        writer.commit(transaction(1))
    statement = str(failed.value).split("as `catalog`: ")[1].split(" and resume")[0]
    with lake.described().connected() as catalog:
        exec(statement, {"catalog": catalog})
    writer.commit(transaction(1))
    assert lake.ids() == []


def test_more_text_than_one_array_of_arrow_holds_is_committed(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    def concat_batches(parts: Sequence[Any]) -> Any:
        if pa.string() in parts[0].schema.types:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return former(parts)

    former = pa.concat_batches
    writer = lake.writer()
    for number in (1, 2):
        writer.write(records(number))
    writer.prepare(transaction(1))
    monkeypatch.setattr(pa, "concat_batches", concat_batches)
    monkeypatch.setattr(lake_table, "BYTES_MAX", 1)
    monkeypatch.setattr(lake_table, "ROWS_MAX", 1)
    writer.commit(transaction(1))
    assert sorted(lake.rows(), key=itemgetter("id")) == records(1, 2)


class DeltaAtUri(Delta):
    def described(self, **options: Any) -> DeltaTable:
        return DeltaTable(Path(self.path).as_uri(), **options)


def test_files_of_a_commit_are_synced_before_it_is_noted(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    check_synced(lake, monkeypatch)


def test_files_of_a_folder_that_a_uri_names_are_synced_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_synced(DeltaAtUri(tmp_path / "of May"), monkeypatch)


def check_synced(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    writer = lake.writer()
    stage(writer, records(1), transaction(1))
    before = {str(path) for path in (lake.folder / "lake").rglob("*")}
    monkeypatch.setattr(os, "fsync", fsync)
    writer.commit(transaction(1))
    written = {str(path) for path in (lake.folder / "lake").rglob("*")} - before
    # SQLite syncs its own file, but not its folder, which holds its journal.
    assert {path for path in written if not path.endswith(".crc")} <= synced and len(written) >= 2
    assert str(lake.folder / "lake") in synced


def test_a_place_that_no_table_can_be_in_is_refused_before_the_run(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in ("/proc/lake", "/proc/self", str(tmp_path / "file")):
        for table in (DeltaTable(place), IcebergTable(place, "shop.rows")):
            with pytest.raises(OutputError, match=f"{place} .*(give another|correct the) path"):
                table.validate_output(place_in(tmp_path), fresh=True)
    with pytest.raises(OutputError, match=r"scheme: s4.*correct the path"):
        DeltaTable("s4://bucket/lake").validate_output(place_in(tmp_path), fresh=True)


def test_one_task_writes_a_table(lake: Lake):
    flow = Flow("rows")
    flow.read(Range(3), name="in").write(lake.described(), name="out")
    deployment = expand(flow.plan(), parallelism=3)
    assert deployment.parallelism == {"in": 3, "out": 1}
    flow = Flow("rows")
    flow.read(Range(3), name="in").write(lake.described(), name="out", parallelism=2)
    with pytest.raises(BadOptionError, match="'out' has parallelism=2, and one task writes all of a"):
        expand(flow.plan())
