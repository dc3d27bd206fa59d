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
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from backedge.recovery.spark.audit.cut_roles import (
    BEFORE_IN_ATTEMPT,
    NOW,
    RESTORED,
    CutRoles,
    aggregated,
    one_of,
    union_rows,
)
from backedge.recovery.spark.audit.file_checks import records_in
from backedge.recovery.stores.parquet_tables import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENDS = ("edge", "sender", "sender_index", "receiver", "receiver_index")
KEY = ("epoch", *ENDS, "restored")
REPORTED_COLUMNS = (*KEY, "is_back", "within_actor", "sent", "consumed", "logged", "records", "channel")

CHANNEL_STATEMENTS = (1, 2, 3, 5, 8)
"""The statements that channels are checked against."""

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
    )
    found = [*_of_presence(), *_of_counts(), *_of_log(), *_of_digests(), *_of_others()]
    return whole.selectExpr("*", f"array_compact(array({', '.join(found)})) AS findings")


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


def _of_presence() -> list[str]:
    return [
        _when(
            "NOT restored AND (declared != 1 OR ins != 1 OR outs != 1)",
            5,
            "listed %d times in the deployment, by %d receivers and by %d senders; expected once each",
            *("declared", "ins", "outs"),
        ),
        _when(
            "restored AND (ins > 1 OR outs > 0 OR (ins = 0 AND held IS NULL))",
            5,
            "a restored channel has exactly one receiver and no sender; %d receivers and %d senders list it",
            *("ins", "outs"),
        ),
        _when("misfiled > 0", 5, "%d of its rows are filed under another task", "misfiled"),
        _when(
            "NOT restored AND is_back != declared_back",
            5,
            "is_back is %s in its task but %s in the deployment",
            *("is_back", "declared_back"),
        ),
    ]


# Whether the snapshot policy allows batches in the log of a channel.
_MAY_LOG = "(mode = 'unaligned' OR (coalesce(overtook, false) AND mode = 'aligned') OR is_back)"


def _of_counts() -> list[str]:
    live = "(NOT restored AND sent IS NOT NULL AND consumed IS NOT NULL)"
    in_channel = "(sent - consumed)"
    not_empty = f"if(restored, logged > 0, {in_channel} >= 0 AND ({in_channel} > 0 OR logged > 0))"
    return [
        _when(f"{live} AND {in_channel} < 0", 1, "%d batches were consumed but only %d were sent", "consumed", "sent"),
        _when(
            f"NOT {_MAY_LOG} AND {not_empty}",
            3,
            "must be empty under policy %s: %d batches consumed, %d sent, %d logged",
            *("mode", "consumed", "coalesce(sent, 0)", "logged"),
        ),
        _when(
            f"{live} AND {_MAY_LOG} AND {in_channel} >= 0 AND {in_channel} != logged",
            2,
            "%d batches were consumed and %d sent, so the log must hold %s; it holds %s",
            *("consumed", "sent", _span("consumed + 1", "sent"), _HELD_SPAN),
        ),
        _when(
            "restored AND has_restored AND ins = 1 AND coalesce(held, 0) != consumed + logged",
            2,
            "the restored cut logged %d batches; %d of them were consumed and %d are still logged",
            *("coalesce(held, 0)", "consumed", "logged"),
        ),
        _when(
            "restored AND ins = 0 AND held > 0",
            2,
            "the restored cut logged %d batches that no task lists",
            "held",
        ),
    ]


def _of_log() -> list[str]:
    return [
        _when(
            "log_count != logged",
            2,
            "the receiver logged %d batches but the log holds %s",
            *("log_count", _HELD_SPAN),
        ),
        _when(
            "logged > 0 AND first_seq != consumed + 1",
            2,
            "%d batches were consumed but the log begins with batch %d",
            *("consumed", "first_seq"),
        ),
        _when(
            "gap IS NOT NULL",
            2,
            "in the log, batch %d follows batch %d; the log holds %s",
            *("gap.seq", "gap.seq_before", _HELD_SPAN),
        ),
        _when(
            "skipped IS NOT NULL",
            2,
            "%d records of batch %d are skipped; only the first batch may have been partly processed before the cut",
            *("skipped.skip", "skipped.seq"),
        ),
    ]


def _of_digests() -> list[str]:
    has_digests = "NOT coalesce(within_actor, false)"
    whole = f"{has_digests} AND gap IS NULL"
    reached = "coalesce(last_after, consumed_digest)"
    return [
        _when(
            f"{has_digests} AND changed IS NOT NULL",
            2,
            "batch %d was changed: its payload gives digest %08x, the log says %08x",
            *("changed.seq", "changed.computed", "changed.after"),
        ),
        _when(
            f"{whole} AND unlinked IS NOT NULL",
            2,
            "batch %d starts from digest %08x but the batch before it left %08x",
            *("unlinked.seq", "unlinked.before", "unlinked.after_before"),
        ),
        _when(
            f"{whole} AND first_seq = consumed + 1 AND first_before != consumed_digest",
            2,
            "batch %d starts from digest %08x but the consumed batches have %08x",
            *("first_seq", "first_before", "consumed_digest"),
        ),
        _when(
            f"{whole} AND sent = consumed + logged AND {reached} != sent_digest",
            2,
            "the consumed and logged batches have digest %08x, the sent ones %08x",
            *(reached, "sent_digest"),
        ),
    ]


def _of_others() -> list[str]:
    return [
        _when(
            f"{name} < {name}_before",
            8,
            f"%d batches were {name}, fewer than the %d in the previous cut",
            *(name, f"{name}_before"),
        )
        for name in ("consumed", "sent")
    ]


def _when(wrong: str, statement: int, story: str, *figures: str) -> str:
    text = ", ".join((f"'{story}'", *figures))
    return f"if({wrong}, struct({statement} AS statement, format_string({text}) AS story), NULL)"


def _span(first: str, last: str) -> str:
    several = f"format_string('%d to %d', {first}, {last})"
    return f"CASE WHEN {first} < {last} THEN {several} WHEN {first} = {last} THEN string({first}) ELSE 'none' END"


_HELD_SPAN = "if(logged = 0, 'none', format_string('%d batches, %d to %d', logged, first_seq, last_seq))"


# -- digests -------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import Column

    Array = Any
else:
    # Spark derives the calling convention from the annotations.
    Array = pa.Array

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
