"""Rows of process classes' tables in files: as rows of `state`, and what is wrong with forged ones."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.table import Table
from backedge.inspecting.cut_contents import CutContents
from backedge.inspecting.jobs import cut_of
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.spark import register
from backedge.recovery.spark.audit.file_checks import faults_in
from backedge.recovery.spark.cut_tables.cut_tables import cut_tables
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.table_rows import as_state
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.parquet_tables import encode, pa
from backedge.recovery.stores.state_table import state_parts
from proof.runner import run_seed
from tests.spark.simulated import write_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CRASHES = 6
VALUES = [1.5, float("nan"), float("inf"), -float("inf")]


def rows_of(key: dict[str, str], *keys: Any) -> Any:
    """The rows of a file with these keys."""
    table = TableState("sums", Table(key=key, columns={"sum": "float64", "ok": "bool"}))
    table.set(table.rows(*keys), sum=VALUES, ok=[True, False, True, True])
    (part,) = state_parts(OperatorState(table.capture().parts()))
    return part.rows


def judged(rows: Any, span: tuple[int, int] | None = None) -> list[tuple[int, str]]:
    groups = rows["key_group"].drop_null().to_pylist()
    return faults_in("rows", io.BytesIO(encode(rows)), span or (min(groups), max(groups)))


def with_groups(rows: Any, groups: list[int | None]) -> Any:
    return rows.set_column(0, "key_group", pa.array(groups, pa.int32()))


def test_columns_become_the_json_of_keys_and_values():
    texts = ['"', "ü", "a", ""]
    for key, keys, expected in [
        ({"id": "int64"}, [[4, 3, 2, 1]], {"4", "3", "2", "1"}),
        ({"id": "string"}, [np.array(texts, object)], set(map(json.dumps, texts)) - {'"\\u00fc"'} | {'"ü"'}),
        (
            {"a": "int64", "b": "int64"},
            [[1, 1, 2, 2], [1, 2, 1, 2]],
            {f'{{"a":{a},"b":{b}}}' for a in (1, 2) for b in (1, 2)},
        ),
    ]:
        found = as_state(rows_of(key, *keys)).to_pylist()
        assert {row["key"] for row in found} == expected
        values = {repr(json.loads(row["value"])["sum"]) for row in found}
        assert values == {"1.5", "'NaN'", "'Infinity'", "'-Infinity'"}
        assert sorted(json.loads(row["value"])["ok"] for row in found) == [False, True, True, True]


def test_sound_rows_have_no_fault():
    assert judged(rows_of({"id": "int64"}, range(4))) == []
    assert judged(rows_of({"id": "int64", "day": "string"}, range(4), np.array(list("abcd"), object))) == []


def test_rows_that_are_forged_are_found():
    rows = rows_of({"id": "int64", "n": "int64"}, [7, 8, 9, 10], [1, 1, 1, 1])
    groups = rows["key_group"].to_pylist()
    key = rows["key"].combine_chunks()
    other = pa.StructArray.from_arrays([pa.array([70, *key.field(0).to_pylist()[1:]]), key.field(1)], ["id", "n"])
    assert "1 key in the wrong group; first: {'id': 70, 'n': 1}" in judged(rows.set_column(1, "key", other))[0][1]
    doubled = pa.concat_tables([rows.slice(0, 1), rows])
    assert judged(doubled) == [(5, f"1 duplicate key; first: {list(key[0].as_py().values())}")]
    assert "1 row without a value in column key_group" in judged(with_groups(rows, [None, *groups[1:]]))[0][1]
    missing = pa.StructArray.from_arrays([pa.array([None, 1.0, 1.0, 1.0])], ["sum"])
    assert judged(rows.set_column(2, "value", missing)) == [
        (5, "1 row without a value in column value.sum of table rows")
    ]
    assert judged(rows, (0, 127)) == [(5, "1 file with key groups that the manifest does not name")]


@pytest.mark.slow
def test_tables_of_a_run_that_crashed_are_read_the_same_in_every_way(spark: SparkSession, tmp_path: Path):
    worlds = (run_seed(seed, CRASHES, topology="columns_loop")[1] for seed in range(100))
    world = next(world for world in worlds if any(has_deltas(cut) for cut in world.record.cuts.values()))
    job = write_run(world, tmp_path)
    folder = JobFolder.open(str(job))
    tables = cut_tables(spark, folder, folder.cuts())
    register(spark)
    loaded = spark.read.format("backedge").option("table", "state").option("epoch", "all").load(str(job))
    store = CutStore(str(tmp_path), "job")
    for state in (tables["state"], loaded):
        found: dict[int, dict[str | None, str | None]] = {epoch: {} for epoch in folder.cuts()}
        for row in state.where("operator = 'total' AND kind = 'value'").collect():
            found[row.epoch][row.key] = row.value
        for epoch, entries in found.items():
            contents = CutContents(store, cut_of(store, epoch))
            assert entries == {e.key: e.value for e in contents.state("total") if e.kind == "value"}
        assert any(found.values())


def has_deltas(cut: Any) -> bool:
    return any(
        snapshot.operators["total"].deltas for snapshot in cut.snapshots.values() if "total" in snapshot.operators
    )
