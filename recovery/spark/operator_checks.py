"""Statements 6 and 8 of sources and sinks, and 5 of state: what operators hold, against what was counted elsewhere.

A source counts the records that it sends, apart from its reader, whose positions say how far each split was read. A
sink counts what it writes, apart from the transactions, each of which says how many records it holds. Operators are
compared, not tasks: another parallelism deals splits and transactions out anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from graphs.routing import KEY_GROUPS
from recovery.spark.lined_up import Lined, together

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = ("epoch", "statement", "task", "story")

# A position counts records in a split of what is in memory, and in a row group; elsewhere it is an offset in bytes.
_COUNTS_RECORDS = r"^\d+-of-\d+$|&group=\d+$"
_START, _STOP = r"&start=(\d+)", r"&stop=(\d+)"


def found_in_operators(lined: Lined, tasks: DataFrame) -> DataFrame:
    """All that is wrong, as rows of `COLUMNS`. `tasks` tells the width of each operator, and its task's rows."""
    return together((*_splits(lined), _sources(lined), *_transactions(lined), _state(lined, tasks)))


# -- sources -----------------------------------------------------------------------------------------------------


def source_figures(lined: Lined) -> DataFrame:
    """A row a source: `records` that it sent, and `read`, which is null where positions are offsets."""
    counts = F.col("split").rlike(_COUNTS_RECORDS)
    start = F.coalesce(F.regexp_extract("split", _START, 1).try_cast("bigint"), F.lit(0))
    positions = lined.now("positions").select(
        "epoch",
        "operator",
        F.lit(1).alias("splits"),
        F.when(counts, F.col("position_int")).alias("counted"),
        (~counts | F.col("position_int").isNull()).cast("int").alias("uncounted"),
        F.coalesce(F.col("position_int") > start, F.lit(True)).alias("was_read"),
    )
    sent = lined.now("operators").where(F.col("kind") == "source").select("epoch", "operator", "records")
    names = ("records", "splits", "counted", "uncounted")
    summed = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    grouped = together((sent, positions)).groupBy("epoch", "operator").agg(*summed, F.max("was_read").alias("was_read"))
    return grouped.withColumn("read", F.when(F.col("uncounted") == 0, F.col("counted")))


def _sources(lined: Lined) -> DataFrame:
    return _told(
        source_figures(lined),
        _when(
            F.col("read") != F.col("records"),
            6,
            "source %s has sent %d records, and its positions count %d",
            *("operator", "records", "read"),
        ),
        _when(
            (F.col("records") > 0) & ~F.coalesce("was_read", F.lit(False)),
            6,
            "source %s has sent %d records, and all of its splits are where they begin",
            *("operator", "records"),
        ),
        _when(F.col("records") < 0, 6, "source %s has sent %d records", "operator", "records"),
    )


def _splits(lined: Lined) -> tuple[DataFrame, DataFrame]:
    """Each split once, within its bounds, and not before where it was in the cut before."""
    position = F.col("position_int")
    now = lined.now("positions").select(
        "epoch", "operator", "split", F.lit(1).alias("times"), position.alias("now"), position.isNull().alias("opaque")
    )
    before = lined.before("positions").select("epoch", "operator", "split", position.alias("before"))
    grouped = together((now, before)).groupBy("epoch", "operator", "split")
    found = grouped.agg(
        F.coalesce(F.sum("times"), F.lit(0)).alias("times"),
        F.min("now").alias("now"),
        F.max("before").alias("before"),
    ).withColumns(
        {
            "start": F.regexp_extract("split", _START, 1).try_cast("bigint"),
            "stop": F.regexp_extract("split", _STOP, 1).try_cast("bigint"),
        }
    )
    told = _told(
        found,
        _when(F.col("times") == 0, 8, "split %s of source %s is gone since the cut before", "split", "operator"),
        _when(F.col("times") > 1, 5, "split %s of source %s is in %d tasks", "split", "operator", "times"),
        _when(
            F.col("now") < F.col("before"),
            8,
            "split %s of source %s is at %d, and was at %d in the cut before",
            *("split", "operator", "now", "before"),
        ),
        _when(
            (F.col("now") < F.coalesce("start", F.lit(0))) | (F.col("now") > F.col("stop")),
            6,
            "split %s of source %s is at %d, outside of it",
            *("split", "operator", "now"),
        ),
    )
    return told, _records_go_on(lined)


def _records_go_on(lined: Lined) -> DataFrame:
    """What sources and sinks have counted never gets less."""
    counting = F.col("kind").isin("source", "sink")
    now = lined.now("operators").where(counting).select("epoch", "operator", F.col("records").alias("now"))
    before = lined.before("operators").where(counting).select("epoch", "operator", F.col("records").alias("before"))
    grouped = together((now, before)).groupBy("epoch", "operator")
    return _told(
        grouped.agg(F.sum("now").alias("now"), F.sum("before").alias("before")),
        _when(
            F.col("now") < F.col("before"),
            8,
            "operator %s has counted %d records, and %d in the cut before",
            *("operator", "now", "before"),
        ),
    )


