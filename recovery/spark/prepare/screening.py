"""Cleans and screens rows: each row is accepted, or rejected for the first of these reasons that applies.

- malformed: the line does not parse, or a value cannot be converted to the type of its column.
- null: the key or a NOT NULL column has no value.
- condition: the `where` condition is not true.
- duplicate: another accepted row has the same values in the unique columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructType
from pyspark.sql.window import Window

from backedge.recovery.spark.prepare.raw_input import LINE, OWN, Raw

REASONS = ("malformed", "null", "condition", "duplicate")

REASON, DETAIL, READ = f"{OWN}reason", f"{OWN}detail", f"{OWN}read"
"""The reason for a rejection, null for accepted rows; the columns or condition concerned; the row as it was read."""


def clean_rows(raw: Raw, form: str, clean: Mapping[str, str], *, adds: bool) -> DataFrame:
    """Trim text, apply the expressions one after the other, then convert types, marking malformed rows.

    In CSV an expression sees text, with empty values as null, so it can repair values that would not convert. The
    schema says which columns there are; if it was inferred, expressions add others.
    """
    rows = raw.rows.withColumn(READ, F.struct(*map(column_named, raw.columns)))
    for field in raw.rows.schema:
        if field.name in raw.columns and field.dataType == StringType():
            trimmed = F.trim(column_named(field.name))
            rows = rows.withColumn(field.name, F.nullif(trimmed, F.lit("")) if form == "csv" else trimmed)
    for column, expression in clean.items():
        rows = rows.withColumn(column, F.expr(expression))
    types = {field.name: field.dataType for field in raw.schema}
    if adds:
        known = {name.lower() for name in types}
        types |= {field.name: field.dataType for field in schema_of(rows) if field.name.lower() not in known}
    typed = [column_named(name).try_cast(kind).alias(name) for name, kind in types.items()]
    unfit = [
        F.when(column_named(name).isNotNull() & column_named(name).try_cast(kind).isNull(), F.lit(name))
        for name, kind in types.items()
    ]
    detail = F.when(F.col(LINE).isNotNull(), F.lit("the line")).otherwise(_names(unfit))
    reason = F.when(detail != "", F.lit("malformed"))
    return rows.select(*typed, F.col(LINE), F.col(READ), reason.alias(REASON), detail.alias(DETAIL))


def reject_nulls(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    missing = _names([F.when(column_named(name).isNull(), F.lit(name)) for name in columns])
    return _reject(rows, missing != "", "null", missing)


def reject_unless(rows: DataFrame, condition: str) -> DataFrame:
    return _reject(rows, ~F.coalesce(F.expr(condition), F.lit(False)), "condition", F.lit(condition))


def reject_duplicates(rows: DataFrame, unique: Sequence[str]) -> DataFrame:
    """Of the rows with equal values in these columns, reject all but one; every run keeps the same one."""
    # Rejected rows stay in their partitions; otherwise they would all end up in one.
    apart = F.when(F.col(REASON).isNull(), F.lit(0)).otherwise(F.spark_partition_id() + 1)
    content = [
        F.map_entries(column_named(field.name)) if isinstance(field.dataType, MapType) else column_named(field.name)
        for field in schema_of(rows)
    ]
    order = Window.partitionBy(apart, *map(column_named, unique)).orderBy(F.xxhash64(*content))
    place = f"{OWN}place"
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
    """The user's columns, without ours."""
    return StructType([field for field in rows.schema if not field.name.startswith(OWN)])


def column_named(name: str) -> Column:
    """The column with exactly this name, even if it contains dots."""
    return F.col(f"`{name.replace('`', '``')}`")
