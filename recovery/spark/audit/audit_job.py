"""Proves from the files on disk that cuts are consistent, or reports what is wrong with them.

1. The small documents (chain, manifests, graphs) are read and checked without Spark (`job_documents.py`,
   `lineage.py`, `manifest_checks.py`).
2. Every file is hashed before any file is decoded (`file_verification.py`).
3. Rows are checked in Spark's tasks: channels and logs (`channel_checks.py`), sources, sinks and keyed state
   (`operator_checks.py`, `replaced_files.py`), answers of calls (`answer_checks.py`), the user's invariants
   (`invariants.py`). Only findings, up to a limit, and one row per channel come back to the driver.

The audit shares no code with the engine and asks nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from backedge.recovery.spark.audit import answer_checks
from backedge.recovery.spark.audit.channel_checks import CHANNEL_STATEMENTS, REPORTED_COLUMNS, check_channels
from backedge.recovery.spark.audit.cut_roles import CutRoles, Tables, union_rows
from backedge.recovery.spark.audit.file_verification import file_findings, listed_in, manifest_sizes, verify_files
from backedge.recovery.spark.audit.invariants import check_invariants, named_tables
from backedge.recovery.spark.audit.job_documents import conclude, judge_documents, read_documents
from backedge.recovery.spark.audit.manifest_checks import CutDocuments, begun_again, has_readable_files
from backedge.recovery.spark.audit.operator_checks import (
    OperatorCounts,
    check_operators,
    sink_facts,
    source_facts,
    state_facts,
)
from backedge.recovery.spark.audit.replaced_files import replaced_files, replaced_findings
from backedge.recovery.spark.cut_tables.cut_tables import cut_tables
from backedge.recovery.spark.cut_tables.job_folder import Epochs, JobFolder
from backedge.recovery.spark.cut_tables.lineage import Place
from backedge.recovery.spark.cut_tables.listed_files import unreadable_files
from backedge.recovery.spark.report.audit_result import Found
from backedge.recovery.spark.report.verdict import Facts, Verdict
from backedge.recovery.spark.sessions.spark_session import is_local
from backedge.recovery.spark.spark_errors import UnreadableError

CHANNELS_MAX = 2_000
"""Channels of a cut listed one by one; those with findings or with records in flight come first."""

CHECKED = frozenset({"graph_channels", "channels", "log", "positions", "transactions", "state_layers"})
"""The tables whose rows the audit itself compares."""

SMALL_BYTES = 4 << 20
"""Below this size, Spark's optimisations for large data cost more than they save."""


def audit(
    spark: SparkSession,
    folder: JobFolder,
    epochs: Epochs = "latest",
    invariants: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    *,
    has_journal: bool = True,
) -> Verdict:
    """Audit cuts of a job: the latest, all of them, or the given epochs. `progress` is called before each step.

    `invariants` maps names to queries over the tables of a cut; each row that a query returns is a violation.
    `has_journal`: whether the folder has the answers that were written since the previous cut. Raises
    `UnreadableError` if nothing can be audited, `InvariantError` if an invariant is not a valid query.
    """
    documents = read_documents(folder, epochs)
    cuts, places, chosen = documents.cuts, documents.places, documents.chosen
    found = judge_documents(documents)
    sizes = [manifest_sizes(cut.manifest) for cut in cuts.values()]
    readable = {epoch for epoch, cut in cuts.items() if has_readable_files(cut)}
    # Invariants create views, which must not replace views of the session's owner.
    size = sum(size["bytes"] for size in sizes)
    own = _own_session(spark, size)
    progress(f"verifying files: {sum(size['files'] for size in sizes):,}")
    verified = verify_files(own, folder, (cuts[epoch] for epoch in sorted(readable)))
    for epoch in sorted(readable) if verified.unreadable else ():
        told = [verified.unreadable[file] for file in listed_in([cuts[epoch]]) if file in verified.unreadable]
        if told and epoch in chosen:
            raise UnreadableError(told[0])
        if told:
            readable.remove(epoch)  # it is only compared with, and the others are judged without it
    cuts = {epoch: cuts[epoch] for epoch in readable}
    audited = [epoch for epoch in chosen if epoch in readable]
    for epoch in audited:
        found[epoch].add((one, 1) for one in file_findings(cuts[epoch], verified.faults))
    if audited:
        progress(f"checking cuts: {len(audited):,}")
        named = named_tables((invariants or {}).values())
        asking = answer_checks.asking(cuts.values())
        checked = CHECKED | answer_checks.TABLES if asking else CHECKED
        tables = cut_tables(own, folder, sorted(readable), checked | named)
        with unreadable_files():
            # A wrong query is reported before the rows are compared, which takes longer.
            for epoch in audited if invariants else ():
                # A query over all cuts reads the files of each. To read small ones again is cheaper than to plan again.
                of_cut = tables if size < SMALL_BYTES else cut_tables(own, folder, [epoch], named)
                found[epoch].invariants = check_invariants(own, of_cut, epoch, invariants or {})
            roles = _assign_roles(tables, cuts, places, audited)
            for epoch in roles.previous.values() if asking else ():
                folder.manifest(epoch)  # retention removes a cut before its answers, so the tables have them all
            frames = answer_checks.answer_facts(roles, cuts, has_journal=has_journal) if asking else {}
            _judge(own, roles, cuts, places, found, frames)
    return conclude(folder, documents, found, readable)


