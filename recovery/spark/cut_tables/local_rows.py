"""Creates frames from small local tables. They travel as part of the query plan and need no Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from backedge.recovery.stores.parquet_tables import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]


def local_frame(spark: SparkSession, rows: Sequence[Row], columns: Any) -> DataFrame:
    """A frame of these rows. `columns` is a schema, or a DDL string."""
    types: Any = import_module("pyspark.sql.types")
    arrow: Any = import_module("pyspark.sql.pandas.types")
    of = types.StructType.fromDDL(columns) if isinstance(columns, str) else columns
    schema = arrow.to_arrow_schema(of)
    # A frame from an Arrow table is part of the plan; a frame from rows is an RDD with its own tasks.
    arrays = [pa.array([_as_pairs(row[place]) for row in rows], field.type) for place, field in enumerate(schema)]
    return cast(Any, spark).createDataFrame(pa.Table.from_arrays(arrays, schema=schema), of)


def _as_pairs(value: Any) -> Any:
    return list(cast("dict[Any, Any]", value).items()) if isinstance(value, dict) else value
