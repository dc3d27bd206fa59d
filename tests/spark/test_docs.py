"""What docs/tables.md shows runs, and it names every table and column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backedge.recovery.spark.cut_tables.table_schemas import TABLES, VERSION, columns_of
from tests.spark.cuts import job_of_cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()


def test_every_table_and_column_is_documented():
    words = set(re.findall(r"\w+", PAGE))
    for table, ddl in TABLES.items():
        assert f"| `{table}` |" in PAGE
        assert set(columns_of(ddl)) - words == set(), table
    assert f"version {VERSION} of the tables" in PAGE


@pytest.mark.slow
def test_the_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = job_of_cuts(tmp_path)
    # The one that opens a session is given the one that is there.
    plain = tmp_path / "plain"
    path.rename(plain)
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, flags=re.MULTILINE)
    blocks = [block for block in blocks if "pip install" not in block]
    assert len(blocks) == 3
    for block in blocks:
        source = re.sub(r"^    ", "", block, flags=re.MULTILINE)
        source = source.replace("SNAPSHOTS/JOB", str(plain)).replace("epoch=7", "epoch=4")
        exec(compile(source, "docs/tables.md", "exec"), {"spark": spark})
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*rank\|\s*timer\|\s*3\|", shown)
    assert re.search(r"\|\s*4\|\s*again\|\s*5\|", shown)
