"""The output of a run as a table: collected records, or files it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import ArrayType, AtomicType, BooleanType, NumericType, StringType, StructField, StructType

from backedge.recovery.spark.spark_errors import ComparisonError
from backedge.recovery.stores.parquet_tables import pa

# It has no type annotations.
_arrow_types: Any = cast(Any, arrow_types)

_UNFIT = (pa.ArrowException, AttributeError, OverflowError)
_OPTIONS = {
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true", "inferSchema": "true"},
    "parquet": {},
}
_ROW = "__row"


def frame_of_records(spark: SparkSession, records: Sequence[Mapping[str, Any]], like: DataFrame) -> DataFrame:
    """Records as a table. Columns take their types from `like` if the values fit."""
    names = list(dict.fromkeys(name for record in records for name in record)) or like.columns
    wanted = {field.name: _arrow_types.to_arrow_type(field.dataType) for field in like.schema.fields}
    columns = {name: _array(name, [record.get(name) for record in records], wanted.get(name)) for name in names}
    return cast(Any, spark).createDataFrame(pa.table(columns))


def _array(name: str, values: list[Any], wanted: Any) -> Any:
    if wanted is not None and all(_is_kept(value, wanted) for value in values):
        is_map = pa.types.is_map(wanted)
        try:
            return pa.array([list(value.items()) if is_map and value else value for value in values], wanted)
        except _UNFIT:
            pass  # the comparison reports the actual type
    try:
        return pa.array(values)
    except _UNFIT as error:
        fault = str(error).splitlines()[0]
        raise ComparisonError(f"column {name!r} of the result holds values of several types: {fault}") from error


def _is_kept(value: Any, kind: Any) -> bool:
    """Whether Arrow leaves nothing out: it would make a day of a time, and drop what a struct has no field for."""
    if pa.types.is_date(kind):
        return not isinstance(value, datetime)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        fields = {field.name: field.type for field in kind}
        parts = cast("Mapping[str, Any]", value).items()
        return all(name in fields and _is_kept(part, fields[name]) for name, part in parts)
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return all(_is_kept(part, kind.value_type) for part in cast("Sequence[Any]", value))
    return True


def frame_of_files(spark: SparkSession, form: str, path: str, like: DataFrame) -> DataFrame:
    """Files below a folder as a table: "json", "csv" or "parquet".

    In text formats, maps, structs and lists take their types from `like`; other types are inferred from the values.
    """
    reader = spark.read.options(**_OPTIONS[form])
    try:
        frame = reader.format(form).load(path)
        if form == "parquet":
            return frame
        wanted = {field.name: field.dataType for field in like.schema.fields}
        fields = [
            StructField(field.name, _kept(wanted.get(field.name), field.dataType)) for field in frame.schema.fields
        ]
        return reader.schema(StructType(fields)).format(form).load(path).localCheckpoint()
    except PySparkException as error:
        raise ComparisonError(f"the result in {path} cannot be read: {str(error).splitlines()[0]}") from error


def _kept(wanted: Any, looks_like: Any) -> Any:
    is_sure = wanted is not None and (not isinstance(wanted, AtomicType) or isinstance(wanted, StringType))
    return wanted if is_sure and not _has_more(looks_like, wanted) else looks_like


def _has_more(found: Any, wanted: Any) -> bool:
    """Whether a struct has fields that the wanted one lacks, which would not be read."""
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return _has_more(found.elementType, wanted.elementType)
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        known = {field.name: field.dataType for field in wanted}
        return any(field.name not in known or _has_more(field.dataType, known[field.name]) for field in found)
    return False


def with_planted_error(frame: DataFrame, last: Sequence[str] = ()) -> DataFrame:
    """The table with one row changed, to check that the comparison can fail. Columns in `last` are the last choice."""
    numbered = frame.withColumn(_ROW, F.monotonically_increasing_id()).localCheckpoint()
    first = numbered.agg(F.min(_ROW)).collect()[0][0]
    for field in sorted(frame.schema.fields, key=lambda field: field.name in last):
        value, kind = F.col(f"`{field.name}`"), field.dataType
        if isinstance(kind, NumericType):
            # NaN, the infinities and large numbers stay what they are if 1 is added.
            changed = F.when((value > -1) & (value < 1), F.lit(2)).otherwise(F.lit(0))
        elif isinstance(kind, StringType):
            changed = F.concat(F.coalesce(value, F.lit("")), F.lit(" and more"))
        elif isinstance(kind, BooleanType):
            changed = ~F.coalesce(value, F.lit(False))
        else:
            continue
        planted = F.when(F.col(_ROW) == first, changed.cast(kind)).otherwise(value)
        return numbered.withColumn(field.name, planted).drop(_ROW)
    return numbered.where(F.col(_ROW) != first).drop(_ROW)
