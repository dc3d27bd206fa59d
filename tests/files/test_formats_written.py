"""What sinks write can be read, by us and by others, and what cannot be written is told with sink and record."""

from __future__ import annotations

import csv
import json
import math
import os
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.batches.columns import Records
from backedge.engine.batches.formats import from_format
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import UnwritableRecordError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.io.files.parquet_part import ParquetPart
from tests.files.opened import AT_ONCE, KINDS, publish, reader, rest, transaction, visible, writer


class Color(Enum):
    RED = 1


def written(folder: Path, kind: Any, *batches: Records) -> Path:
    """The one file that these batches make."""
    opened = writer(kind(str(folder), **AT_ONCE))
    for batch in batches:
        opened.write(batch)
    assert opened.prepare(transaction(1))
    opened.commit(transaction(1))
    (name,) = visible(folder)
    return folder / name


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sink_writes_a_source_reads(tmp_path: Path, kind: Any):
    records = [{"a": str(n), "b": 'x,"\n' * (n % 3), "é": "ü"} for n in range(10)]
    path = written(tmp_path / "out", kind, records[:4], [], records[4:])
    assert (
        path.name == f"part-5f3a.out.0.attempt-1.epoch-1.{ {JsonLines: 'jsonl', CSV: 'csv', Parquet: 'parquet'}[kind] }"
    )
    source: Any = kind(str(tmp_path / "out"), **AT_ONCE)
    assert rest(reader(source)) == records


def test_json_lines_hold_any_json(tmp_path: Path):
    records: list[Any] = [1, None, "\ud800 é\u2028", [1.5, {"a": True}], {"n": np.int64(3), "f": np.float32(0.5)}]
    path = written(tmp_path, JsonLines, records)
    expected = [*records[:-1], {"n": 3, "f": 0.5}]
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected


NO_JSON: list[Any] = [
    *(math.nan, {1, 2}, b"x", object(), threading.Lock(), {("a", 1): 2}, np.datetime64("2024-01-01", "ns")),
    np.timedelta64(5, "ns"),
    *({1: "a", "1": "b"}, [{"true": 1, True: 2}], {"inner": ({None: 1, "null": [2]},)}),
]
REFUSED: list[tuple[Any, str, Records, str]] = [
    *((JsonLines, "JSON", [{"id": 1}, {"id": 2, "v": value}], "\n  record: {'id': 2, 'v': ") for value in NO_JSON),
    (CSV, "CSV", [{"a": 1}, "text"], "it has no columns\n  record: 'text'"),
    (CSV, "CSV", [dict[str, int]()], "it has no columns"),
    (CSV, "CSV", [{1: 2}], "a column whose name is not text"),
    (CSV, "CSV", [{"a": 1}, {"a": [1]}], "it contains a list, which is no text, number, truth value, date or time\n"),
    *((CSV, "CSV", [{"a": value}], type(value).__name__) for value in (b"x", np.arange(9), object(), Color.RED, 1j)),
    (CSV, "CSV", [{"a": "\ud800"}], "UnicodeEncodeError"),
    (CSV, "CSV", from_format({"id": np.array([1]), "emb": np.arange(2000.0).reshape(1, -1)}), "ndarray"),
    *((Parquet, "Parquet", [{"n": 1}, row], f"record: {row!r}\n  map records") for row in ("text", {}, {1: 2}, None)),
    (Parquet, "Parquet", [*({"n": n} for n in range(100)), {"n": "x"}, {"n": 1}], "record: {'n': 'x'}"),
]


