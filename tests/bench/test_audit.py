"""The cut that the audit is measured with is consistent, and the verdict over what was measured is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.spark.audit.audit_job import audit as judge
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from bench import audit
from bench.large_cut import write_large_cut
from bench.measuring import Samples
from bench.peers import audit_bare
from bench.workloads import AuditWorkload

ROWS = 1_600


@pytest.fixture
def job(tmp_path: Path) -> str:
    return write_large_cut(str(tmp_path), "job", ROWS, seed=1)


@pytest.mark.slow
@pytest.mark.long
def test_the_cut_is_consistent_and_as_large_as_it_should_be(spark: Any, job: str):
    verdict = judge(spark, JobFolder.open(job))
    assert verdict.consistent, "\n".join(verdict.lines())
    assert [verdict.epochs[0].sizes[what] for what in ("state_rows", "log_batches")] == [ROWS // 2, ROWS // 2]


@pytest.mark.slow
def test_the_peer_reads_the_same_files(job: str):
    assert audit_bare.run(AuditWorkload(job, ROWS)) > 0


def judged(small: float, large: float, python_mb: float = 200.0, heap_mb: float = 900.0) -> list[str]:
    found = {name: Samples((figure,) * 5) for name, figure in {"small": small, "large": large, "bare": 9.0}.items()}
    return [limit.claim for limit in audit.compare(found, ROWS, python_mb, heap_mb).limits if not limit.holds]


def test_an_audit_that_grows_with_the_rows_is_green():
    assert judged(small=1.0, large=1.0) == []


@pytest.mark.parametrize(
    ("figures", "claim"),
    [
        ({"small": 1.1, "large": 1.0}, "10 times the rows take 11.0 times as long, at most 10.0"),
        ({"small": 1.0, "large": 1.0, "python_mb": 501.0}, "501 MB of Python, at most 500"),
        ({"small": 1.0, "large": 1.0, "heap_mb": 3000.0}, "3000 MB of Java heap, at most 2048"),
    ],
)
def test_an_audit_that_takes_too_much_misses(figures: dict[str, float], claim: str):
    assert judged(**figures) == [claim]
