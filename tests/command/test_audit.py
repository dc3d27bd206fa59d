"""`backedge audit`, called as the entry point calls it: exit codes, what is printed, what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from backedge.command import main
from backedge.recovery.spark.audit import audit_job
from backedge.recovery.stores.parquet_tables import parquet
from proof.runner import run_seed
from tests.spark.forging import Forged
from tests.spark.simulated import write_run

pytestmark = pytest.mark.slow

SEED, CRASHES = 19, 10
PROGRESS = tuple(f"backedge audit: {what}" for what in ("starting Spark", "verifying files: ", "checking cuts: "))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few cuts: Spark takes a while for each."""
    _, world, _ = run_seed(SEED, CRASHES)
    return write_run(world, tmp_path_factory.mktemp("snapshots"), first=3)


def test_a_consistent_job_is_told_in_lines_and_as_json_page_and_tables(
    spark: Any, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page, tables = tmp_path / "audit.html", tmp_path / "tables"
    every = ["audit", str(job), "--epoch", "all", "--json", "--page", str(page), "--parquet", str(tables)]
    assert main([*every, "--invariant", "no state is negative=SELECT * FROM state WHERE value_int < 0"]) == 0
    out, progress = capsys.readouterr()
    verdict: dict[str, Any] = json.loads(out)
    assert verdict["consistent"] and not verdict["findings"]
    assert {one["name"] for one in verdict["invariants"]} == {"no state is negative"}
    assert all(line.startswith(PROGRESS) for line in progress.splitlines())
    assert "Consistent" in page.read_text()
    epochs = [cut["epoch"] for cut in verdict["cuts"]]
    results = spark.read.parquet(str(tables / "statements"))
    assert [row.epoch for row in results.select("epoch").distinct().sort("epoch").collect()] == epochs
    assert results.where("NOT holds").count() == spark.read.parquet(str(tables / "findings")).count() == 0


def test_a_violation_is_told_with_statement_channel_epoch_and_figures(
    spark: Any, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    forged = Forged(job, tmp_path / "copy")
    epoch, task, name = next(
        (epoch, task["task"], file["name"])
        for epoch, manifest in reversed(forged.manifests.items())
        for task in manifest["tasks"]
        for file in task["files"]
        if "/table=log/" in file["name"]
    )
    dropped = forged.rows(name)[-1]
    forged.change(name, lambda rows: rows[:-1])
    tables = tmp_path / "tables"
    assert main(["audit", str(forged.seal()), "--epoch", str(epoch), "--parquet", str(tables)]) == 1
    first, *findings = capsys.readouterr().out.splitlines()
    assert first.startswith("not consistent: 1 cut") and "statement 2 " in first
    assert f"epoch {epoch}, statement 2 " in findings[0]
    channel = f"channel {dropped['edge']} "
    assert any(channel in finding and f"->{task}/" in finding for finding in findings)
    (file,) = tables.glob(f"findings/epoch={epoch}/*.parquet")
    assert parquet.read_table(file, partitioning=None).num_rows == len(findings)


def test_a_malformed_manifest_is_a_finding(spark: Any, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    forged = Forged(job, tmp_path / "copy")
    epoch = max(forged.manifests)
    forged.manifests[epoch]["tasks"][0]["state_rows"] = "many"
    path = str(forged.seal())
    for chosen in (str(epoch), "latest"):
        assert main(["audit", path, "--epoch", chosen]) == 1
        _, first = capsys.readouterr().out.splitlines()
        assert f"epoch {epoch}, statement 5 " in first and "state_rows" in first


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], r"\bnowhere\b.*\bexist"),
        (["JOB", "--epoch", "9999"], r"epoch 9999 of job job\b"),
        (["JOB", "--key-file", "no-key"], r"--key-file no-key .*No such file or directory"),
        (["JOB", "--key-file", "key"], r"\bnot signed\b"),
        (["JOB", "--invariant", "SELECT 1"], r"'SELECT 1'.*\bname=SELECT"),
        (["JOB", "--invariant", "x=SELECT nothing FROM tasks"], r"invariant 'x'.*\[UNRESOLVED_COLUMN"),
        (["JOB", "--invariant", "x=SELEC"], r"invariant 'x'.*\[PARSE_SYNTAX_ERROR\]"),
        (["JOB", "--invariant", "x=SELECT 1 / 0"], r"invariant 'x'.*\[DIVIDE_BY_ZERO\]"),
    ],
)
def test_what_cannot_be_judged_is_one_clear_line_before_rows_are_compared(
    spark: Any,
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_job, "_judge", None)
    Path("key").write_text("a secret of 22 bytes..\n")
    assert main(["audit", *(str(job) if word == "JOB" else word for word in arguments)]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(PROGRESS)]
    assert len(lines) == 1, err
    assert re.search(named, lines[0]), lines[0]
    assert not out
