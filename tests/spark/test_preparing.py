"""Raw input made ready for a flow: what fits, what is rejected and why, who reads what, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backedge import prepare, read_output
from backedge.command import main
from backedge.engine.io.files.file_formats import Parquet
from backedge.engine.io.files.locations import FolderLocation
from backedge.engine.io.files.parquet_split import ParquetSplit
from backedge.graphs.routing import key_group, task_of_group
from backedge.recovery.spark.prepare.prepared_files import deal_groups
from backedge.recovery.spark.spark_errors import PreparationError, SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = """account,amount,note
 a ,1,"one, quoted"
b,-5,below
c,many,no number
,7,no account
d,8
a,1,again
e,9,"two
lines"
"""
SCHEMA = "account STRING, amount BIGINT NOT NULL, note STRING"


def written(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder)


def rows_of(data: str | Path) -> list[dict[str, Any]]:
    return pq.read_table(str(data)).to_pylist()


def rejected_rows(target: str) -> list[dict[str, Any]]:
    lines = [line for file in sorted(Path(target, "rejected").iterdir()) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def parts(folder: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


# -- what fits ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_row_either_fits_or_is_rejected_with_its_reason(spark: SparkSession, tmp_path: Path):
    source, target = written(tmp_path / "in", "orders.csv", ORDERS), str(tmp_path / "out")
    made = prepare(
        spark, source, target, key="account", schema=SCHEMA, where="amount > 0", unique=["account", "amount"]
    )
    assert (made.rows_in, made.rows_out) == (7, 2)
    assert made.rejected == {"malformed": 2, "null": 1, "condition": 1, "duplicate": 1}
    found = sorted(rows_of(made.data), key=lambda row: row["account"])
    assert [(row["account"], row["amount"]) for row in found] == [("a", 1), ("e", 9)]
    assert found[1]["note"] == "two\nlines"
    told = {(row["reason"], row["detail"], row.get("line", "")) for row in rejected_rows(target)}
    assert told == {
        ("malformed", "amount", ""),
        ("malformed", "the line", "d,8"),
        ("null", "account", ""),
        ("condition", "amount > 0", ""),
        ("duplicate", "account, amount", ""),
    }
    (unfit,) = [row for row in rejected_rows(target) if row["detail"] == "amount"]
    assert unfit["record"] == {"account": "c", "amount": "many", "note": "no number"}


@pytest.mark.slow
def test_an_expression_mends_text_before_it_has_to_fit_its_type(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "prices.csv", 'id,price\n1,"1,200"\n2,7\n')
    clean = {"price": "replace(price, ',', '')", "double": "price * 2"}
    made = prepare(spark, source, str(tmp_path / "out"), schema="id INT, price BIGINT, double BIGINT", clean=clean)
    assert sorted(rows_of(made.data), key=lambda row: row["id"]) == [
        {"id": 1, "price": 1200, "double": 2400},
        {"id": 2, "price": 7, "double": 14},
    ]


@pytest.mark.slow
def test_json_lines_are_screened_alike(spark: SparkSession, tmp_path: Path):
    lines = ['{"id": 1, "of": {"x": 2}}', '{"id": "one"}', "{", '{"of": {"x": 1}}', '{"id": 1, "of": null}']
    source, target = written(tmp_path / "in", "a.jsonl", "\n".join(lines)), str(tmp_path / "out")
    made = prepare(spark, source, target, key="id", schema="id BIGINT, of STRUCT<x: INT>", unique=["id"])
    assert made.rejected == {"malformed": 2, "null": 1, "condition": 0, "duplicate": 1}
    assert [row["id"] for row in rows_of(made.data)] == [1]
    assert {row["line"] for row in rejected_rows(target) if row["reason"] == "malformed"} == {'{"id": "one"}', "{"}


def test_without_a_schema_spark_finds_the_types(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "a.csv", "id,share,name\n1,0.5,x\n2,,y\n")
    made = prepare(spark, source, str(tmp_path / "out"))
    assert made.schema == "`id` int, `share` double, `name` string"
    assert {"id": 2, "share": None, "name": "y"} in rows_of(made.data)
    assert made.key is None and made.tasks == 1


def test_without_a_schema_expressions_add_columns_too(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "a.csv", "id,name\n1,x\n")
    made = prepare(spark, source, str(tmp_path / "out"), clean={"upper": "upper(name)", "Name": "concat(name, '!')"})
    assert rows_of(made.data) == [{"id": 1, "name": "x!", "upper": "X"}]


def test_columns_that_begin_with_underscores_are_columns(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "a.jsonl", '{"__v": 1, "__line": "x", "_id": 7}\n')
    made = prepare(spark, source, str(tmp_path / "out"), key="__v", unique=["__v"])
    assert rows_of(made.data) == [{"__line": "x", "__v": 1, "_id": 7}]


def test_a_session_that_limits_the_rows_of_a_file_loses_none(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "a.csv", "id\n" + "".join(f"{number}\n" for number in range(10)))
    spark.conf.set("spark.sql.files.maxRecordsPerFile", 2)
    try:
        made = prepare(spark, source, str(tmp_path / "out"), where="id < 7")
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert sorted(row["id"] for row in rows_of(made.data)) == [*range(7)]
    assert len(rejected_rows(str(tmp_path / "out"))) == 3


def test_parquet_is_read_too_and_its_types_may_change(spark: SparkSession, tmp_path: Path):
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": ["1", " 2 ", "x"], "left out": [0, 0, 0]}), source)
    made = prepare(spark, str(source), str(tmp_path / "out"), key="id", schema="id BIGINT")
    assert sorted(row["id"] for row in rows_of(made.data)) == [1, 2]
    assert made.rejected["malformed"] == 1


# -- who reads what ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("BIGINT", range(-300, 300)),
        ("DOUBLE", [number / 4 for number in range(-300, 300)]),
        ("STRING", [f"kéy{number}" for number in range(600)]),
    ],
)
def test_each_task_reads_just_the_keys_that_it_keeps_and_what_is_told_of_a_file_is_in_it(
    spark: SparkSession, tmp_path: Path, kind: str, keys: Any
):
    rows = "".join(json.dumps({"key": key}) + "\n" for key in keys)
    source = written(tmp_path / "in", "a.jsonl", rows)
    made = prepare(spark, source, str(tmp_path / "out"), key="key", schema=f"key {kind}", tasks=3)
    assert made.tasks == 3 and len(made.files) == 3
    read: list[Any] = []
    splits = Parquet(made.data).list_splits()
    for task in range(3):
        for split in splits[task::3]:
            records = ParquetSplit(FolderLocation(made.data), split, 0).read(10_000).to_pylist()
            assert {task_of_group(key_group(record["key"]), 3) for record in records} == {task}
            read += [record["key"] for record in records]
    assert sorted(read) == sorted(keys)
    assert json.loads((tmp_path / "out" / "prepared.json").read_text()) == {**made.to_json(), "files": list(made.files)}
    for file in made.files:
        found = rows_of(Path(made.data, file["name"]))
        assert len(found) == file["rows"]
        assert sorted({key_group(row["key"]) for row in found}) == file["key_groups"]


@pytest.mark.parametrize(("tasks", "files"), [(1, 5), (2, 6), (3, 12), (4, 128)])
def test_files_are_dealt_so_that_none_is_empty_and_each_is_of_the_task_that_takes_it(tasks: int, files: int):
    dealt = deal_groups(range(0, 128, 3), tasks, files)
    assert set(dealt.values()) == set(range(max(dealt.values()) + 1))
    assert all(file % tasks == task_of_group(group, tasks) for group, file in dealt.items())
    assert len(set(dealt.values())) <= files


# -- the target --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_input_gives_the_same_files_in_place_of_the_former(spark: SparkSession, tmp_path: Path):
    source = written(tmp_path / "in", "a.jsonl", "".join(f'{{"id": {n % 7}, "at": {n}}}\n' for n in range(100)))
    target = str(tmp_path / "out")
    made = prepare(spark, source, target, key="id", unique=["id"])
    before = parts(made.data)
    (Path(made.data) / "left.parquet").write_text("not ours")
    assert prepare(spark, source, target, key="id", unique=["id"]) == made
    assert parts(made.data) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.slow
def test_a_target_that_is_a_link_is_replaced_where_it_leads(spark: SparkSession, tmp_path: Path):
    source, target = written(tmp_path / "in", "a.jsonl", '{"id": 1}\n'), tmp_path / "out"
    (tmp_path / "disk").mkdir()
    target.symlink_to(tmp_path / "disk")
    for _ in range(2):
        assert rows_of(prepare(spark, source, str(target)).data) == [{"id": 1}]
    assert target.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "in", "out"]


@pytest.mark.slow
def test_fewer_keys_than_tasks_are_laid_out_for_one_task_and_a_failure_leaves_what_was_there(
    spark: SparkSession, tmp_path: Path
):
    source, target = written(tmp_path / "in", "a.jsonl", '{"id": 1}\n'), str(tmp_path / "out")
    made = prepare(spark, source, target, key="id", tasks=8)
    assert (made.tasks, rows_of(made.data)) == (1, [{"id": 1}])
    before = parts(made.data)
    with pytest.raises(PreparationError, match="DIVIDE_BY_ZERO"):
        prepare(spark, source, target, key="id", clean={"id": "id div 0"})
    assert parts(f"{target}/data") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"key": "idd"}, "has no column 'idd', which is to be the key: its columns are id, day"),
        ({"unique": ["idd"]}, "has no column 'idd', which is to be unique"),
        ({"schema": "id BIGINT, size INT"}, "has no column 'size', which the schema names: its columns are id, day"),
        ({"schema": "id BIGINTT"}, "UNSUPPORTED_DATATYPE"),
        ({"schema": "BIGINT"}, "has no columns"),
        ({"key": "day"}, "has type date, but a key must be"),
        ({"where": "size > 1"}, "UNRESOLVED_COLUMN"),
        ({"where": "id >"}, "PARSE_SYNTAX_ERROR"),
        ({"where": "day"}, "DATATYPE_MISMATCH"),
        ({"clean": {"id": "nosuch(id)"}}, "UNRESOLVED_ROUTINE"),
        ({"format": "xml"}, "format 'xml' is not supported: give one of csv, json, parquet"),
        ({"format": "json"}, "holds no file ending in .json"),
        ({"tasks": 0}, "tasks=0 is not a valid parallelism: give a number from 1 to 128"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path, options: Mapping[str, Any], complaint: str
):
    source = written(tmp_path / "in", "a.csv", "id,day\n1,2024-01-01\n")
    with pytest.raises(SparkJobError) as refused:
        prepare(spark, source, str(tmp_path / "out"), **options)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_files_whose_headers_differ_are_refused(spark: SparkSession, tmp_path: Path):
    written(tmp_path / "in", "a.csv", "id,amount\n1,2\n")
    source = written(tmp_path / "in", "b.csv", "amount,id\n2,1\n")
    with pytest.raises(PreparationError, match=r"header"):
        prepare(spark, source, str(tmp_path / "out"))


# -- the command -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_tells_the_counts_even_if_nothing_fits(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, target = written(tmp_path / "in", "orders.csv", ORDERS), str(tmp_path / "out")
    words = ["prepare", source, target, "--key", "account", "--schema", SCHEMA, "--where", "amount > 0"]
    assert main([*words, "--unique", "account, amount", "--set", "note=upper(note)"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "7 rows in, 2 out, 5 rejected (2 malformed, 1 null, 1 condition, 1 duplicate)"
    assert said[1] == f"  {target}/data: 1 file by the key groups of 'account', for 1 task"
    source = written(tmp_path / "unfit", "a.jsonl", '{"id": null}\n')
    assert main(["prepare", source, target, "--key", "id", "--schema", "id INT", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows_in"], told["rows_out"], told["key"], told["rejected"]["null"]) == (1, 0, "id", 1)


def test_a_wrong_call_is_one_line_and_touches_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = written(tmp_path / "in", "a.csv", "id\n1\n")
    theirs = written(tmp_path / "theirs", "letter.txt", "dear")
    mixed = written(tmp_path / "mixed", "a.csv", "id\n1\n") and written(tmp_path / "mixed", "b.json", "{}")
    wrong = [
        ([f"{source}/no", "out"], "does not exist: give the path of a file or a folder"),
        ([theirs, "out"], "holds no file ending in .csv"),
        ([mixed, "out"], "files of several formats, such as 'a.csv' and 'b.json'"),
        ([source, theirs], "exists and is not an earlier preparation"),
        ([source, f"{source}/out"], "overlap: give a target outside the source"),
        ([source, str(tmp_path)], "overlap: give a target outside the source"),
        (["s3://bucket/in", "out"], "s3://bucket/in is not on this machine"),
        ([source, "out", "--set", "id"], "--set 'id' sets nothing: write COLUMN=SQL"),
        ([source, f"{theirs}/letter.txt/out"], "cannot be written"),
    ]
    for words, complaint in wrong:
        assert main(["prepare", *words]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith("backedge prepare: ") and complaint in said.err
    assert sorted(path.name for path in Path(theirs).iterdir()) == ["letter.txt"]


# -- what a flow has written -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "text"),
    [(".jsonl", '{"id": 1, "name": "a\\nb"}\n'), (".csv", 'id,name\n1,"a\nb"\n'), (".parquet", None)],
)
def test_spark_reads_what_is_published_and_no_more(spark: SparkSession, tmp_path: Path, ending: str, text: str | None):
    for name, schema in (("done", None), ("done [1], late", "id BIGINT, name STRING")):
        folder = tmp_path / name
        for place in (folder, folder / "_staging" / "prepared"):
            place.mkdir(parents=True)
            path = place / f"part-done.0.attempt-1.epoch-{len(place.parts)}{ending}"
            if text is None:
                pq.write_table(pa.table({"id": [1], "name": ["a\nb"]}), path)
            else:
                path.write_text(text)
        rows = read_output(spark, str(folder), schema).collect()
        assert [(row["id"], row["name"]) for row in rows] == [(1, "a\nb")]


def test_there_is_nothing_to_read_where_nothing_was_published(spark: SparkSession, tmp_path: Path):
    (tmp_path / "done" / "_staging").mkdir(parents=True)
    with pytest.raises(SparkJobError, match=str(tmp_path / "done")):
        read_output(spark, str(tmp_path / "done"))
