"""Cuts as tables: every cut has its rows, those of a task that has ended included, and values can be read."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from backedge.engine.state.keyed_state import encode_entries
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.spark import register
from backedge.recovery.spark.cut_tables.cut_tables import TABLES, cut_tables
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.table_schemas import columns_of
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.state_table import state_parts
from tests.spark.cuts import FLOATS, TEXTS, job_of_cuts
from tests.stores.snapshots import DEPLOYMENT, RANK, begin, complete, manifest_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_of_cuts(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, path: Path) -> Mapping[str, DataFrame]:
    folder = JobFolder.open(str(path))
    return cut_tables(spark, folder, folder.cuts())


def rows(table: DataFrame, *columns: str, where: str = "true") -> Rows:
    return sorted((tuple(row) for row in table.where(where).select(*columns).collect()), key=repr)


def test_every_table_has_the_columns_that_are_documented(tables: Mapping[str, DataFrame]):
    assert {name: table.columns for name, table in tables.items()} == {
        name: columns_of(ddl) for name, ddl in TABLES.items()
    }
    assert all(table.columns[:2] == ["epoch", "attempt"] for table in tables.values())


def test_cuts_tell_where_they_stand_in_the_chain(tables: Mapping[str, DataFrame]):
    found = rows(tables["cuts"], "epoch", "attempt", "number", "mode", "savepoint", "graph_hash", "parallelism")
    assert found == [
        (1, 1, 2, "aligned", "before", "abc", {"rank": 1}),
        (2, 1, 3, "aligned", None, "abc", {"rank": 1}),
        (4, 2, 5, "aligned", None, "abc", {"rank": 1}),
    ]


def test_a_task_that_has_ended_is_in_every_cut_that_names_it(tables: Mapping[str, DataFrame]):
    done = rows(tables["tasks"], "epoch", "attempt", "captured_epoch", "filed", "ended", where="task = 'done'")
    assert done == [(1, 1, 1, 1, False), (2, 1, 2, None, True), (4, 2, 4, None, True)]
    transactions = rows(tables["transactions"], "epoch", "attempt", "operator", "task_index", "name", "prepared_epoch")
    names = {"done.0.late": 3, "done.0.early": 1}
    assert transactions == sorted(
        ((*cut, "done", 0, name, epoch) for cut in ((1, 1), (2, 1), (4, 2)) for name, epoch in names.items()), key=repr
    )


def test_a_last_state_belongs_to_several_cuts(spark: SparkSession, tmp_path: Path):
    """It is written once, by the attempt, and named by each manifest since."""
    store = CutStore(str(tmp_path), "job")
    begin(store)
    for epoch in (1, 2):
        complete(store, epoch, ended=True)
    tables = cut_tables(spark, JobFolder.open(str(tmp_path)), [1, 2])
    files = rows(tables["files"], "name", where="task = 'done'")
    assert len(files) == 2 * len(set(files))
    assert rows(tables["transactions"], "epoch", "name") == [
        (epoch, name) for epoch in (1, 2) for name in ("done.0.early", "done.0.late")
    ]


def test_the_deployment_of_a_cut_is_there(tables: Mapping[str, DataFrame]):
    found = rows(tables["graph_channels"], "sender", "receiver", "is_back", "within_actor", where="epoch = 4")
    assert found == [("orders", "rank", False, True), ("rank", "rank", True, False)]
    assert rows(tables["tasks"], "actor", where="epoch = 4") == [("slice-0",)] * 3
    assert rows(tables["operators"], "task", "operator", "kind", where="epoch = 4") == [
        ("done", "done", "sink"),
        ("orders", "cleaned", "map"),
        ("orders", "orders", "source"),
        ("rank", "counts", "stateful_map"),
        ("rank", "rank", "process"),
        ("rank", "sums", "process"),
    ]


def test_logs_are_row_by_row_with_their_digests(tables: Mapping[str, DataFrame]):
    log = rows(tables["log"], "position", "restored", "seq", "digest_before", "loop", "task", where="epoch = 1")
    assert [row[:4] for row in log] == [(0, True, 1, 0), (1, False, 4, 9), *(row[:4] for row in log[2:])]
    assert {row[4:] for row in log} == {("again", "rank")}
    links = tables["log"].selectExpr(
        "epoch", "lag(digest_after) OVER (PARTITION BY epoch, restored ORDER BY seq) AS b", "digest_before"
    )
    assert links.where("b IS NOT NULL AND b <> digest_before").count() == 0


def test_records_in_flight_are_read_out_of_their_batches(tables: Mapping[str, DataFrame]):
    found = rows(tables["in_flight"], "epoch", "loop", "seq", "record", "hops", where="epoch <> 2")
    assert found == sorted(
        [
            (1, "again", 1, '"old"', 0),
            (1, "again", 4, '"x"', 0),
            (1, "again", 4, '"y"', 0),
            (1, "again", 6, '{"id":1}', 0),
            (4, "again", 4, '{"n":1,"s":"a"}', 3),
            (4, "again", 4, '{"n":2,"s":null}', 3),
            (4, "again", 5, '"x"', 0),
            (4, "again", 5, '{"class":"builtins.complex","args":[0.0,1.0]}', 1),
            (4, "again", 6, None, None),
        ],
        key=repr,
    )


@pytest.mark.parametrize("is_large", [True, False])
def test_bytes_are_in_a_column_of_their_own_page_by_page_or_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
):
    monkeypatch.setattr("backedge.recovery.stores.parquet_pages.LARGE_BYTES", 1 if is_large else 1 << 30)
    monkeypatch.setattr("backedge.recovery.stores.parquet_pages.shrinks", lambda sample: False)
    monkeypatch.setattr("backedge.recovery.stores.parquet_pages.PAGE_BYTES", 1_000)
    held = {number: bytes([number]) * number for number in range(100)}
    store = CutStore(str(tmp_path), "job")
    begin(store)
    groups = encode_entries("held", held, ())
    assert all((part.values is not None) is is_large for part in state_parts(OperatorState(groups)))
    snapshot = TaskSnapshot(RANK, Epoch(1), Attempt(1), {"held": OperatorState(groups)}, (), ())
    files = {RANK: store.write_task(Attempt(1), Epoch(1), snapshot)}
    assert store.create(2, manifest_for(files, 1), files, DEPLOYMENT)
    state = cut_tables(spark, JobFolder.open(str(tmp_path)), [1])["state"]
    assert dict(rows(state, "key_int", "value_bytes")) == held
    values = {key: json.loads(value) for key, value in rows(state, "key", "value")}
    assert values == {str(key): {"base64": b64encode(value).decode()} for key, value in held.items()}
    alone = spark.read.parquet(f"{store.path}/epoch=1/attempt=1/table=state")
    assert dict(rows(alone, "key_int", "value_bytes")) == held


def test_keys_and_values_of_state_are_json_whatever_they_are_kept_as(tables: Mapping[str, DataFrame]):
    of_rank = rows(tables["state"], "kind", "key", "value", where="operator = 'rank' AND epoch = 1 AND kind = 'value'")
    assert {key: json.loads(value) for _, key, value in of_rank} == {
        '"a"': 1,
        '"b"': 2.5,
        '"c"': "text",
        '"ä"': [1],
        "7": "seven",
        str(1 << 70): 1,
        '[1,"x"]': None,
        "true": {"k": [1, 2]},
    }
    others = rows(tables["state"], "kind", "key", "value", where="epoch = 1 AND kind <> 'value'")
    assert ("timer", "3", "50") in others
    assert ("pending", None, '["waits",2]') in others
    assert ("whole", None, '{"random":[3,[1,2],null]}') in others


def test_typed_columns_make_the_same_json(tables: Mapping[str, DataFrame]):
    of_counts = rows(tables["state"], "key", "value", "data", where="operator = 'counts' AND epoch = 4")
    found = {json.loads(key): json.loads(value) for key, value, _ in of_counts}
    words = {"nan": "NaN", "inf": "Infinity", "minus": "-Infinity"}
    wanted = {key: value if math.isfinite(value) else words[key] for key, value in FLOATS.items()}
    assert found == {**wanted, **TEXTS}
    assert {data for _, _, data in of_counts} == {None}


def test_the_format_reads_the_same_tables(spark: SparkSession, path: Path, tables: Mapping[str, DataFrame]):
    register(spark)
    reader = spark.read.format("backedge").option("epoch", "all")
    for name, table in tables.items():
        # Numbers of floating point are written in two ways.
        columns = [column for column in table.columns if column not in {"value", "value_float"}]
        found = reader.option("table", name).load(str(path))
        assert found.schema == table.schema, name
        assert rows(found, *columns) == rows(table, *columns), name


def test_a_table_without_rows_has_its_columns(spark: SparkSession, path: Path):
    tables = cut_tables(spark, JobFolder.open(str(path)), [])
    assert {name: columns_of(TABLES[name]) for name in tables} == {name: t.columns for name, t in tables.items()}
    assert tables["state"].count() == tables["in_flight"].count() == tables["cuts"].count() == 0


def test_a_file_that_is_missing_is_named(spark: SparkSession, tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    begin(store)
    complete(store, 1)
    missing = Path(store.path, "epoch=1/attempt=1/table=state/operator=rank/rank.0.parquet")
    missing.unlink()
    state = cut_tables(spark, JobFolder.open(str(tmp_path)), [1])["state"]
    with pytest.raises(PySparkException, match=f"UnreadableError: {missing}"):
        state.collect()
