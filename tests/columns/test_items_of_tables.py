"""`Items` of a table: its rows are the records, and columns where columns are wanted."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from backedge import BadOptionError, Collect, Flow, Items, simulate


class Frame:
    """What frames of pandas and polars, and tables of Arrow, have in common."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)


TABLE = pa.table({"id": pa.chunked_array([[1], [2, 3]]), "name": ["a", None, "c"]}, metadata={"pandas": "an index"})
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": "c"}]


@pytest.mark.parametrize("table", [TABLE, Frame(TABLE)], ids=["arrow", "frame"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_rows_are_records_each_once_also_after_crashes(table: Any, tasks: int):
    flow = Flow("table")
    rows = flow.read(Items(table), name="rows", parallelism=tasks)
    rows.map(lambda row: {**row, "seen": True}, name="seen").write(Collect(), name="done")
    found = simulate(flow, seeds=range(3), crashes=2).outputs["done"]
    assert sorted(found, key=lambda row: row["id"]) == [{**row, "seen": True} for row in ROWS]


def test_an_operator_on_columns_gets_columns():
    flow = Flow("table")
    names: list[Any] = []
    rows = flow.read(Items(TABLE), name="rows")
    rows.map_batches(lambda table: names.append(table.schema) or table, batch_format="pyarrow").write(Collect())
    simulate(flow, seeds=range(1))
    assert names and all(schema == TABLE.schema.remove_metadata() for schema in names)


def test_a_series_is_no_table():
    with pytest.raises(BadOptionError, match=r"of type ChunkedArray.*Items\(list\(series\)\)"):
        Items(pa.chunked_array([[1, 2]]))


def test_a_table_without_rows_is_read_and_ends():
    source = Items(Frame(TABLE.slice(0, 0)))
    assert len(pickle.loads(pickle.dumps(source)).records) == 0
    flow = Flow("table")
    flow.read(source, name="rows").write(Collect(), name="done")
    assert simulate(flow, seeds=range(1)).outputs["done"] == []