@pytest.mark.parametrize(("kind", "form", "records", "named"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_format_does_not_have_is_told_with_sink_and_record(
    tmp_path: Path, kind: Any, form: str, records: Records, named: str
):
    with pytest.raises(UnwritableRecordError) as refused:
        written(tmp_path, kind, records)
    said = str(refused.value)
    assert said.startswith(f"sink 'out' cannot write a record as {form}: ") and named in said


def test_a_batch_that_cannot_be_written_leaves_nothing_of_itself(tmp_path: Path):
    opened = writer(JsonLines(str(tmp_path), **AT_ONCE))
    opened.write([1])
    with pytest.raises(UnwritableRecordError):
        opened.write([2, object()])
    opened.prepare(transaction(1))
    opened.commit(transaction(1))
    assert rest(reader(JsonLines(str(tmp_path), **AT_ONCE))) == [1]


def test_keys_that_are_no_text_become_text(tmp_path: Path):
    path = written(tmp_path, JsonLines, [{1: [{2.5: {None: "x"}}], "1.0": True}])
    assert json.loads(path.read_text()) == {"1": [{"2.5": {"null": "x"}}], "1.0": True}


def test_csv_has_the_columns_of_its_first_record_in_that_order(tmp_path: Path):
    path = written(tmp_path, CSV, [{"b": 1, "a": None}], [{"a": True, "b": 1.5}])
    assert path.read_text() == "b,a\n1,\n1.5,True\n"


@pytest.mark.parametrize("text", ["a\rb", "\r", "\r\n", "\n", '"', ",", "", " x ", "'", "\0", "é\u2028"])
def test_any_text_survives_csv(tmp_path: Path, text: str):
    path = written(tmp_path, CSV, [{"a": text}, {"a": "next"}])
    assert rest(reader(CSV(str(tmp_path), **AT_ONCE))) == [{"a": text}, {"a": "next"}]
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["a"], [text], ["next"]]


def test_csv_of_one_cut_has_the_columns_of_all_records(tmp_path: Path):
    records = [{"a": 'x,"\n', "b": "\r"}, {"b": ""}, {"c": "1", "a": "\n"}, {"d é": "2"}, {"a": "3"}]
    path = written(tmp_path, CSV, *([record] for record in records))
    columns = ["a", "b", "c", "d é"]
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [columns, *([record.get(name, "") for name in columns] for record in records)]
    assert written(tmp_path / "at once", CSV, records).read_bytes().replace(b'"', b"") == (
        path.read_bytes().replace(b'"', b"")
    )


def test_the_columns_of_the_next_file_are_its_own(tmp_path: Path):
    opened = writer(CSV(str(tmp_path), **AT_ONCE))
    for epoch, record in enumerate([{"a": 1}, {"b": 2}]):
        publish(opened, [record], transaction(epoch))
    assert rest(reader(CSV(str(tmp_path), **AT_ONCE))) == [{"a": "1"}, {"b": "2"}]


def test_parquet_unites_the_columns_and_types_of_its_first_rows(tmp_path: Path):
    path = written(tmp_path, Parquet, [{"a": 1}], [{"a": 2.5, "b": None}], [{"b": "x", "c": [1]}])
    assert parquet().read_table(path).to_pylist() == [
        {"a": 1.0, "b": None, "c": None},
        {"a": 2.5, "b": None, "c": None},
        {"a": None, "b": "x", "c": [1]},
    ]


def rows_in_groups(path: Path, *batches: list[Any]) -> list[int]:
    """Write Parquet in row groups of four; the number of rows in each."""
    part = ParquetPart(Disk(), path, "out", {}, rows_max=4)
    for batch in batches:
        part.write(batch)
    part.close()
    metadata: Any = parquet().ParquetFile(path).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def test_parquet_is_written_in_row_groups_and_later_ones_may_lack_columns(tmp_path: Path):
    records = [{"n": n, "s": str(n)} if n < 6 else {"n": n} for n in range(11)]
    assert rows_in_groups(tmp_path / "a.parquet", records[:3], records[3:]) == [7, 4]
    rows: list[Any] = parquet().read_table(tmp_path / "a.parquet").to_pylist()
    assert rows == [{"n": n, "s": str(n) if n < 6 else None} for n in range(11)]


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ({"n": 1}, {"n": 2, "late": "x"}),
        ({"n": 1}, {"late": [1]}),
        ({"n": None}, {"n": "x"}),
        ({"n": []}, {"n": ["x"]}),
        ({"n": {"a": 1}}, {"n": {"a": 2, "b": [None]}}),
        ({"n": 1}, {"n": 2.5}),
        ({"n": [1]}, {"n": [2.5]}),
        ({"n": Decimal("1.5")}, {"n": Decimal("1000.25")}),
    ],
)
def test_parquet_of_one_cut_has_the_columns_and_types_of_all_records(
    tmp_path: Path, before: dict[str, Any], later: dict[str, Any]
):
    path = tmp_path / "a.parquet"
    assert rows_in_groups(path, [before] * 8, [later] * 4, [before]) == [4, 4, 4, 1]
    expected: Any = arrow().Table.from_pylist([before, later] * 2, schema=parquet().read_schema(path)).to_pylist()
    assert parquet().read_table(path).to_pylist() == [expected[0]] * 8 + [expected[1]] * 4 + [expected[0]]
    assert expected[0].keys() == {**before, **later}.keys()
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_an_integer_that_a_later_fraction_would_round_is_told(tmp_path: Path):
    with pytest.raises(UnwritableRecordError, match=str(2**60 + 1)):
        rows_in_groups(tmp_path / "a", [{"n": 2**60 + 1}] * 4, [{"n": 0.5}] * 4)


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("a", b"a"),
        (b"a", "a"),
        (datetime(2020, 1, 1, 5), datetime(2020, 1, 1, 5, tzinfo=UTC)),
        (datetime(2020, 1, 1, 5, tzinfo=UTC), datetime(2020, 1, 1, 5)),
        (1.5, Decimal("1.55")),
    ],
)
def test_a_value_that_the_type_of_the_rows_before_would_change_is_told(tmp_path: Path, before: Any, value: Any):
    with pytest.raises(UnwritableRecordError, match="column 'n'"):
        rows_in_groups(tmp_path / "a", [{"n": before}] * 4, [{"n": value}] * 4)


