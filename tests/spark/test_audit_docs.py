"""docs/audit.md names all that a verdict holds, and what it shows runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backedge.recovery.spark.report.verdict import STATEMENTS
from proof.runner import run_seed
from tests.spark.simulated import write_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "audit.md").read_text()
IN_OTHER_PAGES = {"graph", "parallelism"}


def names_in(value: Any) -> Iterator[str]:
    """The names of a JSON document, but for those below what is described elsewhere."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in IN_OTHER_PAGES:
                yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


def test_the_page_shows_what_runs_and_names_what_a_verdict_holds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, world, _ = run_seed(3, 10)
    job = write_run(world, tmp_path, keep=2)
    (source,) = re.findall(
        r"(?:^    .*\n|^\n(?=    ))+", PAGE.split("In Python:")[1].split("## ")[0], flags=re.MULTILINE
    )
    source = re.sub(r"^    ", "", source, flags=re.MULTILINE).replace("SNAPSHOTS/JOB", str(job))
    made: dict[str, Any] = {}
    exec(compile(source, "docs/audit.md", "exec"), made)
    assert capsys.readouterr().out.startswith("consistent: ")
    verdict = made["verdict"].to_json()
    assert set(names_in(verdict)) - set(re.findall(r"`(\w+)`", PAGE)) == set()
    assert all(f"\n{number}. " in PAGE for number in STATEMENTS)
