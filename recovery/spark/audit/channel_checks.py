"""Checks channels against statements 1, 2, 3 and 5, and their counts against statement 8.

Everything known about a channel is gathered in one row: its entry in the deployment, the counts at both ends, the
contents of its log, and the counts in related cuts. n is the number of batches sent, m the number consumed, L the
logged batches. Channels within an actor have counts but no digests.

A log is checked entry by entry in stored order: each entry has the next sequence number, starts from the digest that
the previous entry left, and leaves the digest computed from its payload. Only the first may have been partly
processed before the cut. A task that captured past its queues (`overtook`) logs its regular channels as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backedge.recovery.spark.audit.cut_roles import (
    BEFORE_IN_ATTEMPT,
    NOW,
    RESTORED,
    CutRoles,
    aggregated,
    one_of,
    telling,
    union_rows,
)
from backedge.recovery.spark.audit.file_checks import records_in
from backedge.recovery.spark.cut_tables.decoding import Array
from backedge.recovery.stores.parquet_tables import pa

ENDS = ("edge", "sender", "sender_index", "receiver", "receiver_index")
KEY = ("epoch", *ENDS, "restored")
REPORTED_COLUMNS = (*KEY, "is_back", "within_actor", "sent", "consumed", "logged", "records", "channel")

_SUMMED = ("records", "held")
_COUNTED = ("declared", "ins", "outs", "logged", "misfiled")

_NAME = (
    "concat(edge, ' ', sender, '/', sender_index, '->', receiver, '/', receiver_index, if(restored, ' (restored)', ''))"
)


def check_channels(roles: CutRoles) -> DataFrame:
    """One row per channel: its figures and `findings`."""
    declared = roles.now("graph_channels").selectExpr(
        "epoch", *ENDS, "false AS restored", "1 AS declared", "is_back AS declared_back", "within_actor"
    )
    ends = roles.rows("channels", NOW, BEFORE_IN_ATTEMPT, RESTORED)
    parts = [declared, _ends(ends), _logs(roles)]
    summed = [f"sum({name}) AS {name}" for name in _SUMMED]
    counted = [f"coalesce(sum({name}), 0) AS {name}" for name in _COUNTED]
    # Other columns have one value per channel; if there are several, the count of ends gives it away.
    names = dict.fromkeys(name for part in parts for name in part.columns)
    single = [f"max({name}) AS {name}" for name in names if name not in (*KEY, *_SUMMED, *_COUNTED)]
    whole = aggregated(union_rows(parts), KEY, *summed, *counted, *single).selectExpr(
        "*",
        f"{roles.mode()} AS mode",
        f"{one_of('epoch', roles.restored)} AS has_restored",
        f"{_NAME} AS channel",
        *(f"{span} AS {name}" for name, span in _SPANS.items()),
    )
    return whole.selectExpr("*", f"array_compact(array({_FINDINGS})) AS findings")


def _ends(rows: DataFrame) -> DataFrame:
    """The counts at the ends of channels: in this cut, in the previous one, and in the logs of the restored cut.

    A log comes back as a restored channel: first the rest of an earlier restored channel, then the batches after it.
    """
    is_in, is_now, is_before, is_held = (
        "direction = 'in'",
        f"role = '{NOW}'",
        f"role = '{BEFORE_IN_ATTEMPT}'",
        f"role = '{RESTORED}'",
    )
    here = f"{is_now} AND {is_in}"
    there = f"{is_now} AND direction != 'in'"
    misfiled = f"if({is_in}, {_is_not_of('receiver')}, {_is_not_of('sender')})"
    return rows.where(f"NOT ({is_held}) OR ({is_in} AND log_count > 0)").selectExpr(
        "epoch",
        *ENDS,
        f"restored OR {is_held} AS restored",
        f"int({here}) AS ins",
        f"int({there}) AS outs",
        f"if({is_now}, {misfiled}, NULL) AS misfiled",
        *(f"if({here}, {name}, NULL) AS {name}" for name in ("is_back", "log_count", "overtook")),
        f"if({here}, count, NULL) AS consumed",
        f"if({here}, digest, NULL) AS consumed_digest",
        f"if({there}, count, NULL) AS sent",
        f"if({there}, digest, NULL) AS sent_digest",
        f"if({is_before} AND {is_in}, count, NULL) AS consumed_before",
        f"if({is_before} AND direction != 'in', count, NULL) AS sent_before",
        f"if({is_held}, log_count, NULL) AS held",
    )


def _is_not_of(end: str) -> str:
    return f"int(task != {end} OR task_index != {end}_index)"


# -- logs ----------------------------------------------------------------------------------------------------------


def _logs(roles: CutRoles) -> DataFrame:
    """The log of each channel: its size, its first and last entry, and the first entry that breaks a rule."""
    log = roles.now("log").withColumn("inspected", inspect_payloads("payload", "digest_before"))
    in_order = f"OVER (PARTITION BY {', '.join(KEY)} ORDER BY position)"
    links = log.selectExpr(
        *KEY,
        f"{_is_not_of('receiver')} AS misfiled",
        "position",
        "seq",
        "digest_before AS before",
        "digest_after AS after",
        "inspected.after AS computed",
        "inspected.records AS holds",
        "skip",
    ).selectExpr("*", f"lag(seq) {in_order} AS seq_before", f"lag(after) {in_order} AS after_before")
    return aggregated(
        links,
        KEY,
        "count(*) AS logged",
        "sum(holds - skip) AS records",
        "sum(misfiled) AS misfiled",
        *(f"min_by({name}, position) AS first_{name}" for name in ("seq", "before")),
        *(f"max_by({name}, position) AS last_{name}" for name in ("seq", "after")),
        *(f"min(if({broken}, {_ENTRY}, NULL)) AS {name}" for name, broken in _BREAKS.items()),
    )


_ENTRY = "struct(position, seq, seq_before, before, after, after_before, computed, skip)"

_BREAKS: dict[str, str] = {
    "gap": "seq != seq_before + 1",
    "unlinked": "before != after_before",
    "changed": "after != computed",
    "skipped": "skip != 0 AND (seq_before IS NOT NULL OR skip < 0 OR coalesce(skip >= holds, false))",
}


# -- what must hold ------------------------------------------------------------------------------------------------


# Whether the snapshot policy allows batches in the log of a channel.
_MAY_LOG = "(mode = 'unaligned' OR (coalesce(overtook, false) AND mode = 'aligned') OR is_back)"
_LIVE = "(NOT restored AND sent IS NOT NULL AND consumed IS NOT NULL)"
_IN_CHANNEL = "(sent - consumed)"
_NOT_EMPTY = f"if(restored, logged > 0, {_IN_CHANNEL} >= 0 AND ({_IN_CHANNEL} > 0 OR logged > 0))"
_DIGESTED = "NOT coalesce(within_actor, false)"
_WHOLE = f"{_DIGESTED} AND gap IS NULL"

_SPANS = {
    "due": "CASE WHEN consumed + 1 < sent THEN format_string('%d to %d', consumed + 1, sent) "
    "WHEN consumed + 1 = sent THEN string(sent) ELSE 'none' END",
    "held_span": "if(logged = 0, 'none', format_string('%d batches, %d to %d', logged, first_seq, last_seq))",
    "held_then": "coalesce(held, 0)",
    "were_sent": "coalesce(sent, 0)",
    "reached": "coalesce(last_after, consumed_digest)",
}

_FAULTS: Mapping[int, Mapping[str, str]] = {
    1: {f"{_LIVE} AND {_IN_CHANNEL} < 0": "{consumed} batches were consumed but only {sent} were sent"},
    2: {
        f"{_LIVE} AND {_MAY_LOG} AND {_IN_CHANNEL} >= 0 AND {_IN_CHANNEL} != logged": (
            "{consumed} batches were consumed and {sent} sent, so the log must hold {due:s}; it holds {held_span:s}"
        ),
        "restored AND has_restored AND ins = 1 AND held_then != consumed + logged": (
            "the restored cut logged {held_then} batches; {consumed} of them were consumed and {logged} are still "
            "logged"
        ),
        "restored AND ins = 0 AND held > 0": "the restored cut logged {held} batches that no task lists",
        "log_count != logged": "the receiver logged {log_count} batches but the log holds {held_span:s}",
        "logged > 0 AND first_seq != consumed + 1": (
            "{consumed} batches were consumed but the log begins with batch {first_seq}"
        ),
        "gap IS NOT NULL": "in the log, batch {gap.seq} follows batch {gap.seq_before}; the log holds {held_span:s}",
        "skipped IS NOT NULL": (
            "{skipped.skip} records of batch {skipped.seq} are skipped; only the first batch may have been partly "
            "processed before the cut"
        ),
        f"{_DIGESTED} AND changed IS NOT NULL": (
            "batch {changed.seq} was changed: its payload gives digest {changed.computed:08x}, the log says "
            "{changed.after:08x}"
        ),
        f"{_WHOLE} AND unlinked IS NOT NULL": (
            "batch {unlinked.seq} starts from digest {unlinked.before:08x} but the batch before it left "
            "{unlinked.after_before:08x}"
        ),
        f"{_WHOLE} AND first_seq = consumed + 1 AND first_before != consumed_digest": (
            "batch {first_seq} starts from digest {first_before:08x} but the consumed batches have "
            "{consumed_digest:08x}"
        ),
        f"{_WHOLE} AND sent = consumed + logged AND reached != sent_digest": (
            "the consumed and logged batches have digest {reached:08x}, the sent ones {sent_digest:08x}"
        ),
    },
    3: {
        f"NOT {_MAY_LOG} AND {_NOT_EMPTY}": (
            "must be empty under policy {mode:s}: {consumed} batches consumed, {were_sent} sent, {logged} logged"
        ),
    },
    5: {
        "NOT restored AND (declared != 1 OR ins != 1 OR outs != 1)": (
            "listed {declared} times in the deployment, by {ins} receivers and by {outs} senders; expected once each"
        ),
        "restored AND (ins > 1 OR outs > 0 OR (ins = 0 AND held IS NULL))": (
            "a restored channel has exactly one receiver and no sender; {ins} receivers and {outs} senders list it"
        ),
        "misfiled > 0": "{misfiled} of its rows are filed under another task",
        "NOT restored AND is_back != declared_back": (
            "is_back is {is_back:s} in its task but {declared_back:s} in the deployment"
        ),
    },
    8: {
        "consumed < consumed_before": (
            "{consumed} batches were consumed, fewer than the {consumed_before} in the previous cut"
        ),
        "sent < sent_before": "{sent} batches were sent, fewer than the {sent_before} in the previous cut",
    },
}
"""Statement -> the condition under which it is violated -> what to say about the channel."""

CHANNEL_STATEMENTS = tuple(_FAULTS)
"""The statements that channels are checked against."""

_FINDINGS = ", ".join(
    f"if({wrong}, struct({statement} AS statement, {telling(story)} AS story), NULL)"
    for statement, faults in _FAULTS.items()
    for wrong, story in faults.items()
)


# -- digests -------------------------------------------------------------------------------------------------------


_INSPECTED = "struct<after: bigint, records: bigint>"


def inspect_payloads(payload: str, before: str) -> Column:
    """A column with `after`, the channel's digest after this payload, and `records`, null if unknown."""
    return cast(Any, F).arrow_udf(digests, _INSPECTED)(payload, before)


def digests(payloads: Array, befores: Array) -> Array:
    """`inspect_payloads` over Arrow arrays."""
    after: list[int] = []
    records: list[int | None] = []
    for payload, before in zip(payloads.to_pylist(), befores.to_pylist(), strict=True):
        # The stored value may be forged, and a digest has 32 bits.
        after.append(zlib.crc32(payload, before & 0xFFFFFFFF))
        records.append(records_in(payload))
    arrays = [pa.array(after, pa.int64()), pa.array(records, pa.int64())]
    return pa.StructArray.from_arrays(arrays, ["after", "records"])
