"""Statement 7: the user's invariants, as SQL over the tables of one cut.

Each table is a view of the same name with the rows of that cut. Each row that a query returns is a violation.
Tables that no query names are left out: to describe all of them to Spark takes longer than to query a small one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backedge.recovery.spark.cut_tables.table_schemas import TABLES
from backedge.recovery.spark.report.verdict import FINDINGS_MAX, InvariantResult
from backedge.recovery.spark.spark_errors import InvariantError, UnreadableError

_UNREAD = "backedge: a value that could not be read"

_OF_STATE = {
    "key": "`key` IS NULL AND kind IN ('value', 'timer', 'gone')",
    "value": "`value` IS NULL AND kind != 'gone'",
}

# Table -> column -> the condition under which its null stands for a value that could not be read.
_VALUES: Mapping[str, Mapping[str, str]] = {
    "state": _OF_STATE,
    "state_layers": _OF_STATE,
    "in_flight": {"record": "record IS NULL", "hops": "hops IS NULL"},
    "answers": {"answer": "`answer` IS NULL AND NOT set_aside"},
}

_TYPES = {"hops": "bigint"}
"""Of these columns, where they are no texts."""


def named_tables(queries: Iterable[str]) -> frozenset[str]:
    """The tables that these queries can read.

    >>> sorted(named_tables(["SELECT * FROM Log WHERE seq < 0"]))
    ['log']
    >>> sorted(named_tables(["SELECT `key` FROM `state_layers`"]))
    ['state_layers']
    """
    text = "\n".join(queries).lower()
    # These two make names of expressions.
    if "identifier" in text or "immediate" in text:
        return frozenset(TABLES)
    return frozenset(name for name in TABLES if re.search(rf"\b{name}\b", text))


def check_invariants(
    spark: SparkSession, tables: Mapping[str, DataFrame], epoch: int, invariants: Mapping[str, str]
) -> list[InvariantResult]:
    """Evaluate each invariant in one cut. `tables` has all that they name.

    Reading an unreadable value makes the query fail, which shows that the invariant depends on one. It is then run
    again with nulls in place of those values, and fails whatever it returns.
    """
    found: dict[str, InvariantResult] = {}
    if invariants:
        named = named_tables(invariants.values())
        of_cut = {name: table.where(F.col("epoch") == epoch) for name, table in tables.items() if name in named}
        with _views(spark, {name: _failing_on_unread(name, table) for name, table in of_cut.items()}):
            for name, query in invariants.items():
                result = _check(spark, name, query)
                if result is not None:
                    found[name] = result
        if len(found) < len(invariants):
            with _views(spark, of_cut):
                for name, query in invariants.items():
                    result = None if name in found else _check(spark, name, query)
                    if result is not None:
                        unread = sum(_unread_in(table, of_cut[table]) for table in named_tables([query]))
                        found[name] = replace(result, unread=unread)
    return [found[name] for name in invariants]


def _failing_on_unread(name: str, table: DataFrame) -> DataFrame:
    failing = F.raise_error(F.lit(_UNREAD))
    columns = {
        column: F.when(F.expr(unread), failing.cast(_TYPES.get(column, "string"))).otherwise(F.col(f"`{column}`"))
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


def _check(spark: SparkSession, name: str, query: str) -> InvariantResult | None:
    """Evaluate one invariant; None if it read a value that could not be decoded."""
    try:
        found = spark.sql(query)
        if not found.columns:
            raise InvariantError(f"invariant {name!r} is not a query: write a SELECT that returns the violations")
        as_json = F.to_json(
            F.struct(*(F.col(f"`{column}`") for column in found.columns)), {"ignoreNullFields": "false"}
        )
        examples = [row[0] for row in found.limit(FINDINGS_MAX).select(as_json).collect()]
        rows = found.count() if len(examples) == FINDINGS_MAX else len(examples)
    except PySparkException as error:
        if _UNREAD in str(error):
            return None
        if UnreadableError.__name__ in str(error):
            raise  # not the query's fault
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise InvariantError(
            f"invariant {name!r} failed: {reason}; fix the SQL (tables: {', '.join(TABLES)})"
        ) from error
    return InvariantResult(name, rows, tuple(examples))
