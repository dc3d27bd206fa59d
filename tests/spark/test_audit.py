"""Cuts of a run that crashed are consistent; every tampering is found and reported under the right statement."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backedge import Collect, Flow, Range
from backedge.engine.simulation.world.schedule import FaultPlan, Schedule
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.spark.audit import audit_job
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.lineage import places_in
from backedge.recovery.spark.cut_tables.manifest_tables import files_in
from backedge.recovery.spark.report.verdict import Verdict
from backedge.recovery.spark.spark_errors import UnreadableError
from tests.spark.forging import before_rows
from tests.spark.mutations import MUTATIONS, Subject, change_a_value
from tests.spark.simulated import write_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SEED, TRIPS = 16, 12
COUNTED = f"""
    SELECT s.key_int AS number, s.value_int AS counted, f.made
    FROM (SELECT * FROM state WHERE operator = 'grow') s
    LEFT JOIN (SELECT CAST(get_json_object(record, '$[0]') AS BIGINT) AS number,
                      CAST(get_json_object(record, '$[1]') AS BIGINT) AS made FROM in_flight) f
    ON f.number = s.key_int
    WHERE NOT (s.value_int <=> coalesce(f.made, {TRIPS}))"""
INVARIANTS = {"every number has made as many trips as were counted": COUNTED}
SIZES = {"sizes": "SELECT (SELECT count(*) FROM state) AS keys, (SELECT count(*) FROM in_flight) AS in_flight"}


def grow(made: int, record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    return made + 1, (record[0], made + 1)


def is_home(record: tuple[int, int]) -> bool:
    return record[1] >= TRIPS


def trips() -> Flow:
    """Numbers circulate between two operators with two tasks each, in two actors.

    They begin with 0 and 89, which share a key group: so every cut has a group of several keys.
    """
    flow = Flow("trips")
    again = flow.loop("again")
    numbers = flow.read(Range(60), name="numbers").map(lambda number: (number * 89 % 300, 0), name="begin")
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(grow, initial=0, name="grow")
    done, rest = grown.key_by(lambda record: record[0] + 1).split(is_home, name="enough")
    again.feed(rest.key_by(lambda record: record[0]))
    done.rebalance().write(Collect(), name="done")
    return flow


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two actors, one of which died once."""
    snapshots = SnapshotOptions(interval_ms=20, failures_tolerated=1000)
    options = WorldOptions(2, "slice", snapshots, records_max=1, seed=SEED)
    world = World(trips().plan(), {}, options, Parts())
    outcome = Schedule(world, SEED, replace(FaultPlan.none(), crashes=1), 5_000, 60_000, 600).run()
    assert not outcome.violations
    return write_run(world, tmp_path_factory.mktemp("cuts"), "trips")


def judged(spark: SparkSession, job: Path, epochs: Sequence[int]) -> Verdict:
    return audit(spark, JobFolder.open(str(job)), epochs, INVARIANTS)


def test_cuts_of_a_run_that_was_killed_are_consistent_and_invariants_see_the_same_if_they_are_large(
    spark: SparkSession, job: Path, monkeypatch: pytest.MonkeyPatch
):
    """The files of large cuts are read cut by cut, so that a hundred cuts are not read a hundred times."""
    folder = JobFolder.open(str(job))
    cuts = folder.cuts()[:2]
    verdict = audit(spark, folder, cuts, INVARIANTS | SIZES)
    assert verdict.consistent, "\n".join(verdict.lines())
    assert {cut.attempt for cut in verdict.epochs} == {1, 2}
    assert [start["attempt"] for start in verdict.attempts] == [1, 2]
    sizes = [cut.sizes for cut in verdict.epochs]
    assert max(size["log_records"] for size in sizes) > 0
    assert all(size["digested"] and size["counted"] for size in sizes)
    assert not any(cut.invariants[0].rows for cut in verdict.epochs)
    monkeypatch.setattr(audit_job, "SMALL_BYTES", 0)
    large = [cut.invariants[0].examples for cut in audit(spark, folder, cuts, SIZES).epochs]
    assert large == [cut.invariants[1].examples for cut in verdict.epochs]
    assert len(set(large)) == 2


def is_found(verdict: Verdict, epoch: int, statement: int, where: str) -> bool:
    # Findings on the whole job have no epoch.
    found = [str(one) for one in verdict.findings if one.statement == statement and one.epoch in (epoch, None)]
    if statement == 7:  # the engine did nothing wrong: the user's verdict is another one
        found = [] if verdict.invariants_hold else verdict.failures
    return verdict.consistent == (statement == 7) and any(where in line for line in found)


