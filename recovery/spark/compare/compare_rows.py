"""Compares the output of a run with Spark's result: two tables, as multisets of rows.

Values are equal if Spark groups them together: null equals null, NaN equals NaN, -0.0 equals 0.0; maps compare as sets
of entries, structs and arrays by content. Numbers of different widths compare by value; a number that does not fit
the reference's type counts as different. A column may have a tolerance, relative to the expected value, or absolute
if that is below 1. Rows that agree in all other columns are then paired in the order of the columns with tolerances.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from backedge.recovery.spark.spark_errors import ComparisonError

EXAMPLES_MAX = 10
_SIDE, _COUNT, _PLACE, _AS_IT_WAS = "__side", "__count", "__place", "__as_it_was"
_FOUND, _WANTED, _DIFFERS = "__found", "__wanted", "__differs"
_NEAR = "__near_found", "__near_wanted"
FOUND, WANTED = 1, -1


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two tables. `examples` are the first differing rows, ordered by key.

    >>> Difference(rows_found=3, rows_wanted=3).equal
    True
    >>> lost = {"what": "lost", "found": None, "wanted": {"id": 7}}
    >>> print(Difference(rows_found=2, rows_wanted=3, differing=1, examples=[lost]).lines()[0])
    lost: {'id': 7}
    """

    rows_found: int
    rows_wanted: int
    differing: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def equal(self) -> bool:
        return self.differing == 0

    def lines(self) -> list[str]:
        """One line per example: a lost row, a surplus row, or a changed row with its expected value."""
        return [_line(example) for example in self.examples]


def _line(example: Mapping[str, Any]) -> str:
    found, wanted = example["found"], example["wanted"]
    if example["what"] == "changed":
        return f"changed: {found}, wanted {wanted}"
    return f"{example['what']}: {wanted if found is None else found}"


def compare_frames(
    found: DataFrame, wanted: DataFrame, keys: Sequence[str], tolerances: Mapping[str, float] | None = None
) -> Difference:
    """Compare two tables. Raises `ComparisonError` if their columns cannot be compared.

    `keys` identify a row: a differing row with the same key is reported as changed, not as one lost and one surplus.
    """
    tolerances = tolerances or {}
    _check_columns(found, wanted, keys, tolerances)
    types = {name: _target(found.schema[name].dataType, wanted.schema[name].dataType) for name in wanted.columns}
    both = _side(found, types, FOUND).unionByName(_side(wanted, types, WANTED))
    matched = _paired(both, tolerances) if tolerances else _counted(both)
    # One query, because every query has its own start-up time; most comparisons end with it.
    totals = (f"coalesce(sum({name}), 0)" for name in (_FOUND, _WANTED))
    row: Any = matched.selectExpr(*totals, f"count_if({_DIFFERS})").collect()[0]
    rows_found, rows_wanted, differing = map(int, row)
    if not differing:
        return Difference(rows_found, rows_wanted)
    left_over = (_unpaired if tolerances else _surplus)(matched.where(_DIFFERS))
    return _difference(left_over, keys or wanted.columns, rows_found, rows_wanted)


def _check_columns(found: DataFrame, wanted: DataFrame, keys: Sequence[str], tolerances: Mapping[str, float]) -> None:
    names = set(wanted.columns)
    for what, columns in (("key", keys), ("tolerance", tolerances)):
        missing = [column for column in columns if column not in names]
        if missing:
            there = ", ".join(wanted.columns)
            raise ComparisonError(f"{what} column {missing[0]!r} is not in the reference: its columns are {there}")
    only_wanted, only_found = sorted(names - set(found.columns)), sorted(set(found.columns) - names)
    if only_wanted or only_found:
        where = (("reference", only_wanted), ("result", only_found))
        said = " and ".join(f"{', '.join(columns)} only in the {table}" for table, columns in where if columns)
        raise ComparisonError(f"the columns of the result and of the reference differ: {said}; select the same in both")
    for column in wanted.columns:
        difference = differs_in_type(found.schema[column].dataType, wanted.schema[column].dataType)
        if difference is not None:
            raise ComparisonError(f"column {column!r} is {difference}: cast one of them")


def _target(found: DataType, wanted: DataType) -> DataType:
    """The type used for the comparison: the reference's, unless all its values are null."""
    return nullable(found if isinstance(wanted, NullType) else wanted)


