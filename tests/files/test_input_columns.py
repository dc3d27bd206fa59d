"""Files with other columns than a source declares: they are refused, or their rows are fitted, and none changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backedge import CSV, BadOptionError, Collect, Flow, JsonLines, MalformedInputError, OutputError, Parquet, simulate
from backedge.engine.io.files.checks import check_sink
from tests.every import every
from tests.files.opened import place, reader, sink

Row = dict[str, Any]


def read(source: Any) -> list[Row]:
    opened, rows = reader(source), list[Row]()
    while not opened.exhausted:
        found = opened.read(7)
        rows += found if isinstance(found, list) else found.to_records()
    return rows


def parquet(folder: Path, **files: pa.Table) -> Path:
    for name, table in files.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
    return folder


def table(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


IDS = {"id": "int64", "name": "string"}
OLD = table(id=pa.array([1, 2], pa.int32()))
NEW = table(name=["c", "d"], id=[3, 4], age=[30, 40])


def test_ignore_gives_exactly_the_declared_columns(tmp_path: Path):
    rows = read(Parquet(str(parquet(tmp_path, a=OLD, b=NEW)), columns=IDS, schema="ignore"))
    assert rows == [{"id": 1, "name": None}, {"id": 2, "name": None}, {"id": 3, "name": "c"}, {"id": 4, "name": "d"}]
    assert {tuple(row) for row in rows} == {("id", "name")}


def test_widen_keeps_what_a_file_has_besides(tmp_path: Path):
    rows = read(Parquet(str(parquet(tmp_path, a=OLD, b=NEW)), columns=IDS, schema="widen"))
    assert rows[1:3] == [{"id": 2, "name": None}, {"id": 3, "name": "c", "age": 30}]


def test_without_columns_each_row_has_those_of_its_file(tmp_path: Path):
    rows = read(Parquet(str(parquet(tmp_path, a=OLD, b=NEW))))
    assert rows[1:3] == [{"id": 2}, {"name": "c", "id": 3, "age": 30}]


def types(source: Parquet) -> dict[str, str]:
    opened = reader(source)
    return {field.name: str(field.type) for field in opened.read(1).batch.schema}


def test_widen_widens_a_type_and_ignore_keeps_it(tmp_path: Path):
    source = Parquet(
        str(parquet(tmp_path, a=table(id=pa.array([2**40]), at=[1.5]))), columns={"id": "int32", "at": "float64"}
    )
    assert types(dataclasses.replace(source, schema="widen")) == {"id": "int64", "at": "double"}
    with pytest.raises(MalformedInputError, match=r"a\.parquet row 1: column 'id' has 1099511627776, which int32 does"):
        read(dataclasses.replace(source, schema="ignore"))


@pytest.mark.parametrize(
    ("declared", "values", "last"),
    [
        ("int8", pa.array([1, 2, 3, 4, 300]), 300),
        ("float64", pa.array([1, 2, 3, 4, 2**53 + 1]), 2**53 + 1),
        ("float32", pa.array([0.5, 1.5, 2.5, 3.5, 0.1]), 0.1),
        ("int64", pa.array([0.0, 1.0, 2.0, None, 0.25]), 0.25),
    ],
)
def test_a_value_that_would_change_is_refused_with_file_and_row(
    tmp_path: Path, declared: str, values: pa.Array, last: float
):
    source = Parquet(str(parquet(tmp_path, a=table(value=values))), columns={"value": declared}, schema="ignore")
    with pytest.raises(
        MalformedInputError, match=rf"a\.parquet row 5: column 'value' has {last}, which .* does not hold"
    ):
        read(source)
    pq.write_table(table(value=values.slice(0, 4)), tmp_path / "a.parquet")
    assert [row["value"] for row in read(source)] == values.slice(0, 4).to_pylist()


def test_a_time_with_nanoseconds_is_refused_with_file_and_row(tmp_path: Path):
    times = pa.array([1_000, 1_001], pa.timestamp("ns"))
    source = Parquet(str(parquet(tmp_path, a=table(at=times))), columns={"at": "timestamp[us]"}, schema="ignore")
    with pytest.raises(MalformedInputError, match=r"row 2: column 'at' has .*1970-01-01 00:00:00\.000001001.*which"):
        read(source)


@pytest.mark.parametrize("schema", ["ignore", "widen"])
def test_a_column_of_nothing_or_of_a_dictionary_takes_the_declared_type(tmp_path: Path, schema: Any):
    file = table(name=pa.array(["a", "b", None]).dictionary_encode(), id=pa.nulls(3))
    source = Parquet(str(parquet(tmp_path, a=file)), columns=IDS, schema=schema)
    assert read(source) == [{"id": None, "name": name} for name in ("a", "b", None)]
    assert types(source) == {"id": "int64", "name": "string"}


@pytest.mark.parametrize("schema", ["fail", "ignore", "widen"])
def test_a_type_that_cannot_be_widened_is_refused_by_name(tmp_path: Path, schema: Any):
    source = Parquet(str(parquet(tmp_path, a=table(id=["one"]))), columns={"id": "int64"}, schema=schema)
    with pytest.raises(MalformedInputError, match=r"a\.parquet has column 'id' of type string, and int64 is declared"):
        read(source)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (NEW, "b.parquet has 'age', and schema='fail'"),
        (table(id=[1]), "b.parquet lacks 'name', and schema='fail'"),
        (table(id=[1], nam=["a"]), "b.parquet has 'nam' and lacks 'name'"),
        (table(id=pa.array([1], pa.int32()), name=["a"]), "b.parquet has column 'id' of type int32"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["id", "id"]), "b.parquet has two columns of the same name"),
    ],
)
def test_fail_refuses_a_file_with_other_columns_or_types(tmp_path: Path, file: pa.Table, told: str):
    same = table(name=["x"], id=[9])
    source = Parquet(str(parquet(tmp_path, a=same)), columns=IDS)
    assert read(source) == [{"id": 9, "name": "x"}], "their order may be another one"
    parquet(tmp_path, b=file)
    with pytest.raises(MalformedInputError, match=told):
        read(source)


def test_types_of_arrow_may_be_declared(tmp_path: Path):
    tags = pa.list_(pa.string())
    file = table(id=[1], tags=pa.array([["a"]], tags))
    source = Parquet(str(parquet(tmp_path, a=file)), columns={"tags": tags, "when": "timestamp[us]"}, schema="ignore")
    assert read(source) == [{"tags": ["a"], "when": None}]


def test_a_file_without_any_declared_column_gives_rows_of_nulls(tmp_path: Path):
    source = Parquet(str(parquet(tmp_path, a=OLD)), columns={"name": "string"}, schema="ignore")
    assert read(source) == [{"name": None}] * 2


def test_headers_of_csv_are_fitted(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    (tmp_path / "b.csv").write_text('age,id\n30,2\n"4\n0",3\n')
    source = CSV(str(tmp_path), columns=["name", "id"], schema="ignore")
    assert read(source) == [{"name": "a", "id": "1"}, {"name": None, "id": "2"}, {"name": None, "id": "3"}]
    assert read(dataclasses.replace(source, schema="widen"))[2] == {"name": None, "id": "3", "age": "4\n0"}
    with pytest.raises(MalformedInputError, match=r"b\.csv line 1: the header has 'age' and lacks 'name', and schema="):
        read(dataclasses.replace(source, schema="fail"))


def test_json_lines_are_fitted_one_by_one(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "name": "a"}\n\n {"id": 2, "age": 30}\n{"age": 1}\n')
    source = JsonLines(str(tmp_path), columns=["id", "name"], schema="ignore")
    assert read(source) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": None, "name": None}]
    assert read(dataclasses.replace(source, schema="widen"))[2] == {"id": None, "name": None, "age": 1}
    with pytest.raises(MalformedInputError, match=r"a\.jsonl line 3: the record has 'age' and lacks 'name'"):
        read(dataclasses.replace(source, schema="fail"))
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n\n[1, 2]\n')
    with pytest.raises(MalformedInputError, match=r"a\.jsonl line 3: \[1, 2\] has no columns"):
        read(source)


def test_a_restored_reader_goes_on_with_the_same_columns(tmp_path: Path):
    source = Parquet(str(parquet(tmp_path, a=NEW, b=OLD)), columns=IDS, schema="ignore")
    opened = reader(source)
    first = opened.read(1).to_records()
    later = reader(source, positions=opened.positions())
    rows = [*first, *later.read(1).to_records(), *later.read(9).to_records()]
    assert rows == read(source)


@every(
    ("make", "told"),
    [
        (lambda: Parquet("in", schema="widen"), "schema='widen' has nothing to compare a file with: give columns="),
        (lambda: Parquet("in", columns=IDS, schema="drop"), "schema='drop': give one of 'fail', 'ignore', 'widen'"),
        (lambda: Parquet("in", columns=["id"]), r"columns=\['id'\] has no types"),
        (lambda: Parquet("in", columns={"id": "number"}), "columns={'id': 'number'}.*such as 'int64'"),
        (lambda: Parquet("in", columns={}), "columns={}: give each column once"),
        (lambda: CSV("in", columns=IDS), "are no names of columns"),
        (lambda: CSV("in", columns="id"), "columns='id' are no names of columns"),
        (lambda: CSV("in", columns=["id", "id"]), "give each column once"),
        (lambda: JsonLines("in", columns=[1]), "give each column once, by a name"),
    ],
)
def test_what_declares_no_columns_is_refused(make: Any, told: str):
    with pytest.raises(BadOptionError, match=told):
        make()


def test_a_sink_that_says_how_to_read_is_refused(tmp_path: Path):
    with pytest.raises(OutputError, match="sink 'out' has columns=, which says what is read of files"):
        check_sink(sink(Parquet(str(tmp_path / "out"), columns=IDS), "out"), place("out"))
    with pytest.raises(OutputError, match="sink 'out' has watch=, which says when files are read"):
        check_sink(sink(Parquet(str(tmp_path / "out"), watch=1), "out"), place("out"))


def test_files_that_arrive_are_fitted_like_those_before(tmp_path: Path):
    flow = Flow("arriving")
    source = Parquet(str(parquet(tmp_path, a=OLD, b=NEW)), columns=IDS, schema="widen", watch=0.01, until="_DONE")
    (tmp_path / "_DONE").touch()
    flow.read(source, name="people").write(Collect(), name="done")
    done = simulate(flow, seeds=range(5)).outputs["done"]
    assert {row["id"]: tuple(row) for row in done} == {
        **dict.fromkeys((1, 2), ("id", "name")),
        **dict.fromkeys((3, 4), ("id", "name", "age")),
    }


def test_columns_are_the_same_under_crashes(tmp_path: Path):
    flow = Flow("drift")
    source = Parquet(str(parquet(tmp_path, a=OLD, b=NEW)), columns=IDS, schema="ignore")
    flow.read(source, name="people").write(Collect(), name="done")
    done = simulate(flow, seeds=range(10)).outputs["done"]
    assert sorted(row["id"] for row in done) == [1, 2, 3, 4]
    assert {tuple(row) for row in done} == {("id", "name")}