def _own_session(spark: SparkSession, size: int) -> SparkSession:
    """A session on the same Spark with its own views and settings."""
    own = spark.newSession() if is_local(spark) else spark
    if own is not spark and size < SMALL_BYTES:
        # Replanning after every stage and compiling code takes longer than running small queries.
        for setting in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
            own.conf.set(setting, "false")
        own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        # By default a small file counts as one of 4 MB, so that every file becomes a task of its own, and rows that
        # are in the plan become as many tasks as there are cores. What is in one partition needs no shuffle.
        for setting, value in {
            "leafNodeDefaultParallelism": "1",
            "shuffle.partitions": "1",
            "files.minPartitionNum": "1",
            "files.openCostInBytes": "0",
        }.items():
            own.conf.set(f"spark.sql.{setting}", value)
    return own


def _assign_roles(
    tables: Tables,
    cuts: Mapping[int, CutDocuments],
    places: Mapping[int, Place],
    audited: Sequence[int],
) -> CutRoles:
    previous = {epoch: other for epoch in audited if (other := places[epoch].previous) in cuts and other is not None}
    restored = {epoch: other for epoch in audited if (other := places[epoch].restored) in cuts and other is not None}
    attempts = {epoch: cut.entry.attempt for epoch, cut in cuts.items()}
    return CutRoles(
        tables=tables,
        audited=tuple(audited),
        modes={epoch: cuts[epoch].manifest["mode"] for epoch in audited},
        previous=previous,
        previous_in_attempt={epoch: other for epoch, other in previous.items() if attempts[other] == attempts[epoch]},
        restored={epoch: o for epoch, o in restored.items() if _keep_their_logs(cuts[o], cuts[epoch])},
        begun={epoch: begun_again(cuts[epoch], cuts[other]) for epoch, other in previous.items()},
    )


def _keep_their_logs(restored: CutDocuments, cut: CutDocuments) -> bool:
    """Whether what a cut had logged stayed in its channels: it is moved under another parallelism or graph, or if state
    was dropped.
    """
    is_same_graph = restored.manifest["graph_hash"] == cut.manifest["graph_hash"]
    return is_same_graph and restored.tasks.keys() == cut.tasks.keys() and not begun_again(cut, restored)


def _judge(
    spark: SparkSession,
    roles: CutRoles,
    cuts: Mapping[int, CutDocuments],
    places: Mapping[int, Place],
    found: Mapping[int, Found],
    of_answers: Mapping[str, DataFrame],
) -> None:
    """Check the rows of all cuts at once and add each finding to its cut."""
    counted = {epoch: OperatorCounts() for epoch in roles.audited}
    frames = {
        "channel": _channels_to_list(check_channels(roles)),
        "source": source_facts(roles),
        "sink": sink_facts(roles),
        "state": state_facts(roles),
        **of_answers,
    }
    replaced = replaced_files(spark, roles, cuts)
    if replaced is not None:
        frames["replaced"] = replaced
    # One query for all, because every query has its own start-up time.
    for what, epoch, row in _collected(frames):
        match what:
            case "channel":
                found[epoch].add_channel(row, epoch)
            case "source":
                counted[epoch].sources[row["operator"]] = row
            case "sink":
                counted[epoch].sinks[row["operator"]] = row
            case "paid" | "asked" | "journal":
                counted[epoch].answers.setdefault(row["operator"], {}).update(row)
            case "replaced":
                found[epoch].add(replaced_findings(cuts[epoch], row))
            case _:
                counted[epoch].state[row["operator"], row["task_index"], row["layer"]] = row
    for epoch in roles.audited:
        before, is_first = roles.previous.get(epoch), places[epoch].previous is None
        of_operators = check_operators(cuts[epoch], counted[epoch], cuts.get(before or 0), is_first=is_first)
        found[epoch].counted = counted[epoch]
        found[epoch].add(of_operators)
        found[epoch].add(answer_checks.check_answers(cuts[epoch], counted[epoch].answers))


def _collected(frames: Mapping[str, DataFrame]) -> Iterator[tuple[str, int, Facts]]:
    """Collect the rows of all frames: the name of the frame, the epoch, and the row as an object."""
    whole_row = "to_json(struct(*), map('ignoreNullFields', 'false')) AS row"
    rows = [frame.selectExpr(f"'{what}' AS what", "epoch", whole_row) for what, frame in frames.items()]
    collected: Any = union_rows(rows).collect()
    for what, epoch, row in collected:
        yield what, epoch, json.loads(row)


def _channels_to_list(channels: DataFrame) -> DataFrame:
    """The first `CHANNELS_MAX` channels of each cut, and the number of findings in all of them."""
    of_cut = "PARTITION BY epoch"
    totals = [
        f"sum(size(filter(findings, one -> one.statement = {number}))) OVER ({of_cut})" for number in CHANNEL_STATEMENTS
    ]
    numbered = channels.selectExpr(
        "*",
        f"array({', '.join(totals)}) AS totals",
        f"row_number() OVER ({of_cut} ORDER BY size(findings) DESC, logged DESC, channel) AS number",
    )
    return numbered.where(f"number <= {CHANNELS_MAX}").select(*REPORTED_COLUMNS, "findings", "totals")
