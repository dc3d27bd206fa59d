"""Statements 1, 2, 3 and 5 of the channels of cuts, and 8 of what is counted in them.

All that there is to know of a channel comes together in one row: what the deployment says, what its two ends have
counted, what its log holds, and what other cuts say. m is what the receiver consumed, n what the sender sent, L what
is logged. A channel within an actor has no digests: it is counted.

A log is followed entry by entry, in the order in which it lies there: each must be the next of the one before it, begin
with the digest that that one left, and leave the digest that its payload gives. The first may have been processed in
part. A task that captured past its queues (`overtook`) logs its regular channels too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from recovery.spark.audit.digests import looked_at
from recovery.spark.audit.lined_up import BEFORE_IN_ATTEMPT, NOW, RESTORED, Lined, together

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENDS = ("edge", "sender", "sender_index", "receiver", "receiver_index")
KEY = ("epoch", *ENDS, "restored")
SHOWN = (*KEY, "is_back", "within_actor", "sent", "consumed", "logged", "records", "channel")

OF_CHANNELS = (1, 2, 3, 5, 8)
"""The statements that say something of channels."""

_SUMMED = ("declared", "ins", "outs", "logged", "records", "misfiled", "held")

_NAME = (
    "concat(edge, ' ', sender, '/', sender_index, '->', receiver, '/', receiver_index, if(restored, ' (restored)', ''))"
)


def channels(lined: Lined) -> DataFrame:
    """A row a channel with its figures and `findings`."""
    live = F.lit(False).alias("restored")
    declared = lined.now("graph_channels").select(
        "epoch", *ENDS, live, F.lit(1).alias("declared"), F.col("is_back").alias("declared_back"), "within_actor"
    )
    ends = lined.rows("channels", NOW, BEFORE_IN_ATTEMPT, RESTORED)
    parts = [declared, _ends(ends), _logs(lined)]
    summed = [F.sum(name).alias(name) for name in _SUMMED]
    # Of the rest there is one value a channel; where there are two, the count of ends tells.
    names = dict.fromkeys(name for part in parts for name in part.columns)
    single = [F.max(name).alias(name) for name in names if name not in (*KEY, *_SUMMED)]
    grouped = together(parts).groupBy(*KEY).agg(*summed, *single)
    whole = grouped.na.fill(0, ["declared", "ins", "outs", "logged", "misfiled"]).withColumns(
        {"mode": lined.mode(), "has_restored": F.col("epoch").isin(list(lined.restored)), "channel": F.expr(_NAME)}
    )
    found = F.array_compact(F.array(*_of_presence(), *_of_counts(), *_of_log(), *_of_digests(), *_of_others()))
    return whole.withColumn("findings", found)


def _ends(rows: DataFrame) -> DataFrame:
    """What the ends of channels have counted: in the cut, in the cut before, and what the restored cut's logs held.

    What a log held comes back in a restored channel: the rest of a restored one first, then what had followed it.
    """
    is_in, is_now, is_held = F.col("direction") == "in", F.col("role") == NOW, F.col("role") == RESTORED
    is_before, count = F.col("role") == BEFORE_IN_ATTEMPT, F.col("count")
    is_told = ~is_held | (is_in & (F.col("log_count") > 0))
    return rows.where(is_told).select(
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


def _logs(lined: Lined) -> DataFrame:
    """The log of each channel: how much it holds, where it begins and ends, and the first place where it breaks."""
    log = lined.now("log").withColumn("looked", looked_at("payload", "digest_before"))
    in_order = Window.partitionBy(*KEY).orderBy("position")
    links = log.select(
        *KEY,
        _is_not_of("receiver").alias("misfiled"),
        "position",
        "seq",
        F.col("digest_before").alias("before"),
        F.col("digest_after").alias("after"),
        F.col("looked.after").alias("gives"),
        F.col("looked.records").alias("holds"),
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
    "changed": "after != gives",
    "skipped": "skip != 0 AND (seq_before IS NOT NULL OR skip < 0 OR coalesce(skip >= holds, false))",
}


def _first(broken: str) -> Column:
    found = F.struct("position", "seq", "seq_before", "before", "after", "after_before", "gives", "skip")
    return F.min(F.when(F.expr(broken), found))


# -- what must hold ----------------------------------------------------------------------------------------------


def _of_presence() -> list[Column]:
    live, restored = ~F.col("restored"), F.col("restored")
    return [
        _when(
            live & ((F.col("declared") != 1) | (F.col("ins") != 1) | (F.col("outs") != 1)),
            5,
            "the deployment names it %d times, %d receivers and %d senders tell of it",
            *("declared", "ins", "outs"),
        ),
        _when(
            restored & ((F.col("ins") > 1) | (F.col("outs") > 0) | ((F.col("ins") == 0) & F.col("held").isNull())),
            5,
            "%d receivers and %d senders tell of a restored channel, which has one receiver",
            *("ins", "outs"),
        ),
        _when(F.col("misfiled") > 0, 5, "%d rows of it are filed under another task", "misfiled"),
        _when(
            live & (F.col("is_back") != F.col("declared_back")),
            5,
            "is_back is %s in its task, and %s in the deployment",
            *("is_back", "declared_back"),
        ),
    ]


def _may_log() -> Column:
    """Whether the policy leaves anything in it."""
    overtook = F.coalesce("overtook", F.lit(False)) & (F.col("mode") == "aligned")
    return (F.col("mode") == "unaligned") | overtook | (F.col("is_back") & (F.col("mode") != "drain"))


def _of_counts() -> list[Column]:
    live = ~F.col("restored") & F.col("sent").isNotNull() & F.col("consumed").isNotNull()
    in_channel = F.col("sent") - F.col("consumed")
    belongs = (in_channel >= 0) & (in_channel != F.col("logged"))
    empty = (in_channel > 0) | (F.col("logged") > 0)
    return [
        _when(live & (in_channel < 0), 1, "%d batches were consumed, and %d were sent", "consumed", "sent"),
        _when(
            ~_may_log() & F.when(F.col("restored"), F.col("logged") > 0).otherwise((in_channel >= 0) & empty),
            3,
            "policy %s leaves nothing in it; %d batches were consumed, %d sent, %d are logged",
            *("mode", "consumed", F.coalesce("sent", F.lit(0)), "logged"),
        ),
        _when(
            live & _may_log() & belongs,
            2,
            "the receiver consumed %d batches, the sender sent %d, so %s belong in the log; it holds %s",
            *("consumed", "sent", _span(F.col("consumed") + 1, F.col("sent")), _held_span()),
        ),
        _when(
            F.col("restored") & F.col("has_restored") & (F.col("ins") == 1) & (F.coalesce("held", F.lit(0)) != _rest()),
            2,
            "the cut that was restored held %d batches; %d of them were consumed, and %d are logged",
            *(F.coalesce("held", F.lit(0)), "consumed", "logged"),
        ),
        _when(
            F.col("restored") & (F.col("ins") == 0) & (F.col("held") > 0),
            2,
            "the cut that was restored held %d batches, and no task tells of them",
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
            "the receiver logged %d batches, and the log holds %s",
            *("log_count", _held_span()),
        ),
        _when(
            (F.col("logged") > 0) & (F.col("first_seq") != F.col("consumed") + 1),
            2,
            "%d batches were consumed, and the log begins with batch %d",
            *("consumed", "first_seq"),
        ),
        _when(
            F.col("gap").isNotNull(),
            2,
            "batch %d follows batch %d in the log, which holds %s",
            *("gap.seq", "gap.seq_before", _held_span()),
        ),
        _when(
            F.col("skipped").isNotNull(),
            2,
            "%d records of batch %d are left out; only the first batch can have been processed before the cut, in part",
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
            "batch %d gives digest %08x, and the log says %08x: it was changed",
            *("changed.seq", "changed.gives", "changed.after"),
        ),
        _when(
            whole & F.col("unlinked").isNotNull(),
            2,
            "batch %d follows digest %08x, and the batch before it leaves %08x",
            *("unlinked.seq", "unlinked.before", "unlinked.after_before"),
        ),
        _when(
            whole & (F.col("first_seq") == F.col("consumed") + 1) & (F.col("first_before") != F.col("consumed_digest")),
            2,
            "batch %d follows digest %08x, and what was consumed has %08x",
            *("first_seq", "first_before", "consumed_digest"),
        ),
        _when(
            whole & counts_agree & (F.coalesce("last_after", "consumed_digest") != F.col("sent_digest")),
            2,
            "what was consumed and logged has digest %08x, what was sent %08x",
            *(F.coalesce("last_after", "consumed_digest"), "sent_digest"),
        ),
    ]


def _of_others() -> list[Column]:
    return [
        _when(
            F.col(name) < F.col(f"{name}_before"),
            8,
            f"%d batches were {name}, and the cut before it says %d",
            *(name, f"{name}_before"),
        )
        for name in ("consumed", "sent")
    ]


def _when(wrong: Column, statement: int, story: str, *figures: str | Column) -> Column:
    told = F.format_string(story, *figures) if figures else F.lit(story)
    return F.when(wrong, F.struct(F.lit(statement).alias("statement"), told.alias("story")))


def _span(first: Column, last: Column) -> Column:
    return (
        F.when(first < last, F.format_string("%d to %d", first, last))
        .when(first == last, first.cast("string"))
        .otherwise("none")
    )


def _held_span() -> Column:
    held = F.format_string("%d, from %d to %d", "logged", "first_seq", "last_seq")
    return F.when(F.col("logged") == 0, "none").otherwise(held)