@pytest.mark.parametrize(
    ("before", "value"),
    [
        (date(2020, 1, 1), datetime(2020, 1, 1, 5)),
        (datetime(2020, 1, 1, 5, tzinfo=UTC), datetime(2020, 1, 1, 5)),
        (time(5), time(5, tzinfo=UTC)),
        ("a", b"a"),
    ],
)
@pytest.mark.parametrize("within", [lambda n: [n], lambda n: {"m": n}, lambda n: [{"m": (n,)}]])
def test_values_within_others_do_not_change_beside_one_another(
    tmp_path: Path, within: Callable[[Any], Any], before: Any, value: Any
):
    fine = written(tmp_path / "fine", Parquet, [{"n": within(before)}, {"n": None}, {"n": within(before)}])
    assert len(parquet().read_table(fine)) == 3
    with pytest.raises(UnwritableRecordError, match="column 'n' does not go with the rows before: TypeError: it "):
        written(tmp_path / "out", Parquet, [{"n": within(before)}, {"n": None}, {"n": within(value)}])


@pytest.mark.parametrize("value", ["text", [1], 2**70])
def test_a_value_that_does_not_go_with_the_rows_before_is_told(tmp_path: Path, value: Any):
    said = r"(?s)sink 'out' cannot .* as Parquet: column 'n' does not go as int64.*record: \{'n': .*, 'm': 5\}"
    with pytest.raises(UnwritableRecordError, match=said):
        records = [{"n": 4, "m": 4}, {"n": value, "m": 5}, {"n": 6, "m": 6}]
        rows_in_groups(tmp_path / "a", [{"n": n, "m": n} for n in range(4)], records, [{}.fromkeys("nm", 7)] * 3)


def test_a_column_of_nothing_takes_the_type_it_had_in_the_file_before(tmp_path: Path):
    opened = writer(Parquet(str(tmp_path), **AT_ONCE))
    for epoch, value in enumerate(["x", None, "y"]):
        publish(opened, [{"s": value}], transaction(epoch))
    schemas = {str(parquet().read_schema(tmp_path / name).field("s").type) for name in visible(tmp_path)}
    assert schemas == {"string"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_changed_after_it_was_written_is_published_as_it_was(tmp_path: Path, kind: Any):
    inner: list[Any] = [1]
    record: dict[str, Any] = {"n": "1", "m": "2" if kind is CSV else inner}
    opened = writer(kind(str(tmp_path), **AT_ONCE))
    opened.write([record])
    record["n"] = "changed"
    inner.append(2)
    opened.prepare(transaction(1))
    opened.commit(transaction(1))
    source: Any = kind(str(tmp_path), **AT_ONCE)
    assert rest(reader(source)) == [{"n": "1", "m": "2" if kind is CSV else [1]}]