def _side(frame: DataFrame, types: Mapping[str, DataType], side: int) -> DataFrame:
    """The frame with the column order and types of the reference, in a form that Spark can group."""
    columns: list[Column] = []
    fits = F.lit(True)
    as_it_was = F.to_json(F.struct(*[F.col(f"`{name}`") for name in types]))
    for name, there in types.items():
        value, here = F.col(f"`{name}`"), nullable(frame.schema[name].dataType)
        if here != there:
            # A lossy cast must not make this row equal to one of the reference.
            fits &= is_lossless(value, here, there)
            value = value.try_cast(there)
        columns.append(comparable(value, there).alias(name))
    return frame.select(*columns, F.when(~fits, as_it_was).alias(_AS_IT_WAS), F.lit(side).alias(_SIDE))


def _counted(both: DataFrame) -> DataFrame:
    """Equal rows as one, with how often they occur on each side."""
    columns = [f"`{column}`" for column in both.columns if column != _SIDE]
    sides = [F.count_if(F.col(_SIDE) == side).alias(name) for name, side in ((_FOUND, FOUND), (_WANTED, WANTED))]
    return both.groupBy(*columns).agg(*sides).withColumn(_DIFFERS, F.col(_FOUND) != F.col(_WANTED))


def _surplus(counted: DataFrame) -> DataFrame:
    """Rows with the surplus on the result's side (negative: lost)."""
    return counted.withColumn(_COUNT, F.col(_FOUND) - F.col(_WANTED)).drop(_FOUND, _WANTED, _DIFFERS)


def _paired(both: DataFrame, tolerances: Mapping[str, float]) -> DataFrame:
    """Rows that agree in the other columns, paired in the order of those with tolerances; a side is null if missing."""
    exact = [f"`{column}`" for column in both.columns if column not in (_SIDE, *tolerances)]
    near = F.struct(*[F.col(f"`{column}`") for column in tolerances])
    place = F.row_number().over(Window.partitionBy(_SIDE, *exact).orderBy(near))
    sides = [
        F.max(F.when(F.col(_SIDE) == side, near)).alias(name) for name, side in ((_NEAR[0], FOUND), (_NEAR[1], WANTED))
    ]
    paired = both.withColumn(_PLACE, place).groupBy(*exact, _PLACE).agg(*sides)
    found, wanted = (F.col(name).isNotNull() for name in _NEAR)
    close = found & wanted
    for column, tolerance in tolerances.items():
        one, other = (F.col(f"{name}.`{column}`") for name in _NEAR)
        close &= within(one, other, both.schema[column].dataType, tolerance)
    return paired.withColumns({_FOUND: found.cast("int"), _WANTED: wanted.cast("int"), _DIFFERS: ~close})


def _unpaired(paired: DataFrame) -> DataFrame:
    """Each row of the pairs, with 1 if it is of the result, and -1 if it is of the reference."""
    exact = [f"`{column}`" for column in paired.columns if column not in (_PLACE, *_NEAR, _FOUND, _WANTED, _DIFFERS)]
    rows = ", ".join(
        f"struct({count} AS {_COUNT}, {name} AS __near)" for count, name in zip((1, -1), _NEAR, strict=True)
    )
    each = paired.selectExpr(*exact, f"inline(array({rows}))").where("__near IS NOT NULL")
    return each.select(*exact, "__near.*", _COUNT)


def _difference(left_over: DataFrame, keys: Sequence[str], rows_found: int, rows_wanted: int) -> Difference:
    columns = [column for column in left_over.columns if column != _COUNT]
    row, count = F.struct(*[F.col(f"`{column}`") for column in columns]), F.col(_COUNT)
    by_key = left_over.groupBy(*[F.col(f"`{key}`").alias(f"__key{i}") for i, key in enumerate(keys)]).agg(
        F.sum(F.greatest(count, F.lit(0))).alias("surplus"),
        F.sum(F.greatest(-count, F.lit(0))).alias("lost"),
        F.min(F.when(count > 0, row)).alias("found"),
        F.min(F.when(count < 0, row)).alias("wanted"),
    )
    by_key = by_key.persist()
    try:
        differing = by_key.agg(F.coalesce(F.sum(F.greatest("surplus", "lost")), F.lit(0))).first()
        first = by_key.orderBy(*[f"__key{i}" for i in range(len(keys))]).limit(EXAMPLES_MAX).collect()
    finally:
        by_key.unpersist()
    examples = [_example(found.asDict(recursive=True)) for found in first]
    return Difference(rows_found, rows_wanted, int(differing[0]) if differing else 0, examples)


