"""Proves of cuts that they are consistent, or says what is wrong, from what lies on disk alone.

1. What is small is read and judged without Spark: the chain, manifests, graphs (`recorded.py`, `lineage.py`,
   `presence.py`).
2. Every file is hashed, before one is decoded (`verifying.py`).
3. The rows are judged where Spark's tasks run: channels and logs (`channel_checks.py`), what sources, sinks and keyed
   state hold (`operator_checks.py`), the user's invariants (`invariants.py`). What comes back is what is wrong, up to
   a limit, and a row a channel.

Nothing is shared with the engine: that it ran is all that is asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from recovery.spark.audit.channel_checks import OF_CHANNELS, SHOWN, channels
from recovery.spark.audit.invariants import check_invariants
from recovery.spark.audit.lined_up import Lined, together
from recovery.spark.audit.operator_checks import of_sinks, of_sources, of_state
from recovery.spark.audit.operator_findings import Counted, check_operators
from recovery.spark.audit.presence import Described, has_readable_files
from recovery.spark.audit.recorded import Epochs, conclude, judge_documents, read_documents
from recovery.spark.audit.verifying import of_files, sizes_of, verify_files
from recovery.spark.cut_tables.cut_tables import cut_tables
from recovery.spark.cut_tables.job_folder import JobFolder
from recovery.spark.cut_tables.lineage import Place
from recovery.spark.report.audit_result import Found
from recovery.spark.report.verdict import Facts, Verdict
from recovery.spark.sessions.spark_session import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANNELS_MAX = 2_000
"""So many channels of a cut are told one by one, those first in which something is wrong or in flight."""

SMALL_BYTES = 4 << 20
"""Cuts that are smaller are judged without what Spark does for large ones."""

_ALL_FIELDS = {"ignoreNullFields": "false"}


def audit(
    spark: SparkSession,
    folder: JobFolder,
    epochs: Epochs = "latest",
    invariants: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Audit cuts of a job: the latest, all that are there, or these epochs. `progress` is told what is done next.

    `invariants` are queries by name over the tables of a cut; the rows that a query returns are what is wrong. Raises
    `UnreadableError` where there is nothing to judge, `InvariantError` where a query is none.
    """
    documents = read_documents(folder, epochs)
    cuts, places, chosen = documents.cuts, documents.places, documents.chosen
    found = judge_documents(documents)
    sizes = [sizes_of(cut.manifest) for cut in cuts.values()]
    readable = {epoch for epoch, cut in cuts.items() if has_readable_files(cut)}
    progress(f"verifying files: {sum(size['files'] for size in sizes):,}")
    faults = verify_files(spark, folder, (cuts[epoch].manifest for epoch in sorted(readable)))
    audited = [epoch for epoch in chosen if epoch in readable]
    for epoch in audited:
        found[epoch].add((one, 1) for one in of_files(cuts[epoch], faults))
    if audited:
        # Views are made for invariants: those of the session's owner stay what they are.
        own = _own_session(spark, sum(size["bytes"] for size in sizes))
        progress(f"judging cuts: {len(audited):,}")
        lined = _line_up(own, folder, {epoch: cuts[epoch] for epoch in readable}, places, audited)
        _judge(own, lined, cuts, places, found)
        for epoch in audited:
            found[epoch].invariants = check_invariants(own, lined.tables, epoch, invariants or {})
    return conclude(folder, documents, found, readable)


def _own_session(spark: SparkSession, size: int) -> SparkSession:
    """A session with views and settings of its own, on the same Spark."""
    own = spark.newSession() if is_local(spark) else spark
    if own is not spark and size < SMALL_BYTES:
        # To plan again after every stage, and to compile code for it, takes longer than to run it.
        for setting in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
            own.conf.set(setting, "false")
        own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return own


def _line_up(
    spark: SparkSession,
    folder: JobFolder,
    cuts: Mapping[int, Described],
    places: Mapping[int, Place],
    audited: Sequence[int],
) -> Lined:
    previous = {epoch: other for epoch in audited if (other := places[epoch].previous) in cuts and other is not None}
    restored = {epoch: other for epoch in audited if (other := places[epoch].restored) in cuts and other is not None}
    attempts = {epoch: cut.entry.attempt for epoch, cut in cuts.items()}
    return Lined(
        tables=cut_tables(spark, folder, sorted(cuts)),
        audited=tuple(audited),
        modes={epoch: cuts[epoch].manifest["mode"] for epoch in audited},
        previous=previous,
        of_attempt={epoch: other for epoch, other in previous.items() if attempts[other] == attempts[epoch]},
        restored={epoch: o for epoch, o in restored.items() if cuts[o].tasks.keys() == cuts[epoch].tasks.keys()},
    )


def _judge(
    spark: SparkSession,
    lined: Lined,
    cuts: Mapping[int, Described],
    places: Mapping[int, Place],
    found: Mapping[int, Found],
) -> None:
    """Find what is wrong in the rows of all cuts at once, and file it under its cut."""
    counted = {epoch: Counted() for epoch in lined.audited}
    frames = {
        "channel": _shown(channels(lined)),
        "source": of_sources(lined),
        "sink": of_sinks(lined),
        "state": of_state(lined),
    }
    # One query for all of it: each has a start-up time of its own.
    for what, epoch, row in _collected(frames):
        match what:
            case "channel":
                found[epoch].add_channel(row, epoch)
            case "source":
                counted[epoch].sources[row["operator"]] = row
            case "sink":
                counted[epoch].sinks[row["operator"]] = row
            case _:
                counted[epoch].state[row["operator"], row["task_index"]] = row
    for epoch in lined.audited:
        before, is_first = lined.previous.get(epoch), places[epoch].previous is None
        of_operators = check_operators(cuts[epoch], counted[epoch], cuts.get(before or 0), is_first=is_first)
        found[epoch].counted = counted[epoch]
        found[epoch].add(of_operators)


def _collected(frames: Mapping[str, DataFrame]) -> Iterator[tuple[str, int, Facts]]:
    """The rows of some tables, each as an object."""
    rows = [
        frame.select(F.lit(what).alias("what"), "epoch", F.to_json(F.struct(*frame.columns), _ALL_FIELDS).alias("row"))
        for what, frame in frames.items()
    ]
    collected: Any = together(rows).collect()
    for what, epoch, row in collected:
        yield what, epoch, json.loads(row)


def _shown(of_channels: DataFrame) -> DataFrame:
    """Some channels of each cut: those first in which something is wrong or in flight. With the totals of all."""
    of_cut = Window.partitionBy("epoch")
    order = (F.size("findings").desc(), F.desc("logged"), "channel")
    of = F.col("findings.statement")
    totals = [F.sum(F.size(of) - F.size(F.array_remove(of, number))).over(of_cut) for number in OF_CHANNELS]
    numbered = of_channels.withColumns(
        {"totals": F.array(*totals), "number": F.row_number().over(of_cut.orderBy(*order))}
    )
    return numbered.where(F.col("number") <= CHANNELS_MAX).select(*SHOWN, "findings", "totals")
