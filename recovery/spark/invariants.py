"""Statement 7: what the user says must hold, as SQL over the tables of one cut.

The tables are views of those names, each with the rows of that cut. The rows that a query returns are what is wrong.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from recovery.spark.errors import InvariantError
from recovery.spark.verdict import FINDINGS_MAX, InvariantResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_invariants(
    spark: SparkSession, tables: Mapping[str, DataFrame], epoch: int, invariants: Mapping[str, str]
) -> list[InvariantResult]:
    """How each of them comes out in one cut."""
    if not invariants:
        return []
    with _views(spark, tables, epoch):
        return [_check(spark, name, query, tables) for name, query in invariants.items()]


@contextmanager
def _views(spark: SparkSession, tables: Mapping[str, DataFrame], epoch: int) -> Generator[None]:
    for name, table in tables.items():
        table.where(F.col("epoch") == epoch).createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


def _check(spark: SparkSession, name: str, query: str, tables: Mapping[str, Any]) -> InvariantResult:
    try:
        found = spark.sql(query)
        if not found.columns:
            raise InvariantError(f"invariant {name!r} is no query: give a SELECT whose rows are what is wrong")
        as_json = F.to_json(
            F.struct(*(F.col(f"`{column}`") for column in found.columns)), {"ignoreNullFields": "false"}
        )
        examples = [row[0] for row in found.limit(FINDINGS_MAX).select(as_json).collect()]
        rows = found.count() if len(examples) == FINDINGS_MAX else len(examples)
    except PySparkException as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise InvariantError(
            f"invariant {name!r} cannot be asked: {reason}; mend the SQL, its tables are {', '.join(tables)}"
        ) from error
    return InvariantResult(name, rows, tuple(examples))
