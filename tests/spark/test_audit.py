"""Cuts of a real run are consistent; every tampering is found and reported under the right statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backedge import Collect, Flow, Range
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.recovery.spark.audit import audit_job
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.report.verdict import Verdict
from tests.gates import Gate, Gated
from tests.on_ray.flows import PAUSE_S, begin, until
from tests.spark.forging import before_rows
from tests.spark.mutations import BACK, MUTATIONS, Subject, change_a_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TRIPS, ROUND = 6, 30
COUNTED = f"""
    SELECT s.key_int AS number, s.value_int AS counted, f.made
    FROM (SELECT * FROM state WHERE operator = 'grow') s
    LEFT JOIN (SELECT CAST(get_json_object(record, '$[0]') AS BIGINT) AS number,
                      CAST(get_json_object(record, '$[1]') AS BIGINT) AS made FROM in_flight) f
    ON f.number = s.key_int
    WHERE NOT (s.value_int <=> coalesce(f.made, {TRIPS}))"""
INVARIANTS = {"every number has made as many trips as were counted": COUNTED}


def growing(gate: Gate) -> Callable[[int, tuple[int, int]], tuple[int, tuple[int, int]]]:
    """One more trip; but the first numbers go round without a count until the gate is open: the loop is never empty."""

    def grow(made: int, record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        if record[0] < ROUND and not gate.is_open:
            time.sleep(PAUSE_S)
            return made, record
        return made + 1, (record[0], made + 1)

    return grow


def is_home(record: tuple[int, int]) -> bool:
    return record[1] >= TRIPS


def trips(gate: Gate) -> Flow:
    """Numbers circulate between two operators with two tasks each, in two actors.

    They begin with 0 and 89, which share a key group: so every cut has a group of several keys.
    """
    flow = Flow("trips")
    again = flow.loop("again")
    source = Gated(Range(300), gate)
    numbers = flow.read(source, name="numbers").map(lambda number: (number * 89 % 300, 0), name="begin")
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(growing(gate), initial=0, name="grow")
    done, rest = grown.key_by(lambda record: record[0] + 1).split(is_home, name="enough")
    again.feed(rest.key_by(lambda record: record[0]))
    done.rebalance().write(Collect(), name="done")
    return flow


def of_ray(root: Path, cuts: int, **faults: Any) -> Path:
    """A run with so many cuts, and some new numbers in each."""
    gate = Gate(root / "gate")
    # A task that loses its patience logs its other inputs too, in a second file: on a busy machine, some would.
    options: dict[str, Any] = {"every": 0.3, "keep": 50, "parallelism": 2, "actors": "slice", "cut_patience": None}
    job = begin(trips(gate), snapshots=root, **options, **faults)

    def has_enough(story: Story) -> bool:
        gate.let(20 + 4 * story.snapshots)
        return story.snapshots >= cuts

    until(job, has_enough, "there are enough cuts")
    gate.open()
    assert job.wait().missed_faults == ()
    return root / "trips"


@pytest.fixture(scope="module")
def jobs(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that was killed, and one that did not log its loops."""
    return {
        "killed": of_ray(tmp_path_factory.mktemp("killed"), 14, kills=["body@epoch=3"]),
        "unlogged": of_ray(tmp_path_factory.mktemp("unlogged"), 4, broken_rule="no-loop-log"),
    }


@pytest.fixture(scope="module")
def job(jobs: dict[str, Path]) -> Path:
    return jobs["killed"]


def judged(spark: SparkSession, job: Path, epochs: Sequence[int]) -> Verdict:
    return audit(spark, JobFolder.open(str(job)), epochs, INVARIANTS)


def first_cuts(job: Path, count: int) -> list[int]:
    """So many cuts and no more: on a slow machine a run has dozens, and each takes Spark a while."""
    return JobFolder.open(str(job)).cuts()[:count]


def test_cuts_of_a_run_that_was_killed_are_consistent(spark: SparkSession, job: Path):
    verdict = judged(spark, job, first_cuts(job, 6))
    assert verdict.consistent, "\n".join(verdict.lines())
    assert {cut.attempt for cut in verdict.epochs} == {1, 2}
    assert [start["attempt"] for start in verdict.attempts] == [1, 2]
    assert len(verdict.epochs) > 4
    sizes = [cut.sizes for cut in verdict.epochs]
    assert max(size["log_records"] for size in sizes) > 0
    assert all(size["digested"] and size["counted"] for size in sizes)


def test_invariants_see_the_same_in_small_cuts_and_in_large_ones(
    spark: SparkSession, job: Path, monkeypatch: pytest.MonkeyPatch
):
    """The files of large cuts are read cut by cut, so that a hundred cuts are not read a hundred times."""
    counts = {"counts": "SELECT (SELECT count(*) FROM state) AS keys, (SELECT count(*) FROM in_flight) AS in_flight"}
    folder, cuts = JobFolder.open(str(job)), first_cuts(job, 2)
    found: dict[str, list[tuple[str, ...]]] = {}
    for kind, small_bytes in (("small", audit_job.SMALL_BYTES), ("large", 0)):
        monkeypatch.setattr(audit_job, "SMALL_BYTES", small_bytes)
        found[kind] = [cut.invariants[0].examples for cut in audit(spark, folder, cuts, counts).epochs]
    assert found["small"] == found["large"]
    assert len(set(found["large"])) == len(cuts)


def is_found(verdict: Verdict, epoch: int, statement: int, where: str) -> bool:
    # Findings on the whole job have no epoch.
    found = [str(one) for one in verdict.findings if one.statement == statement and one.epoch in (epoch, None)]
    if statement == 7:  # the engine did nothing wrong: the user's verdict is another one
        found = [] if verdict.invariants_hold else verdict.failures
    return verdict.consistent == (statement == 7) and any(where in line for line in found)


COMPARED_TOGETHER = [
    ["drop_an_entry", "count_one_more_as_consumed", "change_a_position", "change_what_a_transaction_holds"],
    ["drop_the_first_entry", "count_one_more_as_sent", "leave_out_a_split", "give_a_transaction_another_epoch"],
    ["double_an_entry", "count_less_than_the_cut_before", "have_a_position_that_is_no_number"],
    ["swap_two_payloads", "leave_out_an_end_of_a_channel"],
    ["edit_an_entry", "file_an_end_of_a_channel_under_another_task"],
    ["edit_an_entry_and_the_digests_after_it", "leave_out_a_file_of_state"],
    ["count_one_more_as_sent_into_the_loop", "go_back_to_an_earlier_position"],
    ["swap_two_entries"],
    ["mix_two_epochs_under_one_name"],
]
"""What only a comparison of rows finds, in one cut as far as each has a finding of its own: an audit takes seconds."""

COMPARED = {"change_a_value", *(name for together in COMPARED_TOGETHER for name in together)}


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
        for epoch, names in zip(cut.apart(), waiting, strict=False):
            cut.turn_to(epoch)
            expected += [(epoch, *MUTATIONS[name](cut)) for name in names]
        changed = {epoch for epoch, _, _ in expected}
        assert len(set(expected)) == sum(map(len, waiting[: len(changed)]))
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


def test_a_loop_that_is_not_logged_is_found(spark: SparkSession, jobs: dict[str, Path]):
    verdict = judged(spark, jobs["unlogged"], first_cuts(jobs["unlogged"], 4))
    assert not verdict.consistent
    found = [one for one in verdict.findings if one.statement == 2]
    assert found and all(one.channel is not None and one.channel.startswith(BACK) for one in found)
    assert "it holds none" in found[0].story
