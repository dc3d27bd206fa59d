"""Proves of cuts that they are consistent, or says what is wrong, from what lies on disk alone.

1. What is small is read and judged here: the chain, manifests, graphs (`lineage.py`, `presence.py`).
2. Every file is hashed, before one is decoded (`verifying.py`).
3. The rows are judged where Spark's tasks run: channels and logs (`channel_checks.py`), what sources, sinks and keyed
   state hold (`operator_checks.py`), the user's invariants (`invariants.py`). What comes back is what is wrong, up to
   a limit, and a row a channel.

Nothing is shared with the engine: that it ran is all that is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from pyspark.sql import Window
from pyspark.sql import functions as F

from recovery.spark.channel_checks import EVIDENCE, KEY, SHOWN, channels
from recovery.spark.invariants import check_invariants
from recovery.spark.job import JobFolder
from recovery.spark.lineage import Place, attempts_in, check_chain, places_in
from recovery.spark.lined_up import Lined, together
from recovery.spark.operator_checks import found_in_operators, source_figures
from recovery.spark.presence import Described, check_cover, check_presence, has_readable_files
from recovery.spark.result import Found, conclude
from recovery.spark.session import is_local
from recovery.spark.tables import cut_tables
from recovery.spark.verdict import FINDINGS_MAX, Facts, Finding, Verdict, finding
from recovery.spark.verifying import verify_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANNELS_MAX = 2_000
"""So many channels of a cut are told one by one, those first in which something is wrong or in flight."""

Epochs = Literal["latest", "all"] | Sequence[int]


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
    links = folder.links()
    places, there = places_in(links), set(folder.cuts())
    chosen = _chosen(folder, epochs)
    wanted = {other for epoch in chosen for other in (epoch, *_others(places.get(epoch)))}
    cuts = {epoch: _described(folder, places[epoch], epoch) for epoch in sorted(wanted & (there | set(chosen)))}
    found = {epoch: Found([*check_cover(cuts[epoch]), *check_presence(cuts[epoch])]) for epoch in chosen}
    progress(f"verifying the files of {len(cuts)} cuts of {folder.job}")
    verify_files(spark, folder, (cut.manifest for cut in cuts.values()))
    readable = {epoch for epoch, cut in cuts.items() if has_readable_files(cut)}
    audited = [epoch for epoch in chosen if epoch in readable]
    if audited:
        # Views are made for invariants: those of the session's owner stay what they are.
        own = spark.newSession() if is_local(spark) else spark
        progress(f"judging {len(audited)} of them")
        lined = _line_up(own, folder, {epoch: cuts[epoch] for epoch in readable}, places, audited)
        _judge(own, lined, cuts, found)
        for epoch in audited:
            found[epoch].invariants = check_invariants(own, lined.tables, epoch, invariants or {})
    of_chain: list[Finding] = []
    for one in check_chain(links):
        (found[one.epoch].add([one]) if one.epoch in found else of_chain.append(one))
    return Verdict(
        job=folder.job,
        job_id=folder.job_id,
        path=folder.path,
        epochs=[conclude(cuts[epoch], places[epoch], found[epoch], epoch in readable, set(cuts)) for epoch in chosen],
        attempts=attempts_in(links),
        of_chain=of_chain,
    )


def _chosen(folder: JobFolder, epochs: Epochs) -> list[int]:
    if epochs == "latest":
        return [folder.latest()]
    if epochs == "all":
        folder.latest()
        return folder.cuts()
    return sorted({int(epoch) for epoch in epochs})


def _others(place: Place | None) -> Iterable[int]:
    """The cuts that one is held against."""
    return () if place is None else (epoch for epoch in (place.previous, place.restored) if epoch is not None)


def _described(folder: JobFolder, place: Place, epoch: int) -> Described:
    manifest = folder.manifest(epoch)
    return Described(place.entry, manifest, folder.graph(manifest["graph_hash"]))


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
        first=frozenset(epoch for epoch in audited if places[epoch].previous is None),
    )


def _judge(spark: SparkSession, lined: Lined, cuts: Mapping[int, Described], found: Mapping[int, Found]) -> None:
    """Find what is wrong in the rows of all cuts at once, and file it under its cut."""
    of_channels = channels(lined, _told(spark, lined, cuts)).persist()
    try:
        one = of_channels.select("epoch", "channel", F.explode("findings").alias("found"))
        of_operators = found_in_operators(lined, _widths(spark, lined, cuts))
        wrong = together((one.select("epoch", "channel", "found.statement", "found.story"), of_operators))
        for row in _first(wrong, ("epoch", "statement"), ("channel", "task", "story"), FINDINGS_MAX).collect():
            said = finding(row.statement, row.story, row.epoch, channel=row.channel, task=row.task)
            found[row.epoch].add([said], row.total)
        shown = of_channels.withColumn("wrong", -F.size("findings")).withColumn("flying", -F.col("logged"))
        for row in _first(shown, ("epoch",), ("wrong", "flying", "channel"), CHANNELS_MAX).select(*SHOWN).collect():
            found[row.epoch].channels.append(_channel_facts(row.asDict()))
        for row in source_figures(lined).select("epoch", "operator", "splits", "read").collect():
            found[row.epoch].read[row.operator] = {"splits": row.splits, "read": row.read}
    finally:
        of_channels.unpersist()


def _first(rows: DataFrame, group: Sequence[str], order: Sequence[str], most: int) -> DataFrame:
    """The first rows of each group, with the `total` of its rows."""
    of_group = Window.partitionBy(*group)
    number = F.row_number().over(of_group.orderBy(*order))
    return rows.withColumns({"total": F.count("*").over(of_group), "number": number}).where(F.col("number") <= most)


def _channel_facts(row: Facts) -> Facts:
    shown = {name: row[name] for name in SHOWN if name not in ("epoch", "channel")}
    return {**shown, "within_actor": bool(row["within_actor"]), "is_back": bool(row["is_back"])}


def _told(spark: SparkSession, lined: Lined, cuts: Mapping[int, Described]) -> DataFrame:
    """The ends of channels as manifests tell them, with the columns of `channels` that are compared."""
    rows = [
        (epoch, *_ends(channel["channel"]), *(channel[name] for name in EVIDENCE))
        for epoch in lined.audited
        for task in cuts[epoch].manifest["tasks"]
        for channel in task["channels"]
    ]
    like = lined.tables["channels"].select(*KEY, *EVIDENCE)
    return cast(Any, spark).createDataFrame(rows, like.schema)


def _ends(channel: Facts) -> tuple[Any, ...]:
    return (channel["edge"], *channel["sender"], *channel["receiver"], channel["restored"])


def _widths(spark: SparkSession, lined: Lined, cuts: Mapping[int, Described]) -> DataFrame:
    """The operators of each task, with the parallelism of each, and the rows of state that the task says it has."""
    rows = [
        (epoch, task["task"], task["index"], facts["name"], parallelism.get(facts["name"]), task["state_rows"])
        for epoch in lined.audited
        for parallelism in [cuts[epoch].manifest["parallelism"]]
        for task in cuts[epoch].manifest["tasks"]
        for facts in task["operators"]
    ]
    columns = "epoch bigint, task string, task_index int, operator string, width int, state_rows bigint"
    return cast(Any, spark).createDataFrame(rows, columns)
