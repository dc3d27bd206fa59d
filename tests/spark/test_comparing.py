"""Tables as bags of rows: what is the same, what differs, and what cannot be compared."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from backedge.recovery.spark.spark_errors import ComparisonError

if TYPE_CHECKING:
    from backedge.recovery.spark.compare.compare_rows import Difference

pytestmark = pytest.mark.slow


@pytest.fixture
def compare(spark: Any) -> Any:
    from backedge.recovery.spark.compare.compare_rows import compare_frames

    def compared(found: str, wanted: str, tolerances: dict[str, float] | None = None) -> Difference:
        return compare_frames(spark.sql(found), spark.sql(wanted), ["id"], tolerances)

    return compared


ALIKE = {
    "a number of another width": ("CAST(7 AS INT)", "CAST(7 AS BIGINT)"),
    "null": ("NULL", "CAST(NULL AS DOUBLE)"),
    "NaN": ("DOUBLE('NaN')", "DOUBLE('NaN')"),
    "zero below zero": ("-0.0D", "0.0D"),
    "a map": ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
    "a map within": ("array(struct(map(1, 'a', 2, 'b') AS m))", "array(struct(map(2, 'b', 1, 'a') AS m))"),
    "a date as text": ("'2026-11-21'", "DATE'2026-11-21'"),
}


def test_the_same_values_are_the_same(compare: Any):
    found, wanted = (", ".join(f"{pair[side]} AS `{name}`" for name, pair in ALIKE.items()) for side in (0, 1))
    difference = compare(f"SELECT 1 AS id, {found}", f"SELECT 1 AS id, {wanted}")
    assert difference.equal, difference.lines()
    assert difference.rows_found == difference.rows_wanted == 1


def test_rows_are_counted_whatever_their_order(compare: Any):
    wanted = "SELECT id % 3 AS id FROM range(9)"
    assert compare("SELECT 2 - id % 3 AS id FROM range(9)", wanted).equal
    assert compare("SELECT 2 - id % 3 AS id FROM range(10)", wanted).lines() == ["surplus: {'id': 2}"]


def test_lost_surplus_and_changed_rows_are_told_in_the_order_of_the_keys(compare: Any):
    found = "SELECT id, IF(id = 5, -1, id) AS v FROM range(1, 10) UNION ALL SELECT 12, 12 UNION ALL SELECT 9, 9"
    difference = compare(found, "SELECT id, id AS v FROM range(10)")
    assert (difference.rows_found, difference.rows_wanted, difference.differing) == (11, 10, 4)
    assert [(one["what"], (one["wanted"] or one["found"])["id"]) for one in difference.examples] == [
        ("lost", 0),
        ("changed", 5),
        ("surplus", 9),
        ("surplus", 12),
    ]
    assert difference.lines()[1] == "changed: {'id': 5, 'v': -1}, wanted {'id': 5, 'v': 5}"


def test_a_value_that_the_type_of_the_reference_cannot_hold_differs_and_is_told_as_it_was(compare: Any):
    difference = compare("SELECT 1 AS id, 2.5D AS v", "SELECT 1 AS id, 2 AS v")
    assert difference.lines() == ["changed: {'id': 1, 'v': 2.5}, wanted {'id': 1, 'v': 2}"]


def test_a_text_that_only_begins_with_a_date_differs_from_it(compare: Any):
    for text in ("2026-11-21 or later", "2026-11-21T23:59:59"):
        difference = compare(f"SELECT 1 AS id, '{text}' AS v", "SELECT 1 AS id, DATE'2026-11-21' AS v")
        assert [(one["what"], one["found"]["v"]) for one in difference.examples] == [("changed", text)]


def test_a_tolerance_is_a_share_of_the_value_and_absolute_below_one_and_nothing_is_near_to_infinity_or_nan(
    compare: Any,
):
    near = [(value + 1e-7 * max(1.0, value), value) for value in (1000.0, 0.001)]
    far = [(value + 1e-5 * max(1.0, value), value) for value in (1000.0, 0.001)]
    ends = [(value, value) for value in (math.inf, math.nan)]
    pairs = [*near, *ends, *far, *((1.0, value) for value in (math.inf, math.nan))]
    found, wanted = (
        "SELECT * FROM VALUES "
        + ", ".join(f"({number}, DOUBLE('{pair[side]!r}'))" for number, pair in enumerate(pairs))
        + " AS rows(id, v)"
        for side in (0, 1)
    )
    difference = compare(found, wanted, {"v": 1e-6})
    assert [(one["what"], one["found"]["id"]) for one in difference.examples] == [("changed", n) for n in (4, 5, 6, 7)]
    assert difference.differing == 4


def test_rows_of_one_key_are_paired_before_a_tolerance_is_asked_for(compare: Any):
    found = "SELECT 1 AS id, explode(array(3.0D, 1.0000001D, NULL)) AS v"
    wanted = "SELECT 1 AS id, explode(array(NULL, 1.0D, 3.0000001D)) AS v"
    assert compare(found, wanted, {"v": 1e-6}).equal
    assert compare(found, wanted, {"v": 1e-9}).differing == 2


def test_each_number_of_an_array_may_be_off(compare: Any):
    found = "SELECT explode(array(1, 2)) AS id, array(1.0D, 2.0D) AS v"
    wanted = "SELECT 1 AS id, array(1.0000001D, 2.0D) AS v UNION ALL SELECT 2, array(1.0D)"
    difference = compare(found, wanted, {"v": 1e-6})
    assert [one["found"]["id"] for one in difference.examples] == [2]


@pytest.mark.parametrize(
    ("found", "wanted", "fault"),
    [
        ("SELECT 1 AS id, 2 AS x", "SELECT 1 AS id, 2 AS y", "y only in the reference and x only in the result"),
        ("SELECT 1 AS id, '2' AS v", "SELECT 1 AS id, 2 AS v", "'v' is string in the result and int in the reference"),
        ("SELECT 1 AS v", "SELECT 1 AS v", "key column 'id' is not in the reference: its columns are v"),
    ],
)
def test_tables_that_do_not_go_together_are_refused_in_a_line(compare: Any, found: str, wanted: str, fault: str):
    with pytest.raises(ComparisonError) as refused:
        compare(found, wanted)
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


def test_records_take_the_types_of_the_reference(spark: Any):
    from backedge.recovery.spark.compare.compare_rows import compare_frames
    from backedge.recovery.spark.compare.run_outputs import frame_of_records

    wanted = spark.sql("SELECT 1 AS id, 2.0D AS v, map('a', 1) AS m, CAST(NULL AS STRING) AS s")
    found = frame_of_records(spark, [{"id": 1, "v": 2, "m": {"a": 1}}], wanted)
    assert sorted(found.columns) == ["id", "m", "v"]
    assert compare_frames(found, wanted.drop("s"), ["id"]).equal
    with pytest.raises(ComparisonError, match="'id'"):
        frame_of_records(spark, [{"id": 1}, {"id": "one"}], wanted)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_files_are_read_with_what_the_reference_says_of_types(spark: Any, form: str, tmp_path: Any):
    from backedge.recovery.spark.compare.compare_rows import compare_frames
    from backedge.recovery.spark.compare.run_outputs import frame_of_files

    wanted = spark.sql("SELECT id, CONCAT('00', id) AS name, id / 2 AS half FROM range(10)")
    if form == "json":
        wanted = wanted.selectExpr("*", "map(name, id) AS m")
    wanted.write.option("header", True).format(form).save(str(tmp_path / "out"))
    assert compare_frames(frame_of_files(spark, form, str(tmp_path / "out"), wanted), wanted, ["id"]).equal
    with pytest.raises(ComparisonError, match="cannot be read"):
        frame_of_files(spark, form, str(tmp_path / "nothing"), wanted)


def test_what_the_reference_has_no_place_for_is_not_left_out(spark: Any, tmp_path: Any):
    from backedge.recovery.spark.compare.compare_rows import compare_frames
    from backedge.recovery.spark.compare.run_outputs import frame_of_files, frame_of_records

    wanted = spark.sql("SELECT 1 AS id, DATE'2026-11-21' AS day, array(named_struct('x', 1)) AS v")
    right = {"id": 1, "day": date(2026, 11, 21), "v": [{"x": 1}]}
    assert compare_frames(frame_of_records(spark, [right], wanted), wanted, ["id"]).equal
    for name, value in (("day", datetime(2026, 11, 21, 23, 59)), ("v", [{"x": 1, "y": 2}])):
        with pytest.raises(ComparisonError, match=f"column '{name}' is "):
            compare_frames(frame_of_records(spark, [{**right, name: value}], wanted), wanted, ["id"])
    (tmp_path / "a.json").write_text('{"id": 1, "day": "2026-11-21", "v": [{"x": 1, "y": 2}]}\n')
    with pytest.raises(ComparisonError, match="column 'v' is "):
        compare_frames(frame_of_files(spark, "json", str(tmp_path), wanted), wanted, ["id"])


NUMBERS = ("DOUBLE('NaN')", "DOUBLE('Infinity')", "1e300", "9223372036854775807", "CAST(NULL AS INT)", "127Y")


@pytest.mark.parametrize(
    "columns",
    ["id", "id, id AS v", "id, STRING(id) AS v", "array(id) AS id", *(f"id, {number} AS v" for number in NUMBERS)],
)
def test_a_planted_error_is_found_whatever_the_columns_are(spark: Any, columns: str):
    from backedge.recovery.spark.compare.compare_rows import compare_frames
    from backedge.recovery.spark.compare.run_outputs import with_planted_error

    wanted = spark.sql(f"SELECT {columns} FROM range(5)")
    assert compare_frames(with_planted_error(wanted, ["id"]), wanted, ["id"]).differing == (2 if columns == "id" else 1)
