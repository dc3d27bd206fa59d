"""Statements 6 and 8 of sources and sinks, and 5 of state: what operators hold, against what was counted elsewhere.

A source counts the records that it sends, apart from its reader, whose positions say how far each split was read. A
sink counts what it writes, apart from the transactions, each of which says how many records it holds. Operators are
compared, not tasks: another parallelism deals splits and transactions out anew.

Spark makes a row an operator of all splits and transactions, with the first of each kind of fault and how many there
are; `operator_findings.py` holds these rows against what the manifests say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from recovery.spark.audit.lined_up import BEFORE, NOW, Lined

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A position counts records in a split of what is in memory, and in a row group; elsewhere it is an offset in bytes.
_COUNTS_RECORDS = r"^\d+-of-\d+$|&group=\d+$"
# The last line of a range may end behind it, though not behind the file.
_START, _STOP, _SIZE = r"&start=(\d+)", r"&stop=(\d+)", r"\?size=(\d+)"

_OF_OPERATOR = ("epoch", "operator")


def of_sources(lined: Lined) -> DataFrame:
    """A row a source: its `splits`, the records `counted` by positions, how many are `uncounted`, and `faults`."""
    is_now, position = F.col("role") == NOW, F.col("position_int")
    split = (
        lined.rows("positions", NOW, BEFORE)
        .groupBy(*_OF_OPERATOR, "split")
        .agg(
            F.sum(is_now.cast("int")).alias("times"),
            F.min(F.when(is_now, position)).alias("now"),
            F.max(F.when(~is_now, position)).alias("before"),
        )
        .withColumns(
            {
                "counts": F.col("split").rlike(_COUNTS_RECORDS),
                "start": F.coalesce(F.regexp_extract("split", _START, 1).try_cast("bigint"), F.lit(0)),
                "stop": F.when(
                    F.col("split").rlike(_COUNTS_RECORDS), F.regexp_extract("split", _STOP, 1).try_cast("bigint")
                ).otherwise(F.regexp_extract("split", _SIZE, 1).try_cast("bigint")),
            }
        )
    )
    is_there, now = F.col("times") > 0, F.col("now")
    return split.groupBy(*_OF_OPERATOR).agg(
        F.sum(is_there.cast("int")).alias("splits"),
        F.coalesce(F.sum(F.when(F.col("counts"), now)), F.lit(0)).alias("counted"),
        F.sum((is_there & (~F.col("counts") | now.isNull())).cast("int")).alias("uncounted"),
        F.max(is_there & (now.isNull() | (now > F.col("start")))).alias("was_read"),
        _faults(
            _fault(~is_there, 8, "split %s is gone since the cut before", "split"),
            _fault(F.col("times") > 1, 5, "split %s is in %d tasks", "split", "times"),
            _fault(is_there & F.col("counts") & now.isNull(), 6, "split %s is at no number of records", "split"),
            _fault(now < F.col("before"), 8, "split %s is at %d, and was at %d before", "split", "now", "before"),
            _fault(
                (now < F.col("start")) | (now > F.col("stop")), 6, "split %s is at %d, outside of it", "split", "now"
            ),
        ),
    )


def of_sinks(lined: Lined) -> DataFrame:
    """A row a sink: the records that are `held` by transactions which the cut before does not list, and `faults`."""
    is_now = F.col("role") == NOW
    one = (
        lined.rows("transactions", NOW, BEFORE)
        .groupBy(*_OF_OPERATOR, "name")
        .agg(
            F.sum(is_now.cast("int")).alias("times"),
            F.sum((~is_now).cast("int")).alias("times_before"),
            *(F.max(F.when(is_now, F.col(name))).alias(name) for name in ("prepared_epoch", "prepared_attempt")),
            F.max(F.when(is_now, F.col("records"))).alias("records"),
            F.count_distinct("prepared_epoch", "prepared_attempt", "records").alias("told"),
        )
        # One that was committed since the cut before is in this one no more.
        .where(F.col("times") > 0)
    )
    ending = F.concat(F.lit(".attempt-"), "prepared_attempt", F.lit(".epoch-"), "prepared_epoch")
    is_named = F.startswith("name", F.concat("operator", F.lit("."))) & F.endswith("name", ending)
    return one.groupBy(*_OF_OPERATOR).agg(
        F.sum(F.when(F.col("times_before") == 0, F.col("records")).otherwise(0)).alias("held"),
        _faults(
            _fault(F.col("times") > 1, 6, "transaction %s is there %d times", "name", "times"),
            _fault(
                ~is_named,
                6,
                "transaction %s says that it is of epoch %d and attempt %d, and its name says another",
                *("name", "prepared_epoch", "prepared_attempt"),
            ),
            _fault(
                F.col("prepared_epoch") > F.col("epoch"),
                6,
                "transaction %s is of epoch %d, which is later",
                *("name", "prepared_epoch"),
            ),
            _fault(
                (F.col("told") > 1) & (F.col("times_before") > 0),
                6,
                "transaction %s is another one in the cut before: two epochs share it",
                "name",
            ),
        ),
    )


def of_state(lined: Lined) -> DataFrame:
    """A row an operator in a task: how many rows it holds, and the least and the greatest key group of them."""
    rows = lined.now("state").groupBy(*_OF_OPERATOR, "task_index")
    group = F.col("key_group")
    return rows.agg(F.count("*").alias("rows"), F.min(group).alias("least"), F.max(group).alias("greatest"))


def _fault(wrong: Column, statement: int, story: str, *figures: str) -> Column:
    """How many rows have it, and the story of the first."""
    told = F.when(wrong, F.format_string(story, *figures))
    return F.struct(F.lit(statement).alias("statement"), F.count(told).alias("found"), F.min(told).alias("story"))


def _faults(*faults: Column) -> Column:
    return F.filter(F.array(*faults), lambda fault: fault["found"] > 0).alias("faults")
