"""The cut that the audit is measured with is consistent, and the verdict over what was measured is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.spark.audit.audit_job import audit as judge
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from bench.large_cut import write_large_cut

ROWS = 1_600


@pytest.fixture
def job(tmp_path: Path) -> str:
    return write_large_cut(str(tmp_path), "job", ROWS, seed=1)


@pytest.mark.long
def test_the_cut_is_consistent_and_as_large_as_it_should_be(spark: Any, job: str):
    verdict = judge(spark, JobFolder.open(job))
    assert verdict.consistent, "\n".join(verdict.lines())
    assert [verdict.epochs[0].sizes[what] for what in ("state_rows", "log_batches")] == [ROWS // 2, ROWS // 2]
