"""Small tables that are known here already: they go to Spark with the query, so that no job is needed to make them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from recovery.stores.parquet_tables import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]


def local_frame(spark: SparkSession, rows: Sequence[Row], columns: Any) -> DataFrame:
    """A table of these rows. `columns` are those of another table, or as Spark's SQL writes them."""
    types: Any = import_module("pyspark.sql.types")
    arrow: Any = import_module("pyspark.sql.pandas.types")
    of = types.StructType.fromDDL(columns) if isinstance(columns, str) else columns
    schema = arrow.to_arrow_schema(of)
    # What is made of an Arrow table is a part of the plan; what is made of rows is an RDD, with tasks of its own.
    arrays = [pa.array([_as_pairs(row[place]) for row in rows], field.type) for place, field in enumerate(schema)]
    return cast(Any, spark).createDataFrame(pa.Table.from_arrays(arrays, schema=schema), of)


def _as_pairs(value: Any) -> Any:
    return list(cast("dict[Any, Any]", value).items()) if isinstance(value, dict) else value