COMPARED_TOGETHER: list[tuple[list[str], list[str]]] = [
    (
        ["drop_an_entry", "count_one_more_as_consumed", "change_a_position", "change_what_a_transaction_holds"],
        ["edit_an_entry"],
    ),
    (
        ["drop_the_first_entry", "count_one_more_as_sent", "leave_out_a_split", "give_a_transaction_another_epoch"],
        ["swap_two_payloads"],
    ),
    (
        ["double_an_entry", "count_less_than_the_cut_before", "have_a_position_that_is_no_number"],
        ["edit_an_entry_and_the_digests_after_it"],
    ),
    (["count_one_more_as_sent_into_the_loop", "go_back_to_an_earlier_position"], ["swap_two_entries"]),
    (["leave_out_an_end_of_a_channel", "leave_out_a_file_of_state"], ["file_an_end_of_a_channel_under_another_task"]),
    (["mix_two_epochs_under_one_name"], []),
]
"""What only a comparison of rows finds, in one cut as far as each has a finding of its own: an audit takes seconds.

The second ones change the other channel of an edge.
"""

COMPARED = {"change_a_value", *(name for pair in COMPARED_TOGETHER for names in pair for name in names)}


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in COMPARED])
def test_what_is_changed_is_found_before_rows_are_compared(job: Path, tmp_path: Path, name: str):
    cut = Subject(job, tmp_path / "copy")
    statement, where = MUTATIONS[name](cut)
    verdict = before_rows(cut.seal(), cut.epoch)
    assert is_found(verdict, cut.epoch, statement, where), "\n".join(verdict.lines())


def test_what_is_changed_is_found_when_rows_are_compared(spark: SparkSession, job: Path, tmp_path: Path):
    """In as many cuts at once as can be changed. Each change alone is in the long tests."""
    waiting = list(COMPARED_TOGETHER)
    while waiting:
        cut = Subject(job, tmp_path / f"copy-{len(waiting)}")
        # It lies before the cuts that are changed.
        untouched = min(cut.manifests)
        expected: list[tuple[int, int, str]] = []
        for epoch, pair in zip(cut.apart(), waiting, strict=False):
            for place, names in enumerate(pair):
                cut.turn_to(epoch, place)
                expected += [(epoch, *MUTATIONS[name](cut)) for name in names]
        changed = {epoch for epoch, _, _ in expected}
        assert len(set(expected)) == sum(len(names) for pair in waiting[: len(changed)] for names in pair)
        verdict = audit(spark, JobFolder.open(str(cut.seal())), [untouched, *sorted(changed)])
        for one in expected:
            assert is_found(verdict, *one), "\n".join((str(one), *verdict.lines()))
        assert untouched not in {one.epoch for one in verdict.findings}, "it was only sealed again"
        waiting = waiting[len(changed) :]


def test_a_value_that_is_changed_breaks_the_users_invariant_alone(spark: SparkSession, job: Path, tmp_path: Path):
    cut = Subject(job, tmp_path / "copy")
    expected = change_a_value(cut)
    verdict = judged(spark, cut.seal(), [cut.epoch])
    assert is_found(verdict, cut.epoch, *expected), "\n".join(verdict.lines())


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_whole_audit_finds_what_is_changed(spark: SparkSession, job: Path, tmp_path: Path, name: str):
    cut = Subject(job, tmp_path / "copy")
    statement, where = MUTATIONS[name](cut)
    verdict = judged(spark, cut.seal(), [cut.epoch])
    assert is_found(verdict, cut.epoch, statement, where), "\n".join(verdict.lines())


def test_a_cut_is_judged_without_the_previous_one_if_that_is_damaged(spark: SparkSession, job: Path, tmp_path: Path):
    copy = Path(shutil.copytree(job, tmp_path / "copy"))
    folder = JobFolder.open(str(copy))
    # In the last cuts all tasks have ended, and name the same files.
    later = next(epoch for epoch, place in places_in(folder.links()).items() if place.previous in folder.cuts())
    previous = places_in(folder.links())[later].previous or 0
    names, kept = ({file["name"] for file in files_in(folder.manifest(epoch))} for epoch in (previous, later))
    damaged = copy / min(names - kept)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    verdict = judged(spark, copy, [later])
    assert verdict.passed, verdict.lines()
    compared = {one.statement: one.compared for one in verdict.epochs[0].statements}
    assert compared[8] == f"not compared: epoch {previous}, the previous cut, no longer exists or cannot be read"
    with pytest.raises(UnreadableError, match=re.escape(str(damaged))):
        judged(spark, copy, [previous])
