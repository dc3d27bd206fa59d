"""Rows cleaned and screened: each row of the input either fits, or is rejected for the first of these reasons.

- malformed: its line does not parse, or a value is not of the type that its column is to have.
- null: the key, or a column that is declared NOT NULL, has no value.
- condition: the condition that a good row fulfils is not true of it.
- duplicate: another row that fits has the same values in the columns that are unique together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructType
from pyspark.sql.window import Window

from recovery.spark.prepare.raw_input import LINE, Raw

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASONS = ("malformed", "null", "condition", "duplicate")

REASON, DETAIL, READ = "__reason", "__detail", "__read"
"""Why a row is rejected, null where it fits; the columns or the condition that it was; the row as it was read."""


def clean_rows(raw: Raw, form: str, clean: Mapping[str, str]) -> DataFrame:
    """Text trimmed, then the expressions, one after the other, then the types; with what was malformed as the reason.

    In CSV an expression sees text, of which what is empty is null: it can mend what would not fit its type.
    """
    rows = raw.rows.withColumn(READ, F.struct(*map(column_named, raw.columns)))
    for field in raw.rows.schema:
        if field.name in raw.columns and field.dataType == StringType():
            trimmed = F.trim(column_named(field.name))
            rows = rows.withColumn(field.name, F.nullif(trimmed, F.lit("")) if form == "csv" else trimmed)
    for column, expression in clean.items():
        rows = rows.withColumn(column, F.expr(expression))
    types = {field.name: field.dataType for field in raw.schema}
    typed = [column_named(name).try_cast(kind).alias(name) for name, kind in types.items()]
    unfit = [
        F.when(column_named(name).isNotNull() & column_named(name).try_cast(kind).isNull(), F.lit(name))
        for name, kind in types.items()
    ]
    detail = F.when(F.col(LINE).isNotNull(), F.lit("the line")).otherwise(_names(unfit))
    reason = F.when(detail != "", F.lit("malformed"))
    return rows.select(*typed, F.col(LINE), F.col(READ), reason.alias(REASON), detail.alias(DETAIL))


def reject_nulls(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Reject what has no value in one of these columns."""
    missing = _names([F.when(column_named(name).isNull(), F.lit(name)) for name in columns])
    return _reject(rows, missing != "", "null", missing)


def reject_unless(rows: DataFrame, condition: str) -> DataFrame:
    """Reject that of which a condition in SQL is not true."""
    return _reject(rows, ~F.coalesce(F.expr(condition), F.lit(False)), "condition", F.lit(condition))


def reject_duplicates(rows: DataFrame, unique: Sequence[str]) -> DataFrame:
    """Reject all but one of the rows that have the same values in these columns: the same one in every run."""
    # Rows that are rejected already stay where they are: together they would be one partition.
    apart = F.when(F.col(REASON).isNull(), F.lit(0)).otherwise(F.spark_partition_id() + 1)
    content = [
        F.map_entries(column_named(field.name)) if isinstance(field.dataType, MapType) else column_named(field.name)
        for field in rows.schema
        if not field.name.startswith("__")
    ]
    order = Window.partitionBy(apart, *map(column_named, unique)).orderBy(F.xxhash64(*content))
    place = "__place"
    numbered = rows.withColumn(place, F.row_number().over(order))
    return _reject(numbered, F.col(place) > 1, "duplicate", F.lit(", ".join(unique))).drop(place)


def _reject(rows: DataFrame, condition: Column, reason: str, detail: Column) -> DataFrame:
    applies = F.col(REASON).isNull() & condition
    given = {
        DETAIL: F.when(applies, detail).otherwise(F.col(DETAIL)),
        REASON: F.when(applies, F.lit(reason)).otherwise(F.col(REASON)),
    }
    return rows.withColumns(given)


def _names(names: Sequence[Column]) -> Column:
    return F.concat_ws(", ", *names)


def schema_of(rows: DataFrame) -> StructType:
    """The columns of the user's."""
    return StructType([field for field in rows.schema if not field.name.startswith("__")])


def column_named(name: str) -> Column:
    """A column of this very name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")