def _example(row: Mapping[str, Any]) -> dict[str, Any]:
    found, wanted = row["found"], row["wanted"]
    what = "lost" if found is None else "surplus" if wanted is None else "changed"
    for side in filter(None, (found, wanted)):
        side.update(json.loads(side.pop(_AS_IT_WAS) or "{}"))
    return {"what": what, "found": found, "wanted": wanted}


# -- values by type ------------------------------------------------------------------------------------------------


def comparable(value: Column, kind: DataType) -> Column:
    """The value in a form that can be grouped and sorted: maps become sorted lists of entries, at any depth."""
    if not _holds_map(kind):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda element: comparable(element, kind.elementType))
    if isinstance(kind, StructType):
        fields = [comparable(value[part.name], part.dataType).alias(part.name) for part in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if not isinstance(kind, MapType):
        raise TypeError(f"a {kind.simpleString()} holds no map")

    def entry(pair: Column) -> Column:
        key, entered = comparable(pair["key"], kind.keyType), comparable(pair["value"], kind.valueType)
        return F.struct(key.alias("key"), entered.alias("value"))

    return F.array_sort(F.transform(F.map_entries(value), entry))


def nullable(kind: DataType) -> DataType:
    """The type with nulls allowed at every depth, so that nullability neither differs nor affects casts."""
    match kind:
        case ArrayType():
            return ArrayType(nullable(kind.elementType))
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType))
        case StructType():
            return StructType([StructField(part.name, nullable(part.dataType)) for part in kind.fields])
        case _:
            return kind


def differs_in_type(found: DataType, wanted: DataType) -> str | None:
    """The reason why values of these types cannot be compared; None if they can."""

    def are_compatible(here: Any, there: Any) -> bool:
        if here == there or isinstance(here, NullType) or isinstance(there, NullType):
            return True
        if isinstance(here, NumericType) and isinstance(there, NumericType):
            return True
        if isinstance(here, StringType) and isinstance(there, DateType | TimestampType):
            return True
        match here, there:
            case ArrayType(), ArrayType():
                return are_compatible(here.elementType, there.elementType)
            case MapType(), MapType():
                return are_compatible(here.keyType, there.keyType) and are_compatible(here.valueType, there.valueType)
            case StructType(), StructType():
                return here.names == there.names and all(
                    are_compatible(a.dataType, b.dataType) for a, b in zip(here, there, strict=True)
                )
            case _:
                return False

    if are_compatible(found, wanted):
        return None
    return f"{found.simpleString()} in the result and {wanted.simpleString()} in the reference"


def is_lossless(value: Column, found: DataType, wanted: DataType) -> Column:
    """Whether casting a value to the wanted type preserves it."""
    if isinstance(found, NullType):
        return F.lit(True)
    cast = value.try_cast(wanted)
    if isinstance(found, StringType) and isinstance(wanted, TimestampType):
        return value.isNull() | cast.isNotNull()  # one moment has many texts
    return comparable(cast.try_cast(found), found).eqNullSafe(comparable(value, found))


def within(found: Column, wanted: Column, kind: DataType, tolerance: float) -> Column:
    """Whether a number, or each number in an array, is within the tolerance."""
    if isinstance(kind, ArrayType):
        pairs = F.zip_with(found, wanted, lambda one, other: within(one, other, kind.elementType, tolerance))
        near = (F.size(found) == F.size(wanted)) & F.forall(pairs, lambda pair: pair)
        return found.eqNullSafe(wanted) | F.coalesce(near, F.lit(False))
    infinite = F.lit(float("inf"))
    allowed = F.lit(float(tolerance)) * F.greatest(F.lit(1.0), F.abs(wanted))
    # Spark sorts NaN above infinity, so NaN never passes here; an expected NaN passes as an equal value.
    near = (F.abs(wanted) < infinite) & (F.abs(found - wanted) <= allowed)
    return found.eqNullSafe(wanted) | F.coalesce(near, F.lit(False))


def _holds_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_holds_map(part.dataType) for part in kind.fields)
    return isinstance(kind, MapType)
