"""Answers of calls in the journal, as a table and in the audit: simulated runs, written down with their journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backedge.recovery.spark
from backedge.engine.operators.kept_answers import KeptAnswersOperator
from backedge.engine.simulation.world.kept_calls import KeptCalls
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.answers import Equals
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.cut_tables import cut_tables
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.report.verdict import Verdict
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from proof.runner import run_seed
from tests.spark.simulated import write_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SEED, CRASHES = 9, 6


@pytest.fixture(autouse=True)
def whole_journal(monkeypatch: pytest.MonkeyPatch):
    """The journal of a run from its beginning: all cuts of a run are written down, also those that it has dropped."""
    monkeypatch.setattr(KeptCalls, "remove_segments", lambda calls, oldest: None)


def written(root: Path) -> Path:
    """The folder of a job, with its cuts and its journal; a group of the journal has one answer."""
    _, world, _ = run_seed(SEED, CRASHES, topology="kept_answers")
    job = write_run(world, root)
    journal = CutStore(str(root), "job").answers
    for kept in world.calls.journal:
        journal.write(kept.segment, Attempt(1), kept.operator, [kept.known])
    return job


def judged(spark: SparkSession, job: Path) -> Verdict:
    return audit(spark, JobFolder.open(str(job)), "all")


def stories(verdict: Verdict) -> str:
    assert {found.statement for found in verdict.findings} == {9}
    return "; ".join(found.story for found in verdict.findings)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KeptCalls, "remove_segments", lambda calls, oldest: None)
        return written(tmp_path_factory.mktemp("answers"))


def test_a_run_that_crashes_has_each_answer_once_and_the_audit_says_what_it_has_paid(spark: SparkSession, job: Path):
    verdict = judged(spark, job)
    assert verdict.consistent, "\n".join(verdict.lines())
    compared = [one.compared for cut in verdict.epochs for one in cut.statements if one.statement == 9]
    assert any("used since" in one and one[0] != "n" for one in compared), compared
    (paid,) = verdict.epochs[-1].answers
    assert paid["answers"] - paid["unused"] > 0
    assert f"ask: {paid['answers']} answers paid" in verdict.epochs[-1].line()


def test_an_answer_that_the_journal_lacks_is_found(spark: SparkSession, job: Path, tmp_path: Path):
    damaged = tmp_path / "job"
    shutil.copytree(job, damaged)
    for group in (damaged / "answers").rglob("*.answers"):
        group.unlink()
    assert "which the journal does not have" in stories(judged(spark, damaged))


def test_an_answer_that_a_second_question_would_use_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def sent(equals: Equals, number: int) -> Equals:
        """Its answer stays, as if none had been sent."""
        return equals._replace(waiting=tuple(one for one in equals.waiting if one[0] != number))

    monkeypatch.setattr(Equals, "without", sent)
    assert "lets two records use one answer" in stories(judged(spark, written(tmp_path)))


def test_more_answers_used_than_paid_for_are_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    add = KeptAnswersOperator._add  # pyright: ignore[reportPrivateUsage]

    def twice(operator: KeptAnswersOperator, answers: str, costs: str, cost: float) -> None:
        for _ in range(2 if answers == "used" else 1):
            add(operator, answers, costs, cost)

    monkeypatch.setattr(KeptAnswersOperator, "_add", twice)
    assert "some were used twice" in stories(judged(spark, written(tmp_path)))


def test_a_group_that_was_changed_is_refused_before_it_is_decoded(spark: SparkSession, job: Path, tmp_path: Path):
    damaged = tmp_path / "job"
    shutil.copytree(job, damaged)
    for group in (damaged / "answers").rglob("*.answers"):
        group.write_bytes(group.read_bytes() + b"\0")
    with pytest.raises(UnreadableError, match="SHA-256"):
        judged(spark, damaged)


def test_the_table_has_what_a_restore_of_each_cut_reads_by_both_ways(spark: SparkSession, job: Path):
    folder = JobFolder.open(str(job))
    table = cut_tables(spark, folder, folder.cuts(), {"answers"})["answers"]
    backedge.recovery.spark.register(spark)
    read = spark.read.format("backedge").option("table", "answers").option("epoch", "all").load(str(job))
    rows = sorted(map(tuple, table.collect()))
    assert rows and rows == sorted(map(tuple, read.collect()))
    assert all(row.segment >= row.epoch and row.operator == "ask" for row in table.collect())
    journal = CutStore(str(job.parent), "job").answers
    for epoch in folder.cuts():
        found = sorted(str(known.question) for _, known in journal.read("ask", Epoch(epoch)))
        assert found == sorted(row.question for row in table.collect() if row.epoch == epoch)
