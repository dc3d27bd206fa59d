"""Columns from Parquet and into it, without a look at a row; beside records; and into sinks of records."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow
from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.batches.columns import Columns, as_records
from backedge.engine.io.files.checks import check_sink
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import UnwritableRecordError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.io.files.parquet_part import ParquetPart
from backedge.engine.io.files.services import FileServices
from backedge.engine.io.memory import ListStore, ListWriter
from tests.columns.given import columns
from tests.files.opened import (
    AT_ONCE,
    JOB,
    Deliveries,
    folder_store,
    publish,
    reader,
    stage,
    transaction,
    visible,
    writer,
)
from tests.runtime.tasks import Tasks


def test_parquet_is_read_as_columns_and_goes_on_from_a_position(tmp_path: Path):
    parquet().write_table(
        arrow().table({"n": list(range(50)), "s": [None] * 50}), tmp_path / "a.parquet", row_group_size=20
    )
    reading = reader(Parquet(str(tmp_path)))
    first = reading.read(7)
    assert isinstance(first, Columns)
    rest = reader(Parquet(str(tmp_path)), positions=reading.positions())
    found = [as_records(rest.read(100)) for _ in range(3)]
    assert [row["n"] for rows in [first, *found] for row in rows] == list(range(50))


def test_what_a_file_says_beside_its_values_does_not_travel(tmp_path: Path):
    field = arrow().field("n", arrow().int64(), nullable=False, metadata={"unit": "m"})
    schema = arrow().schema([field], metadata={"pandas": "x" * 10_000})
    parquet().write_table(arrow().table({"n": [1]}, schema=schema), tmp_path / "a.parquet")
    read = reader(Parquet(str(tmp_path))).read(10)
    assert read.batch.schema.equals(columns(n=[1]).batch.schema, check_metadata=True)


def test_a_file_whose_values_are_no_columns_is_read_as_records(tmp_path: Path):
    values = arrow().array([["a"]], arrow().list_(arrow().dictionary(arrow().int32(), arrow().string())))
    parquet().write_table(arrow().table({"v": values}), tmp_path / "a.parquet")
    assert reader(Parquet(str(tmp_path))).read(10) == [{"v": ["a"]}]


def run(flow: Flow, folder: Path, parallelism: int = 2) -> Tasks:
    """Run a flow between files to its end and publish what it wrote."""
    services: Any = FileServices(JOB, folder_store(folder / "staging"), Deliveries(), run="5f3a")
    for operator in flow.plan().operators.values():
        if operator.name == "out":
            check_sink(operator, services.place(operator))
    tasks = Tasks(flow, parallelism, services=services)
    tasks.run(records_max=64)
    tasks.capture(epoch=1)
    for runtime in tasks.runtimes.values():
        runtime.commit([transaction.name for transaction in runtime.transactions])
    return tasks


def root(arrays: dict[str, Any]) -> dict[str, Any]:
    arrays["root"] = np.sqrt(arrays["n"])
    return arrays


def half(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array[arrays["n"] % 2 == 0] for name, array in arrays.items()}


def test_from_parquet_to_parquet_no_row_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in").mkdir()
    table = arrow().table(
        {"n": list(range(500)), "k": [n % 7 for n in range(500)], "s": [f"name {n}" for n in range(500)]}
    )
    parquet().write_table(table, tmp_path / "in" / "a.parquet", row_group_size=100)
    flow = Flow("columns")
    rooted = flow.read(Parquet(str(tmp_path / "in")), name="in").map_batches(root, batch_format="numpy", name="root")
    halved = rooted.key_by("k").map_batches(half, batch_format="numpy", name="half")
    halved.write(Parquet(str(tmp_path / "out"), **AT_ONCE), name="out")

    def refuse(columns: Columns) -> list[Any]:
        raise RuntimeError(f"{columns} become records")

    monkeypatch.setattr(Columns, "to_records", refuse)
    run(flow, tmp_path)
    files = visible(tmp_path / "out")
    assert len(files) == 2
    found = [row for name in files for row in parquet().ParquetFile(tmp_path / "out" / name).read().to_pylist()]
    expected = [{**row, "root": row["n"] ** 0.5} for row in table.to_pylist() if row["n"] % 2 == 0]
    assert sorted(found, key=lambda row: row["n"]) == expected


@pytest.mark.parametrize("kind", [JsonLines, CSV, Parquet, Collect])
def test_every_sink_takes_columns(tmp_path: Path, kind: Any):
    given = Deliveries()
    services = FileServices(JOB, folder_store(tmp_path / "staging"), given, run="5f3a")
    opened = writer(kind() if kind is Collect else kind(str(tmp_path / "out"), **AT_ONCE), opened=services)
    opened.write(columns(n=[1, 2], s=["a", "b"]))
    publish(opened, columns(n=[3], s=["c"])[1:], transaction(1))
    records = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    if kind is Collect:
        assert given.all[0][2] == records
        return
    (name,) = visible(tmp_path / "out")
    path = tmp_path / "out" / name
    if kind is JsonLines:
        assert [json.loads(line) for line in path.read_text().splitlines()] == records
    elif kind is CSV:
        assert path.read_text() == "n,s\n1,a\n2,b\n"
    else:
        assert parquet().ParquetFile(path).read().to_pylist() == records


def test_a_sink_in_memory_keeps_columns_as_records():
    store = ListStore()
    kept = ListWriter("out", store)
    stage(kept, columns(n=[1]), "t")
    assert store.prepared["t"] == ("out", [{"n": 1}])


# -- row groups --------------------------------------------------------------------------------------------------


def groups(folder: Path, *batches: Any, types: Any = None) -> tuple[list[dict[str, Any]], dict[str, str], list[int]]:
    """Write a file in row groups of four: its rows, the types of its columns, the rows in each group."""
    part = ParquetPart(Disk(), folder / "part", "out", {} if types is None else types, rows_max=4)
    for batch in batches:
        part.write(batch)
    part.close()
    file = parquet().ParquetFile(folder / "part")
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    return file.read().to_pylist(), {field.name: str(field.type) for field in file.schema_arrow}, sizes


def test_columns_are_gathered_to_row_groups(tmp_path: Path):
    batches = [columns(n=[n, n + 1]) for n in range(0, 10, 2)]
    rows, kinds, sizes = groups(tmp_path, *batches, columns(n=list(range(10, 16))))
    assert [row["n"] for row in rows] == list(range(16))
    assert kinds == {"n": "int64"}
    assert sizes == [4, 4, 6, 2]


SMALL = columns(n=np.array([1] * 4, "i2"), x=np.array([0.5] * 4, "f4"))
ARRAY = np.arange(12.0).reshape(2, 3, 2)
GROUPS: dict[str, tuple[list[Any], list[Any], dict[str, str]]] = {
    "types that Python does not have": (
        [SMALL, SMALL],
        [{"n": 1, "x": 0.5}] * 8,
        {"n": "int16", "x": "float"},
    ),
    "records that fit into the narrower types of columns": (
        [SMALL, [{"n": -7, "x": 1.5}, {"n": None, "x": 0.25}]],
        [{"n": 1, "x": 0.5}] * 4 + [{"n": -7, "x": 1.5}, {"n": None, "x": 0.25}],
        {"n": "int16", "x": "float"},
    ),
    "records that do not": (
        [SMALL, [{"n": 70_000, "x": 0.1}]],
        [{"n": 1, "x": 0.5}] * 4 + [{"n": 70_000, "x": 0.1}],
        {"n": "int64", "x": "double"},
    ),
    "wider columns": (
        [columns(n=[1.5] * 4), columns(n=[2, 3])],
        [{"n": 1.5}] * 4 + [{"n": 2.0}, {"n": 3.0}],
        {"n": "double"},
    ),
    "columns that differ within a row group": (
        [columns(a=[1]), columns(a=[2], b=["x"]), columns(b=["y"])],
        [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": "y"}],
        {"a": "int64", "b": "string"},
    ),
    "columns that the file does not have": (
        [columns(a=[1] * 4), columns(a=[1], b=[2])],
        [{"a": 1, "b": None}] * 4 + [{"a": 1, "b": 2}],
        {"a": "int64", "b": "int64"},
    ),
    "arrays as lists": (
        [columns(v=arrow().FixedShapeTensorArray.from_numpy_ndarray(ARRAY))],
        [{"v": row} for row in ARRAY.tolist()],
        {"v": "list<element: list<element: double>>"},
    ),
}


@pytest.mark.parametrize(("batches", "rows", "kinds"), GROUPS.values(), ids=GROUPS)
def test_the_columns_of_a_file_have_the_types_that_hold_all_of_its_batches(
    tmp_path: Path, batches: list[Any], rows: list[Any], kinds: dict[str, str]
):
    found, types, sizes = groups(tmp_path, *batches)
    assert (found, types, len(sizes)) == (rows, kinds, -(-len(rows) // 4))


@pytest.mark.parametrize("first", ["records", "columns"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_columns_and_records_go_into_one_file(tmp_path: Path, first: str, size: int):
    records = [{"n": n, "s": str(n), "t": [n]} for n in range(20)]
    parts = [records[at : at + size] for at in range(0, 20, size)]
    mixed = [
        columns(**{k: [r[k] for r in part] for k in part[0]}) if (number % 2 == 0) == (first == "columns") else part
        for number, part in enumerate(parts)
    ]
    rows, kinds, _ = groups(tmp_path, *mixed)
    assert rows == records
    assert kinds == {"n": "int64", "s": "string", "t": "list<element: int64>"}


def test_a_column_of_nothing_takes_the_type_that_it_had(tmp_path: Path):
    types: dict[str, Any] = {}
    groups(tmp_path, columns(a=["x"], at=[datetime(2020, 1, 1)]), types=types)
    rows, kinds, _ = groups(tmp_path, columns(a=[None], at=[None]), types=types)
    assert rows == [{"a": None, "at": None}]
    assert kinds == {"a": "string", "at": "timestamp[us]"}


def test_a_type_that_parquet_does_not_have_is_told(tmp_path: Path):
    spans = arrow().array([(1, 2, 3)], arrow().month_day_nano_interval())
    with pytest.raises(UnwritableRecordError, match="month_day_nano_interval"):
        groups(tmp_path, columns(span=spans))
