"""What becomes of columns that a table lacks, and of values that its columns do not hold."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backedge import UnwritableRecordError
from backedge.engine.batches.columns import Columns
from backedge.engine.io.files.input_columns import Schema
from backedge.engine.io.lakes.new_columns import TableColumns
from tests.databases.sinks_by_hand import transaction
from tests.every import every
from tests.files.opened import publish
from tests.lakes.lakes_by_hand import Lake, by_hand, lake, records

__all__ = ["lake"]

FIELDS = [pa.field("id", pa.int64(), nullable=False), ("share", pa.float64()), ("name", pa.string())]


def columns_of(*fields: Any, new: Schema = "fail") -> TableColumns:
    return TableColumns("out", "'rows'", pa.schema(list(fields)), new, lambda kind: None)


def checked(columns: TableColumns, *records: Any) -> list[dict[str, Any]]:
    return columns.check(list(records)).to_records()


def test_records_become_columns_of_the_table():
    found = checked(columns_of(*FIELDS), {"name": "x", "id": 1, "share": 2}, {"id": np.int32(2)})
    assert found == [{"id": 1, "share": 2.0, "name": "x"}, {"id": 2, "share": None, "name": None}]
    columns = Columns(pa.record_batch({"id": pa.array([3], pa.int8()), "name": pa.array(["y"], pa.large_string())}))
    assert columns_of(*FIELDS).check(columns).to_records() == [{"id": 3, "share": None, "name": "y"}]


def test_a_new_column_is_refused_by_name_with_its_record_and_what_to_do():
    with pytest.raises(UnwritableRecordError, match=r"(?s)no column 'colour'.*record: .*'id': 2.*schema=\"widen\""):
        checked(columns_of(*FIELDS), {"id": 1}, {"id": 2, "colour": "red"})
    with pytest.raises(UnwritableRecordError, match="no column 'colour'"):
        columns_of(*FIELDS).check(Columns(pa.record_batch({"id": [1], "colour": ["red"]})))


def test_a_new_column_is_left_out_if_asked_for():
    assert checked(columns_of(("id", pa.int64()), new="ignore"), {"id": 1, "colour": "red"}) == [{"id": 1}]
    with pytest.raises(UnwritableRecordError, match="map records to dicts with columns of the table: id"):
        checked(columns_of(("id", pa.int64()), new="ignore"), {"colour": "red"})


def test_a_new_column_has_the_widest_type_of_its_sort():
    columns = columns_of(("id", pa.int64()), new="widen")
    checked(columns, {"id": 1, "colour": None})
    checked(columns, {"id": 1, "n": np.int8(1), "x": np.float32(0.5), "at": datetime(2026, 1, 1, tzinfo=UTC)})
    found = columns.check([{"id": 2, "n": 2**40, "colour": "red", "of": [{"a": 1}], "price": Decimal("1.5")}])
    assert {field.name: str(field.type) for field in found.batch.schema} == {
        **{"id": "int64", "n": "int64", "x": "double", "at": "timestamp[us, tz=UTC]", "colour": "string"},
        **{"of": "list<item: struct<a: int64>>", "price": "decimal128(2, 1)"},
    }


@every(
    ("record", "told"),
    [
        ({"id": 2, "share": "0.5"}, r"(?s)'share' cannot hold a value as double.*'share': '0.5'"),
        ({"id": 2.5}, r"(?s)'id' cannot hold a value as int64.*truncated.*'id': 2.5"),
        ({"id": True}, "'id' cannot hold"),
        ({"id": 2**63}, "'id' cannot hold"),
        ({"id": 2, "name": 5}, "'name' cannot hold"),
        ({"id": 2, "share": 2**53 + 1}, "'share' cannot hold"),
        ({"share": 0.5}, r"(?s)'id' is lacking, which the table requires.*'share': 0.5"),
        ((2, "x"), r"(?s)no columns.*\(2, 'x'\)"),
        ({2: "x"}, r"(?s)not text.*\{2: 'x'\}"),
    ],
)
def test_a_record_that_does_not_fit_is_named(record: Any, told: str):
    with pytest.raises(UnwritableRecordError, match=told):
        checked(columns_of(*FIELDS), {"id": 1, "share": 1}, record)


SHARE = pa.float32()


@pytest.mark.parametrize(
    ("kind", "fits", "changes"),
    [
        (SHARE, [0.5, None, -0.0, float("inf"), 2**24], [0.1, 1e300, 2**24 + 1]),
        (pa.list_(SHARE), [[0.5, None], [], None], [[0.5, 0.1]]),
        (pa.struct([("a", SHARE), ("b", pa.list_(SHARE))]), [{"b": [0.5]}, {"a": 0.5, "b": None}], [{"b": [0.1]}]),
    ],
)
def test_a_number_is_not_rounded(kind: Any, fits: list[Any], changes: list[Any]):
    columns = columns_of(("share", kind))
    taken = pa.array(fits, kind).to_pylist()
    assert checked(columns, *({"share": value} for value in fits)) == [{"share": value} for value in taken]
    for value in changes:
        with pytest.raises(UnwritableRecordError, match="'share' cannot hold a value as"):
            checked(columns, {"share": value})
    assert np.isnan(checked(columns_of(("share", SHARE)), {"share": float("nan")})[0]["share"])


def test_a_number_in_a_map_is_not_rounded():
    columns, wide = columns_of(("shares", pa.map_(pa.string(), SHARE))), pa.map_(pa.string(), pa.float64())
    batch = pa.record_batch({"shares": pa.array([[("a", 0.1)], [("b", 0.5)], None], wide)})
    assert len(columns.check(Columns(batch.slice(1)))) == 2
    with pytest.raises(UnwritableRecordError, match="more digits"):
        columns.check(Columns(batch))


@pytest.mark.parametrize("value", [timedelta(1), [], {"a": None}, 1j])
def test_a_new_column_that_no_table_has_is_refused(value: Any):
    with pytest.raises(UnwritableRecordError, match="'new' cannot hold"):
        checked(columns_of(("id", pa.int64()), new="widen"), {"id": 1}, {"id": 2, "new": value})


@pytest.mark.parametrize(("name", "told"), [("ID", "has a column 'id'"), ("", "it has no name")])
def test_a_column_whose_name_no_table_takes_is_refused_before_the_cut(lake: Lake, name: str, told: str):
    writer = lake.writer(schema="widen")
    publish(writer, records(1), transaction(1))
    with pytest.raises(UnwritableRecordError, match=f"(?s)column '{name}' cannot be added: .*{told}.*record: .*5"):
        writer.write([{"id": 3}, {"id": 4, name: 5}])


def test_a_table_gets_the_columns_of_its_first_records_and_then_refuses_others(lake: Lake):
    writer = lake.writer()
    publish(writer, records(1), transaction(1))
    with pytest.raises(UnwritableRecordError, match="no column 'colour'"):
        writer.write([{"id": 2, "colour": "red"}])
    with pytest.raises(UnwritableRecordError, match="no column 'colour'"):
        lake.writer(attempt=2).write([{"id": 2, "colour": "red"}])


def test_columns_are_added_to_the_table_with_the_rows_that_have_them(lake: Lake):
    lake.create(by_hand(1).schema)
    writer = lake.writer(schema="widen")
    publish(writer, records(1), transaction(1))
    writer.write([{"id": 2, "colour": "red", "nothing": None}])
    publish(writer, [{"id": 3, "sizes": [1]}], transaction(2))
    assert sorted(lake.rows(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "n1", "colour": None, "sizes": None},
        {"id": 2, "name": None, "colour": "red", "sizes": None},
        {"id": 3, "name": None, "colour": None, "sizes": [1]},
    ]
    assert lake.commits() == 2


def test_a_column_that_another_program_has_added_stays_empty(lake: Lake):
    writer = lake.writer()
    publish(writer, records(1), transaction(1))
    lake.append(pa.table({"id": [2], "colour": ["red"]}))
    publish(writer, records(3), transaction(2))
    assert sorted((row["id"], row["colour"]) for row in lake.rows()) == [(1, None), (2, "red"), (3, None)]


def test_a_column_that_the_table_requires_stays_required(lake: Lake):
    lake.create(pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
    writer = lake.writer(schema="widen")
    publish(writer, [{"id": 1, "more": 1}], transaction(1))
    with pytest.raises(UnwritableRecordError, match="'id' is lacking"):
        writer.write([{"name": "x"}])
    with pytest.raises(UnwritableRecordError, match="'id' is lacking"):
        lake.writer(attempt=2).write([{"name": "x"}])


def test_values_come_back_as_they_were_written(lake: Lake):
    row = {
        **{"id": 1, "on": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 6), "price": Decimal("12.30")},
        **{"then": datetime(2026, 1, 2, tzinfo=UTC), "raw": b"\0x", "yes": True, "of": {"a": [1.5, None], "b": "ä"}},
    }
    publish(lake.writer(), [row], transaction(1))
    assert lake.rows() == [row]
