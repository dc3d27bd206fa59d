"""What values are as columns, as arrays and as records again, and which batches travel as records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.batches.columns import Columns, as_records, python_values, to_columns
from backedge.engine.batches.formats import from_format, to_format
from backedge.graphs.task_errors import MisuseError
from tests.columns.given import columns
from tests.every import every

NOON = datetime(2020, 2, 29, 12)


def objects(*values: Any) -> Any:
    """An array of these objects."""
    return np.fromiter(values, object, len(values))


def columns_from(batch: Any) -> Columns:
    made = from_format(batch)
    assert isinstance(made, Columns)
    return made


COLUMNS: dict[str, list[Any]] = {
    "whole numbers": [1, -2, 2**63 - 1],
    "floats": [1.5, -0.0, float("inf")],
    "truth values": [True, False, True],
    "text": ["a", "", "\u00e9\0z"],
    "bytes": [b"a", b"", b"a\0b"],
    "dates": [date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31)],
    "times": [NOON, datetime(1, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 1)],
    "spans": [timedelta(1), timedelta(microseconds=1), timedelta(-1)],
    "text and None": ["a", None, ""],
    "numbers and None": [1, None, 3],
    "floats and None": [1.5, None, float("inf")],
    "truth values and None": [True, None, False],
    "times and None": [NOON, None, NOON],
    "large numbers and None": [2**60 + 1, None, 3],
    "nothing": [None, None, None],
    "lists of text": [["a", None], [], ["b"]],
    "lists of truth values": [[True], [False], [True]],
    "lists and None": [[1], None, [2, 3]],
    "lists of different lengths": [[1, 2], [], [3]],
    "lists of equal lengths": [[1, 2], [3, 4], [5, 6]],
    "lists of lists": [[[1], []], [[2, 3]], []],
}


@every("values", COLUMNS.values())
def test_values_come_through_a_function_of_arrays_and_over_the_wire_as_they_were(values: list[Any]):
    records = [{"v": value, "n": number} for number, value in enumerate(values)]
    made = columns_from(to_format(records, "numpy"))
    again = columns_from(to_format(decode(encode(Batch(made))).records, "numpy"))
    assert again.to_records() == records
    assert [type(record["v"]) for record in again] == [type(value) for value in values]


@pytest.mark.parametrize("array", [objects(NOON, 1, "a"), np.array([NOON], "M8[ns]"), np.array([NOON.date()])], ids=str)
def test_a_value_is_the_same_whether_its_neighbours_are_a_column_or_not(array: Any):
    alone = as_records(from_format({"v": array}))
    beside = as_records(from_format({"v": array, "other": objects(*[1j] * len(array))}))
    assert [record["v"] for record in beside] == [record["v"] for record in alone]


def test_times_that_only_numpy_has_stay_its_own():
    array = np.array(["NaT", "10000-01-01"], "M8[M]")
    assert [record["at"] for record in as_records(from_format({"at": array}))] == [None, np.datetime64("10000-01")]
    for day in ("9999999-01-01", "-9999999-01-01"):
        records = as_records(from_format({"at": np.array(["NaT", day], "M8[D]")}))
        assert [record["at"] for record in records] == [None, np.datetime64(day)]


def test_an_array_of_arrow_among_arrays_is_a_column():
    assert from_format({"n": arrow().array([1, 2]), "x": np.array([0.5, 1])}) == columns(n=[1, 2], x=[0.5, 1.0])
    view = arrow().chunked_array([["a"]], arrow().string_view())
    assert from_format({"s": view}) == [{"s": "a"}]


@every("values", COLUMNS.values())
def test_a_function_sees_the_same_arrays_whether_records_or_columns_came(values: list[Any]):
    from_records: Any = to_format([{"v": value} for value in values], "numpy")["v"]
    from_columns: Any = to_format(columns(v=values), "numpy")["v"]
    assert from_records.dtype == from_columns.dtype
    assert from_records.shape == from_columns.shape
    assert from_records.tolist() == from_columns.tolist()


@every(
    ("values", "expected"),
    [
        ([1, 2], np.array([1, 2])),
        ([1, None], np.array([1, None], object)),
        ([1.5, None], np.array([1.5, None], object)),
        ([None], np.array([None], object)),
        ([True, False], np.array([True, False])),
        (["a", "bc"], np.array(["a", "bc"], object)),
        ([NOON, NOON], np.array([NOON, NOON], "M8[us]")),
        ([NOON, None], np.array([NOON, None], object)),
        ([NOON.date()], np.array([NOON.date()], "M8[D]")),
        ([[1, 2], [3, 4]], objects([1, 2], [3, 4])),
    ],
)
def test_columns_look_in_numpy_as_documented(values: list[Any], expected: Any):
    for records in ([{"v": value} for value in values], columns(v=values)):
        array = to_format(records, "numpy")["v"]
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("records", [[{"a": 1.0, "b": True}], columns(a=[1.0], b=[True])], ids=["records", "columns"])
def test_arrays_are_the_functions_own_and_may_be_written_to(records: Any):
    before = list(records)
    given: Any = to_format(records, "numpy")
    for array in given.values():
        array[:] = 0
    assert list(records) == before


@pytest.mark.parametrize("array", [np.arange(3), np.zeros((3, 2)), np.array(["a", "b", "c"], object)])
def test_what_a_function_returned_and_changes_later_is_not_what_was_sent(array: Any):
    before = array.copy()
    made = from_format({"v": array})
    array[:] = array[::-1].copy() + array[0]
    assert isinstance(made, Columns)
    np.testing.assert_array_equal(to_format(made, "numpy")["v"], before)


@every("kind", ["i1", "u1", "i2", "i4", "u4", "u8", "f2", "f4", ">i8", ">f4", "?", "M8[s]", "m8[ms]"])
def test_an_array_keeps_its_type_and_its_values(kind: str):
    array = np.array([0, 1, 3]).astype(kind)
    made = columns_from({"v": array})
    found: Any = to_format(made, "numpy")["v"]
    assert found.dtype == array.dtype.newbyteorder("=")
    assert made.to_records() == [{"v": value} for value in array.tolist()]


def test_an_array_in_a_file_is_a_column_like_any_other_and_copied_from_there(tmp_path: Path):
    np.save(tmp_path / "numbers.npy", np.arange(5))
    mapped = np.load(tmp_path / "numbers.npy", mmap_mode="r+")
    found = from_format({"n": mapped[1:4]})
    mapped[:] = 0
    assert found == columns(n=[1, 2, 3])


def test_what_a_masked_array_hides_is_missing():
    found = from_format({"n": np.ma.masked_array([1, 2], mask=[False, True])})
    assert [record["n"] for record in as_records(found)] == [1, None]


def test_arrays_of_text_and_bytes_of_numpy_are_text_and_bytes():
    made = columns_from({"s": np.array(["a\0b", ""]), "b": np.array([b"a\0b", b""])})
    assert made.to_records() == [{"s": "a\0b", "b": b"a\0b"}, {"s": "", "b": b""}]


@pytest.mark.parametrize("kind", ["f8", "f4", "i4"])
def test_an_array_of_several_dimensions_is_a_column_of_arrays(kind: str):
    array = np.arange(12).astype(kind).reshape(2, 3, 2)
    made = decode(encode(Batch(from_format({"v": array.transpose(0, 2, 1)})))).records
    assert isinstance(made, Columns)
    np.testing.assert_array_equal(to_format(made, "numpy")["v"], array.transpose(0, 2, 1))
    first, second = made.to_records()
    np.testing.assert_array_equal(second["v"], array[1].T)
    first["v"][:] = 7
    np.testing.assert_array_equal(second["v"], array[1].T)
    np.testing.assert_array_equal(to_format(made[1:], "numpy")["v"], array[1:].transpose(0, 2, 1))


@every("array", [np.ones((3, 2)), np.array([[True], [False]])])
def test_an_array_of_a_record_that_is_kept_keeps_none_of_other_records(array: Any):
    assert all(record["v"].base is None for record in as_records(from_format({"v": array})))


@every(
    "values",
    [
        np.array([1 + 2j, 3]),
        np.array([1, "a"], object),
        np.array([1, 2.5], object),
        np.array([True, 1], object),
        np.array([Fraction(1, 2), None], object),
        np.array([Decimal("1.0"), Decimal("1.25")], object),
        np.array([{"a": 1}, {}], object),
        np.array([NOON.replace(tzinfo=UTC), None], object),
        np.array([2**64, 1], object),
        np.array(["\ud800", "a"], object),
        np.array(["2020", "2021"], "M8[Y]"),
        np.array([[True], [False]]),
        np.ma.masked_array([1, 2], [True, False]),
        [(1, 2), (3,)],
    ],
)
def test_what_is_no_column_travels_as_records_with_the_values_as_they_are(values: Any):
    made = from_format({"v": values, "n": np.array([1, 2])})
    assert isinstance(made, list)
    expected: list[Any] = values.tolist() if hasattr(values, "ndim") and values.ndim == 1 else list(values)
    assert [type(record["v"]) for record in made] == [type(value) for value in expected]
    assert [record["v"] for record in made] == expected
    assert [record["n"] for record in made] == [1, 2]


def test_more_text_than_one_array_of_arrow_holds_travels_as_records(monkeypatch: pytest.MonkeyPatch):
    def array(values: Any, *kind: Any) -> Any:
        found = made(values, *kind)
        return arrow().chunked_array([found]) if kind == (arrow().string(),) else found

    made = arrow().array
    monkeypatch.setattr(arrow(), "array", array)
    assert from_format({"s": ["a", "b"], "n": np.array([1, 2])}) == [{"s": "a", "n": 1}, {"s": "b", "n": 2}]
    assert to_format([{"s": "a"}], "numpy")["s"].tolist() == ["a"]


def test_columns_whose_names_are_no_text_travel_as_records():
    assert from_format({1: np.array([5])}) == [{1: 5}]
    assert to_format([{1: 5}], "numpy")[1].tolist() == [5]
    with pytest.raises(MisuseError, match=r"a column is named 1, .* texts"):
        to_format([{1: 5}], "pyarrow")


def test_integers_among_floats_are_floats_if_these_hold_them():
    array = to_format([{"v": 1}, {"v": 2.5}], "numpy")["v"]
    assert array.dtype == np.float64 and array.tolist() == [1, 2.5]
    assert to_format([{"v": 2**53}, {"v": 2.5}], "numpy")["v"].tolist() == [2**53, 2.5]
    assert to_format([{"v": 2**53 + 1}, {"v": 2.5}], "numpy")["v"].dtype == object


@every("kind", ["f4", "i4", "u8", "c8", "?", "M8[s]", "M8[ns]"])
def test_scalars_and_arrays_of_one_type_of_numpy_are_an_array_of_it(kind: str):
    array = np.array([0, 1]).astype(kind)
    assert to_format([{"v": value} for value in array], "numpy")["v"].dtype == array.dtype
    found = to_format([{"v": np.array([value])} for value in array], "numpy")["v"]
    assert (found.dtype, found.shape) == (array.dtype, (2, 1))
    mixed = [{"v": array[0]}, {"v": np.float16(1)}]
    assert to_format(mixed, "numpy")["v"].dtype == object


def test_a_table_comes_back_whatever_it_is_made_of():
    table = arrow().table({"d": arrow().array(["a", "b", "a"]).dictionary_encode(), "n": [1, 2, 3]})
    made = to_columns(arrow().concat_tables([table, table]))
    assert isinstance(made, Columns)
    assert made.to_records() == table.to_pylist() * 2
    assert [str(kind) for kind in made.batch.schema.types] == ["string", "int64"]
    nested = (
        arrow()
        .table({"d": [["a"]]})
        .cast(arrow().schema([("d", arrow().list_(arrow().dictionary(arrow().int8(), arrow().string())))]))
    )
    assert to_columns(nested) == [{"d": ["a"]}]
    assert to_columns(table.slice(0, 0)) == []


def test_an_array_in_a_table_is_the_same_whether_the_columns_beside_it_travel_or_not():
    rows = np.arange(8).reshape(2, 2, 2)
    arrays = arrow().FixedShapeTensorArray.from_numpy_ndarray(rows)
    views = arrow().array(["a", "b"], arrow().string_view())
    for table in (arrow().table({"x": arrays, "s": views}), arrow().record_batch({"x": arrays, "s": views})):
        made = as_records(to_columns(table))
        assert [record["s"] for record in made] == ["a", "b"]
        np.testing.assert_array_equal(np.stack([record["x"] for record in made]), rows, strict=True)
    storage = arrow().array([[1, 2, 3, 4], None], arrow().list_(arrow().int64(), 4))
    missing = arrow().ExtensionArray.from_storage(arrays.type, storage)
    first, second = as_records(to_columns(arrow().table({"x": missing})))
    assert (first["x"].tolist(), second["x"]) == ([[1, 2], [3, 4]], None)


def test_structs_and_maps_of_a_table_stay_columns():
    kinds = arrow().schema([("s", arrow().struct({"a": arrow().int8()})), ("m", arrow().map_("string", "int64"))])
    made = to_columns(arrow().table({"s": [{"a": 1}, None], "m": [[("x", 1)], []]}, schema=kinds))
    assert isinstance(made, Columns)
    back = decode(encode(Batch(made))).records
    assert as_records(back) == [{"s": {"a": 1}, "m": [("x", 1)]}, {"s": None, "m": []}]


def test_a_table_with_two_columns_of_one_name_is_refused():
    table = arrow().Table.from_arrays([arrow().array([1]), arrow().array([2])], ["a", "a"])
    with pytest.raises(MisuseError, match=r"\['a', 'a'\].*rename"):
        to_columns(table)


def test_times_that_python_does_not_have_are_told_with_the_fix():
    made = from_format({"at": np.array([1], "M8[ns]")})
    assert to_format(made, "numpy")["at"].dtype == "M8[ns]"
    with pytest.raises(MisuseError, match=r"timestamp\[ns\]"):
        as_records(made)


def test_nanoseconds_become_times_of_python_whether_pandas_is_installed_or_not():
    made = from_format({"at": np.array([2_000], "M8[ns]"), "took": np.array([3_000], "m8[ns]")})
    (record,) = as_records(made)
    assert record == {"at": datetime(1970, 1, 1, 0, 0, 0, 2), "took": timedelta(microseconds=3)}
    assert {type(value) for value in record.values()} == {datetime, timedelta}


AT = arrow().timestamp("ns")
HOLDING: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "list": (arrow().list_(AT), lambda at: [at]),
    "large list": (arrow().large_list(AT), lambda at: [at]),
    "list of one": (arrow().list_(AT, 1), lambda at: [at]),
    "struct": (arrow().struct([("a", arrow().int64()), ("at", AT)]), lambda at: {"a": 1, "at": at}),
    "map": (arrow().map_(arrow().string(), AT), lambda at: [("k", at)]),
    "time of day": (arrow().time64("ns"), lambda at: at),
}


@pytest.mark.parametrize("holder", HOLDING)
def test_nanoseconds_within_values_come_back_unchanged_or_are_refused(holder: str):
    kind, held = HOLDING[holder]
    is_time = holder == "time of day"
    microseconds, finer = (arrow().scalar(count, kind if is_time else AT) for count in (2_000, 2_001))
    moment = datetime(1970, 1, 1, 0, 0, 0, 2)
    (value,) = python_values(arrow().array([held(microseconds)], kind))
    assert value == held(moment.time() if is_time else moment)
    assert "Timestamp" not in repr(value), "no value of pandas"
    with pytest.raises(MisuseError, match="cast times to microseconds"):
        python_values(arrow().array([held(finer)], kind))


class Series:
    """As much of a series of pandas as is asked for: without a type, texts get one that has NaN for None."""

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self.dtype = values.dtype if hasattr(values, "dtype") else np.dtype(dtype)
        self._values = values

    def to_numpy(self) -> Any:
        return self._values


class Category(Series):
    """A series of a type that only pandas has."""

    dtype: Any = "category"

    def __init__(self, values: Any) -> None:
        self._values = values

    def __arrow_array__(self, type: Any = None) -> Any:
        return arrow().array(self._values).dictionary_encode()


class Frame:
    """As much of a frame of pandas as is asked for."""

    def __init__(self, series: dict[str, Any], names: list[str] | None = None) -> None:
        self._series = {
            name: given if isinstance(given, Series) else Series(np.array(given)) for name, given in series.items()
        }
        self.columns = names or list(series)

    def __getitem__(self, name: str) -> Any:
        return self._series[name]

    def to_dict(self, orient: str) -> None:
        raise NotImplementedError(f"a frame is taken apart by {orient}")


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MisuseError, match=rf'batch_format="{package}".* `pip install {package}`'):
        to_format([{"a": 1}], package)


def test_a_frame_is_made_of_the_same_arrays_and_comes_back_as_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame, Series=Series))
    day = date(2020, 1, 1)
    records = [{"a": 1, "b": [1, 2], "s": None, "d": day}, {"a": 2, "b": [3, 4], "s": "x", "d": day}]
    for given in (records, columns(a=[1, 2], b=[[1, 2], [3, 4]], s=[None, "x"], d=[day] * 2)):
        frame: Any = to_format(given, "pandas")
        # What is left to pandas is changed: days become times, and None among texts NaN.
        assert [str(frame[name].dtype) for name in frame.columns] == ["int64", "object", "object", "object"]
        assert as_records(from_format(frame)) == records
    assert from_format(Frame({"n": Category(["x", None])})) == columns(n=["x", None])
    with pytest.raises(MisuseError, match=r"\['n', 'n'\]"):
        from_format(Frame({"n": [1, 2]}, ["n", "n"]))


class PolarsFrame:
    """As much of a frame of polars as is asked for."""

    def __init__(self, table: Any) -> None:
        self.columns = table.schema.names
        self._table = table

    def to_arrow(self) -> Any:
        return self._table


def test_a_frame_of_polars_is_made_of_a_table_and_comes_back_as_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=PolarsFrame))
    for records in ([{"n": 1}, {"n": 2}], columns(n=[1, 2])):
        frame: Any = to_format(records, "polars")
        assert frame.to_arrow().to_pylist() == [{"n": 1}, {"n": 2}]
        assert from_format(frame) == columns(n=[1, 2])
    with pytest.raises(MisuseError, match=r"'id'.*polars"):
        to_format([{"id": UUID(int=1)}], "polars")
