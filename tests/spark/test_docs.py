"""What docs/tables.md and docs/audit.md show runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proof.runner import run_seed
from tests.spark.cuts import job_of_cuts
from tests.spark.simulated import write_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_blocks(page: str, job: Path, given: dict[str, Any]) -> int:
    """Run the indented Python of a page for this job, with these names given; return how many blocks there were."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, flags=re.MULTILINE)
    blocks = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks if "pip install" not in block]
    for block in blocks:
        exec(compile(block.replace("SNAPSHOTS/JOB", str(job)).replace("epoch=7", "epoch=4"), "a page", "exec"), given)
    return len(blocks)


def test_the_examples_of_the_tables_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # The block that opens a session is given the one that is there.
    plain = job_of_cuts(tmp_path).rename(tmp_path / "plain")
    assert run_blocks((DOCS / "tables.md").read_text(), plain, {"spark": spark}) == 3
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*rank\|\s*timer\|\s*3\|", shown)
    assert re.search(r"\|\s*4\|\s*again\|\s*5\|", shown)


def test_the_example_of_an_audit_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = write_run(run_seed(3, 10)[1], tmp_path, keep=2)
    page = (DOCS / "audit.md").read_text().split("In Python:")[1].split("## ")[0]
    assert run_blocks(page, job, {}) == 1
    assert capsys.readouterr().out.startswith("consistent: ")
