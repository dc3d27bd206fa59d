"""Statement 7: what the user says must hold, as SQL over the tables of one cut.

The tables are views of those names, each with the rows of that cut. The rows that a query returns are what is wrong.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from recovery.spark.report.verdict import FINDINGS_MAX, InvariantResult
from recovery.spark.spark_errors import InvariantError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_UNREAD = "backedge: a value that could not be read"

# Column -> when it is null although something stands there.
_VALUES: Mapping[str, Mapping[str, str]] = {
    "state": {"key": "`key` IS NULL AND kind IN ('value', 'timer')", "value": "`value` IS NULL"},
    "in_flight": {"record": "record IS NULL"},
}


def check_invariants(
    spark: SparkSession, tables: Mapping[str, DataFrame], epoch: int, invariants: Mapping[str, str]
) -> list[InvariantResult]:
    """How each of them comes out in one cut.

    A query that meets a value which could not be read fails: so it is known that it looked at one. It is asked again
    with nulls in their place, and does not pass, whatever it returns.
    """
    found: dict[str, InvariantResult] = {}
    if invariants:
        of_cut = {name: table.where(F.col("epoch") == epoch) for name, table in tables.items()}
        with _views(spark, {name: _failing_on_unread(name, table) for name, table in of_cut.items()}):
            for name, query in invariants.items():
                result = _check(spark, name, query, tables)
                if result is not None:
                    found[name] = result
        if len(found) < len(invariants):
            unread = sum(_unread_in(name, table) for name, table in of_cut.items())
            with _views(spark, of_cut):
                for name, query in invariants.items():
                    result = None if name in found else _check(spark, name, query, tables)
                    if result is not None:
                        found[name] = replace(result, unread=unread)
    return [found[name] for name in invariants]


def _failing_on_unread(name: str, table: DataFrame) -> DataFrame:
    failing = F.raise_error(F.lit(_UNREAD)).cast("string")
    columns = {
        column: F.when(F.expr(unread), failing).otherwise(F.col(f"`{column}`"))
        for column, unread in _VALUES.get(name, {}).items()
    }
    return table.withColumns(columns) if columns else table


def _unread_in(name: str, table: DataFrame) -> int:
    unread = " OR ".join(f"({condition})" for condition in _VALUES.get(name, {}).values())
    return table.where(unread).count() if unread else 0


@contextmanager
def _views(spark: SparkSession, tables: Mapping[str, DataFrame]) -> Generator[None]:
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


def _check(spark: SparkSession, name: str, query: str, tables: Mapping[str, Any]) -> InvariantResult | None:
    """How it comes out; None if it met a value that could not be read."""
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
        if _UNREAD in str(error):
            return None
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise InvariantError(
            f"invariant {name!r} cannot be asked: {reason}; mend the SQL, its tables are {', '.join(tables)}"
        ) from error
    return InvariantResult(name, rows, tuple(examples))