# -- sinks -------------------------------------------------------------------------------------------------------


def _transactions(lined: Lined) -> tuple[DataFrame, DataFrame]:
    """Each transaction by itself; and what is new since the cut before, against what the sink has written since."""
    one = _each_transaction(lined)
    ending = F.concat(F.lit(".attempt-"), F.col("attempt"), F.lit(".epoch-"), F.col("prepared"))
    is_named = F.startswith("name", F.concat("operator", F.lit("."))) & F.endswith("name", ending)
    is_new = F.col("times_before") == 0
    alone = _told(
        one,
        _when(F.col("times") > 1, 6, "transaction %s of sink %s is there %d times", "name", "operator", "times"),
        _when(
            ~is_named,
            6,
            "transaction %s of sink %s says epoch %d and attempt %d of itself, and its name another",
            *("name", "operator", "prepared", "attempt"),
        ),
        _when(F.col("prepared") > F.col("epoch"), 6, "transaction %s is of epoch %d", "name", "prepared"),
        _when(
            F.col("told") > 1,
            6,
            "transaction %s of sink %s is said to be one thing here and another in the cut before: two epochs share it",
            *("name", "operator"),
        ),
    )
    new = one.where(is_new & (F.col("times") > 0)).select("epoch", "operator", F.col("records").alias("held"))
    written = [
        rows.where(F.col("kind") == "sink").select("epoch", "operator", (F.col("records") * sign).alias("written"))
        for rows, sign in ((lined.now("operators"), 1), (lined.before("operators"), -1))
    ]
    grouped = together((*written, new)).where(lined.has_before()).groupBy("epoch", "operator")
    summed = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("written", "held")]
    since = _told(
        grouped.agg(*summed),
        _when(
            F.col("written") != F.col("held"),
            6,
            "sink %s has written %d records since the cut before, and the transactions prepared since hold %d",
            *("operator", "written", "held"),
        ),
    )
    return alone, since


def _each_transaction(lined: Lined) -> DataFrame:
    facts = ("epoch", "operator", "name", "prepared_epoch", "prepared_attempt", "records")
    now = lined.now("transactions").select(*facts, F.lit(1).alias("here"), F.lit(0).alias("there"))
    before = lined.before("transactions").select(*facts, F.lit(0).alias("here"), F.lit(1).alias("there"))
    return (
        together((now, before))
        .groupBy("epoch", "operator", "name")
        .agg(
            F.sum("here").alias("times"),
            F.sum("there").alias("times_before"),
            F.max(F.when(F.col("here") == 1, F.col("prepared_epoch"))).alias("prepared"),
            F.max(F.when(F.col("here") == 1, F.col("prepared_attempt"))).alias("attempt"),
            F.max(F.when(F.col("here") == 1, F.col("records"))).alias("records"),
            F.count_distinct("prepared_epoch", "prepared_attempt", "records").alias("told"),
        )
        # One that was committed since the cut before is in this one no more.
        .where(F.col("times") > 0)
    )


# -- state -------------------------------------------------------------------------------------------------------


def _state(lined: Lined, tasks: DataFrame) -> DataFrame:
    """Each task holds as many rows as the manifest says, and of no key groups but its own."""
    width = F.col("width")
    rows = (
        lined.now("state")
        .groupBy("epoch", "operator", "task_index")
        .agg(F.count("*").alias("held"), F.min("key_group").alias("least"), F.max("key_group").alias("most"))
    )
    joined = tasks.join(F.broadcast(rows), ["epoch", "operator", "task_index"], "left")
    # Key group g of w tasks is kept by task g * w // KEY_GROUPS, which grows with g: least and most tell of all.
    belongs = [F.floor(F.col(end) * width / KEY_GROUPS) for end in ("least", "most")]
    is_own = (belongs[0] == F.col("task_index")) & (belongs[1] == F.col("task_index"))
    of_tasks = joined.groupBy("epoch", "task", "task_index").agg(
        F.sum(F.coalesce("held", F.lit(0))).alias("held"),
        F.max("state_rows").alias("state_rows"),
        F.min(F.when(~is_own, F.col("operator"))).alias("foreign"),
    )
    return _told(
        of_tasks.withColumn("task", F.format_string("%s/%d", "task", "task_index")),
        _when(
            F.col("held") != F.col("state_rows"),
            5,
            "its files of state hold %d rows, and the manifest says %d",
            *("held", "state_rows"),
        ),
        _when(F.col("foreign").isNotNull(), 5, "operator %s keeps key groups that belong to another task", "foreign"),
    )


def _when(wrong: Column, statement: int, story: str, *figures: str) -> Column:
    found = F.struct(F.lit(statement).alias("statement"), F.format_string(story, *figures).alias("story"))
    return F.when(wrong, found)


def _told(rows: DataFrame, *found: Column) -> DataFrame:
    task = F.col("task") if "task" in rows.columns else F.lit(None).cast("string").alias("task")
    one = rows.select("epoch", task, F.explode(F.array_compact(F.array(*found))).alias("found"))
    return one.select("epoch", "found.statement", "task", "found.story")
