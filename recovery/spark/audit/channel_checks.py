"""Checks channels against statements 1, 2, 3 and 5, and their counts against statement 8.

Everything known about a channel is gathered in one row: its entry in the deployment, the counts at both ends, the
contents of its log, and the counts in related cuts. n is the number of batches sent, m the number consumed, L the
logged batches. Channels within an actor have counts but no digests.

A log is checked entry by entry in stored order: each entry has the next sequence number, starts from the digest that
the previous entry left, and leaves the digest computed from its payload. Only the first may have been partly
processed before the cut. A task that captured past its queues (`overtook`) logs its regular channels as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from recovery.spark.audit.cut_roles import BEFORE_IN_ATTEMPT, NOW, RESTORED, CutRoles, union_rows
from recovery.spark.audit.digests import inspect_payloads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENDS = ("edge", "sender", "sender_index", "receiver", "receiver_index")
KEY = ("epoch", *ENDS, "restored")
REPORTED_COLUMNS = (*KEY, "is_back", "within_actor", "sent", "consumed", "logged", "records", "channel")

CHANNEL_STATEMENTS = (1, 2, 3, 5, 8)
"""The statements that channels are checked against."""

_SUMMED = ("declared", "ins", "outs", "logged", "records", "misfiled", "held")

_NAME = (
    "concat(edge, ' ', sender, '/', sender_index, '->', receiver, '/', receiver_index, if(restored, ' (restored)', ''))"
)


def check_channels(roles: CutRoles) -> DataFrame:
    """One row per channel: its figures and `findings`."""
    live = F.lit(False).alias("restored")
    declared = roles.now("graph_channels").select(
        "epoch", *ENDS, live, F.lit(1).alias("declared"), F.col("is_back").alias("declared_back"), "within_actor"
    )
    ends = roles.rows("channels", NOW, BEFORE_IN_ATTEMPT, RESTORED)
    parts = [declared, _ends(ends), _logs(roles)]
    summed = [F.sum(name).alias(name) for name in _SUMMED]
    # Other columns have one value per channel; if there are several, the count of ends gives it away.
    names = dict.fromkeys(name for part in parts for name in part.columns)
    single = [F.max(name).alias(name) for name in names if name not in (*KEY, *_SUMMED)]
    grouped = union_rows(parts).groupBy(*KEY).agg(*summed, *single)
    whole = grouped.na.fill(0, ["declared", "ins", "outs", "logged", "misfiled"]).withColumns(
        {"mode": roles.mode(), "has_restored": F.col("epoch").isin(list(roles.restored)), "channel": F.expr(_NAME)}
    )
    found = F.array_compact(F.array(*_of_presence(), *_of_counts(), *_of_log(), *_of_digests(), *_of_others()))
    return whole.withColumn("findings", found)


def _ends(rows: DataFrame) -> DataFrame:
    """The counts at the ends of channels: in this cut, in the previous one, and in the logs of the restored cut.

    A log comes back as a restored channel: first the rest of an earlier restored channel, then the batches after it.
    """
    is_in, is_now, is_held = F.col("direction") == "in", F.col("role") == NOW, F.col("role") == RESTORED
    is_before, count = F.col("role") == BEFORE_IN_ATTEMPT, F.col("count")
    is_relevant = ~is_held | (is_in & (F.col("log_count") > 0))
    return rows.where(is_relevant).select(
        "epoch",
        *ENDS,
        (F.col("restored") | is_held).alias("restored"),
        (is_now & is_in).cast("int").alias("ins"),
        (is_now & ~is_in).cast("int").alias("outs"),
        F.when(is_now, F.when(is_in, _is_not_of("receiver")).otherwise(_is_not_of("sender"))).alias("misfiled"),
        F.when(is_now & is_in, F.col("is_back")).alias("is_back"),
        F.when(is_now & is_in, F.col("log_count")).alias("log_count"),
        F.when(is_now & is_in, F.col("overtook")).alias("overtook"),
        F.when(is_now & is_in, count).alias("consumed"),
        F.when(is_now & is_in, F.col("digest")).alias("consumed_digest"),
        F.when(is_now & ~is_in, count).alias("sent"),
        F.when(is_now & ~is_in, F.col("digest")).alias("sent_digest"),
        F.when(is_before & is_in, count).alias("consumed_before"),
        F.when(is_before & ~is_in, count).alias("sent_before"),
        F.when(is_held, F.col("log_count")).alias("held"),
    )


def _is_not_of(end: str) -> Column:
    return ((F.col("task") != F.col(end)) | (F.col("task_index") != F.col(f"{end}_index"))).cast("int")


# -- logs --------------------------------------------------------------------------------------------------------


def _logs(roles: CutRoles) -> DataFrame:
    """The log of each channel: its size, its first and last entry, and the first entry that breaks a rule."""
    log = roles.now("log").withColumn("inspected", inspect_payloads("payload", "digest_before"))
    in_order = Window.partitionBy(*KEY).orderBy("position")
    links = log.select(
        *KEY,
        _is_not_of("receiver").alias("misfiled"),
        "position",
        "seq",
        F.col("digest_before").alias("before"),
        F.col("digest_after").alias("after"),
        F.col("inspected.after").alias("computed"),
        F.col("inspected.records").alias("holds"),
        "skip",
    ).withColumns({"seq_before": F.lag("seq").over(in_order), "after_before": F.lag("after").over(in_order)})
    return links.groupBy(*KEY).agg(
        F.count("*").alias("logged"),
        F.sum(F.col("holds") - F.col("skip")).alias("records"),
        F.sum("misfiled").alias("misfiled"),
        *(F.min_by(name, "position").alias(f"first_{name}") for name in ("seq", "before")),
        *(F.max_by(name, "position").alias(f"last_{name}") for name in ("seq", "after")),
        *(_first(broken).alias(name) for name, broken in _BREAKS.items()),
    )


_BREAKS: dict[str, str] = {
    "gap": "seq != seq_before + 1",
    "unlinked": "before != after_before",
    "changed": "after != computed",
    "skipped": "skip != 0 AND (seq_before IS NOT NULL OR skip < 0 OR coalesce(skip >= holds, false))",
}


def _first(broken: str) -> Column:
    found = F.struct("position", "seq", "seq_before", "before", "after", "after_before", "computed", "skip")
    return F.min(F.when(F.expr(broken), found))


# -- what must hold ----------------------------------------------------------------------------------------------


def _of_presence() -> list[Column]:
    live, restored = ~F.col("restored"), F.col("restored")
    return [
        _when(
            live & ((F.col("declared") != 1) | (F.col("ins") != 1) | (F.col("outs") != 1)),
            5,
            "listed %d times in the deployment, by %d receivers and by %d senders; expected once each",
            *("declared", "ins", "outs"),
        ),
        _when(
            restored & ((F.col("ins") > 1) | (F.col("outs") > 0) | ((F.col("ins") == 0) & F.col("held").isNull())),
            5,
            "a restored channel has exactly one receiver and no sender; %d receivers and %d senders list it",
            *("ins", "outs"),
        ),
        _when(F.col("misfiled") > 0, 5, "%d of its rows are filed under another task", "misfiled"),
        _when(
            live & (F.col("is_back") != F.col("declared_back")),
            5,
            "is_back is %s in its task but %s in the deployment",
            *("is_back", "declared_back"),
        ),
    ]


def _may_log() -> Column:
    """Whether the snapshot policy allows batches in the log of this channel."""
    overtook = F.coalesce("overtook", F.lit(False)) & (F.col("mode") == "aligned")
    return (F.col("mode") == "unaligned") | overtook | (F.col("is_back") & (F.col("mode") != "drain"))


def _of_counts() -> list[Column]:
    live = ~F.col("restored") & F.col("sent").isNotNull() & F.col("consumed").isNotNull()
    in_channel = F.col("sent") - F.col("consumed")
    belongs = (in_channel >= 0) & (in_channel != F.col("logged"))
    empty = (in_channel > 0) | (F.col("logged") > 0)
    return [
        _when(live & (in_channel < 0), 1, "%d batches were consumed but only %d were sent", "consumed", "sent"),
        _when(
            ~_may_log() & F.when(F.col("restored"), F.col("logged") > 0).otherwise((in_channel >= 0) & empty),
            3,
            "must be empty under policy %s: %d batches consumed, %d sent, %d logged",
            *("mode", "consumed", F.coalesce("sent", F.lit(0)), "logged"),
        ),
        _when(
            live & _may_log() & belongs,
            2,
            "%d batches were consumed and %d sent, so the log must hold %s; it holds %s",
            *("consumed", "sent", _span(F.col("consumed") + 1, F.col("sent")), _held_span()),
        ),
        _when(
            F.col("restored") & F.col("has_restored") & (F.col("ins") == 1) & (F.coalesce("held", F.lit(0)) != _rest()),
            2,
            "the restored cut logged %d batches; %d of them were consumed and %d are still logged",
            *(F.coalesce("held", F.lit(0)), "consumed", "logged"),
        ),
        _when(
            F.col("restored") & (F.col("ins") == 0) & (F.col("held") > 0),
            2,
            "the restored cut logged %d batches that no task lists",
            "held",
        ),
    ]


def _rest() -> Column:
    return F.col("consumed") + F.col("logged")


def _of_log() -> list[Column]:
    return [
        _when(
            F.col("log_count") != F.col("logged"),
            2,
            "the receiver logged %d batches but the log holds %s",
            *("log_count", _held_span()),
        ),
        _when(
            (F.col("logged") > 0) & (F.col("first_seq") != F.col("consumed") + 1),
            2,
            "%d batches were consumed but the log begins with batch %d",
            *("consumed", "first_seq"),
        ),
        _when(
            F.col("gap").isNotNull(),
            2,
            "in the log, batch %d follows batch %d; the log holds %s",
            *("gap.seq", "gap.seq_before", _held_span()),
        ),
        _when(
            F.col("skipped").isNotNull(),
            2,
            "%d records of batch %d are skipped; only the first batch may have been partly processed before the cut",
            *("skipped.skip", "skipped.seq"),
        ),
    ]


def _of_digests() -> list[Column]:
    has_digests = ~F.coalesce("within_actor", F.lit(False))
    whole = has_digests & F.col("gap").isNull()
    counts_agree = F.col("sent") == F.col("consumed") + F.col("logged")
    return [
        _when(
            has_digests & F.col("changed").isNotNull(),
            2,
            "batch %d was changed: its payload gives digest %08x, the log says %08x",
            *("changed.seq", "changed.computed", "changed.after"),
        ),
        _when(
            whole & F.col("unlinked").isNotNull(),
            2,
            "batch %d starts from digest %08x but the batch before it left %08x",
            *("unlinked.seq", "unlinked.before", "unlinked.after_before"),
        ),
        _when(
            whole & (F.col("first_seq") == F.col("consumed") + 1) & (F.col("first_before") != F.col("consumed_digest")),
            2,
            "batch %d starts from digest %08x but the consumed batches have %08x",
            *("first_seq", "first_before", "consumed_digest"),
        ),
        _when(
            whole & counts_agree & (F.coalesce("last_after", "consumed_digest") != F.col("sent_digest")),
            2,
            "the consumed and logged batches have digest %08x, the sent ones %08x",
            *(F.coalesce("last_after", "consumed_digest"), "sent_digest"),
        ),
    ]


def _of_others() -> list[Column]:
    return [
        _when(
            F.col(name) < F.col(f"{name}_before"),
            8,
            f"%d batches were {name}, fewer than the %d in the previous cut",
            *(name, f"{name}_before"),
        )
        for name in ("consumed", "sent")
    ]


def _when(wrong: Column, statement: int, story: str, *figures: str | Column) -> Column:
    text = F.format_string(story, *figures) if figures else F.lit(story)
    return F.when(wrong, F.struct(F.lit(statement).alias("statement"), text.alias("story")))


def _span(first: Column, last: Column) -> Column:
    return (
        F.when(first < last, F.format_string("%d to %d", first, last))
        .when(first == last, first.cast("string"))
        .otherwise("none")
    )


def _held_span() -> Column:
    held = F.format_string("%d batches, %d to %d", "logged", "first_seq", "last_seq")
    return F.when(F.col("logged") == 0, "none").otherwise(held)
