"""The format "backedge": what users ask for wrongly is said, and a file that was changed is not decoded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backedge.recovery.spark import register
from backedge.recovery.spark.cut_tables.spark_source import packed
from tests.gates import HANG_S
from tests.spark.cuts import job_of_cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_of_cuts(tmp_path_factory.mktemp("snapshots"))


def refusal(spark: SparkSession, path: str | None, **options: str) -> str:
    """What is said: the last line, below Spark's own."""
    register(spark)
    with pytest.raises(Exception, match="Python") as caught:
        spark.read.format("backedge").options(**options).load(path).collect()
    lines = [line for line in str(caught.value).splitlines() if "Error: " in line]
    return lines[-1]


@pytest.mark.slow
def test_a_cut_is_chosen_by_job_and_epoch(spark: SparkSession, path: Path):
    register(spark)
    cuts = spark.read.format("backedge").option("table", "cuts").option("job", "job")
    assert [row.epoch for row in cuts.load(str(path.parent)).collect()] == [4]
    assert [row.epoch for row in cuts.option("epoch", "2").load(str(path.parent)).collect()] == [2]
    spark.sql(f"CREATE TEMPORARY VIEW told USING backedge OPTIONS (path '{path}', table 'in_flight', epoch '1')")
    assert [row.record for row in spark.sql("SELECT record FROM told WHERE hops = 0 AND seq = 1").collect()] == [
        '"old"'
    ]
    spark.catalog.dropTempView("told")


@pytest.mark.slow
def test_what_is_asked_for_wrongly_is_said(spark: SparkSession, path: Path):
    at = str(path)
    assert "SparkJobError: no table is named: set option('table', ...) to one of cuts, tasks" in refusal(spark, at)
    assert "there is no table 'x': set" in refusal(spark, at, table="x")
    assert "no folder is named: give load(...)" in refusal(spark, None, table="state")
    assert "'soon' is not an epoch: set option('epoch', ...)" in refusal(spark, at, table="log", epoch="soon")
    assert "epoch 3 of job job in" in refusal(spark, at, table="log", epoch="3")
    assert "UnreadableError: /nowhere does not exist" in refusal(spark, "/nowhere", table="log")


@pytest.mark.slow
def test_a_file_that_was_changed_is_not_decoded(spark: SparkSession, path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "job")
    file = tmp_path / "job/epoch=1/attempt=1/table=state/operator=rank/rank.0.parquet"
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    said = refusal(spark, str(tmp_path), table="state", epoch="1")
    assert f"UnreadableError: {file} does not match the manifest" in said


@pytest.mark.slow
def test_what_is_shipped_imports_where_nothing_of_ours_is_installed(tmp_path: Path):
    (tmp_path / "ours.zip").write_bytes(packed())
    names = zipfile.ZipFile(BytesIO(packed())).namelist()
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"graphs", "recovery"}
    # -I leaves out what is installed by a path of its own, as a checkout is; packages of others stay.
    checkout = str(Path(__file__).parents[2] / "src")
    script = (
        f"import sys; sys.path = [p for p in sys.path if p != {checkout!r}]\n"
        f"sys.meta_path = [m for m in sys.meta_path if 'editable' not in repr(m)]\n"
        f"sys.path.insert(0, {str(tmp_path / 'ours.zip')!r})\n"
        "from backedge.recovery.spark.cut_tables import cut_tables, spark_source\nprint(spark_source.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.startswith(str(tmp_path / "ours.zip")), done.stderr
