"""Checks sources and sinks against statements 6 and 8, and state against statement 5.

A source counts the records it sends independently of its reader, which reports the position in each split. A sink
counts the records it writes independently of its transactions, which state how many records each holds. The checks
compare operators, not tasks, because rescaling redistributes splits and transactions.

Spark aggregates all splits and transactions to one row per operator, with the first fault of each kind and the number
of faults; `operator_findings.py` compares these rows with the manifests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from recovery.spark.audit.cut_roles import BEFORE, NOW, CutRoles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Positions count records in in-memory splits and in row groups; in other splits they are byte offsets.
_COUNTS_RECORDS = r"^\d+-of-\d+$|&group=\d+$"
# The last line of a range may end after the range, but not after the file.
_START, _STOP, _SIZE = r"&start=(\d+)", r"&stop=(\d+)", r"\?size=(\d+)"

_OF_OPERATOR = ("epoch", "operator")


def source_facts(roles: CutRoles) -> DataFrame:
    """One row per source: number of `splits`, records `counted` by positions, `uncounted` splits, and `faults`."""
    is_now, position = F.col("role") == NOW, F.col("position_int")
    split = (
        roles.rows("positions", NOW, BEFORE)
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
            _fault(~is_there, 8, "split %s was in the previous cut and is missing", "split"),
            _fault(F.col("times") > 1, 5, "split %s is in %d tasks", "split", "times"),
            _fault(
                is_there & F.col("counts") & now.isNull(),
                6,
                "the position in split %s is not a number of records",
                "split",
            ),
            _fault(
                now < F.col("before"),
                8,
                "the position in split %s is %d, before the %d of the previous cut",
                *("split", "now", "before"),
            ),
            _fault(
                (now < F.col("start")) | (now > F.col("stop")),
                6,
                "the position in split %s is %d, outside the split",
                *("split", "now"),
            ),
        ),
    )


def sink_facts(roles: CutRoles) -> DataFrame:
    """One row per sink: the records `held` by transactions that are new in this cut, and `faults`."""
    is_now = F.col("role") == NOW
    one = (
        roles.rows("transactions", NOW, BEFORE)
        .groupBy(*_OF_OPERATOR, "name")
        .agg(
            F.sum(is_now.cast("int")).alias("times"),
            F.sum((~is_now).cast("int")).alias("times_before"),
            *(F.max(F.when(is_now, F.col(name))).alias(name) for name in ("prepared_epoch", "prepared_attempt")),
            F.max(F.when(is_now, F.col("records"))).alias("records"),
            F.count_distinct("prepared_epoch", "prepared_attempt", "records").alias("versions"),
        )
        # Transactions committed since the previous cut are no longer listed.
        .where(F.col("times") > 0)
    )
    ending = F.concat(F.lit(".attempt-"), "prepared_attempt", F.lit(".epoch-"), "prepared_epoch")
    is_named = F.startswith("name", F.concat("operator", F.lit("."))) & F.endswith("name", ending)
    return one.groupBy(*_OF_OPERATOR).agg(
        F.sum(F.when(F.col("times_before") == 0, F.col("records")).otherwise(0)).alias("held"),
        _faults(
            _fault(F.col("times") > 1, 6, "transaction %s is listed %d times", "name", "times"),
            _fault(
                ~is_named,
                6,
                "the name of transaction %s does not match its epoch %d and attempt %d",
                *("name", "prepared_epoch", "prepared_attempt"),
            ),
            _fault(
                F.col("prepared_epoch") > F.col("epoch"),
                6,
                "transaction %s belongs to epoch %d, later than this cut",
                *("name", "prepared_epoch"),
            ),
            _fault(
                (F.col("versions") > 1) & (F.col("times_before") > 0),
                6,
                "transaction %s differs from the one of that name in the previous cut: two epochs share it",
                "name",
            ),
        ),
    )


def state_facts(roles: CutRoles) -> DataFrame:
    """One row per operator, task and layer: its number of state rows, and their lowest and highest key group."""
    rows = roles.now("state_layers").groupBy(*_OF_OPERATOR, "task_index", "layer")
    group = F.col("key_group")
    return rows.agg(F.count("*").alias("rows"), F.min(group).alias("lowest"), F.max(group).alias("highest"))


def _fault(wrong: Column, statement: int, story: str, *figures: str) -> Column:
    """The number of rows with this fault, and the story of the first."""
    text = F.when(wrong, F.format_string(story, *figures))
    return F.struct(F.lit(statement).alias("statement"), F.count(text).alias("found"), F.min(text).alias("story"))


def _faults(*faults: Column) -> Column:
    return F.filter(F.array(*faults), lambda fault: fault["found"] > 0).alias("faults")
