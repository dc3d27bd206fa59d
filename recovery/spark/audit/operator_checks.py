"""Checks sources and sinks against statements 6 and 8, and state against statement 5.

A source counts the records it sends independently of its reader, which reports the position in each split. A sink
counts the records it writes independently of its transactions, which state how many records each holds. The checks
compare operators, not tasks, because rescaling redistributes splits and transactions.

Spark aggregates all splits and transactions to one row per operator, with the first fault of each kind and the number
of faults; `check_operators` compares these rows with the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from backedge.graphs.ids import TaskId
from backedge.graphs.routing import task_of_group
from backedge.recovery.spark.audit.cut_roles import BEFORE, NOW, CutRoles, aggregated, telling
from backedge.recovery.spark.audit.manifest_checks import CutDocuments, begun_again
from backedge.recovery.spark.report.verdict import Facts, Finding

# Positions count records in in-memory splits and in row groups, and are byte offsets in other splits with a size. What
# they are elsewhere is not known: they need not grow.
_COUNTS_RECORDS = r"split RLIKE r'^\d+-of-\d+$|&group=\d+$'"
# The last line of a range may end after the range, but not after the file.
_START, _STOP, _SIZE = (
    f"try_cast(regexp_extract(split, r'{pattern}', 1) AS bigint)"
    for pattern in (r"&start=(\d+)", r"&stop=(\d+)", r"\?size=(\d+)")
)

_OF_OPERATOR = ("epoch", "operator")
_IS_NOW = f"role = '{NOW}'"


def source_facts(roles: CutRoles) -> DataFrame:
    """One row per source: number of `splits`, records `counted` by positions, `uncounted` splits, and `faults`."""
    splits = aggregated(
        roles.rows("positions", NOW, BEFORE).where(roles.goes_on),
        (*_OF_OPERATOR, "split"),
        f"sum(int({_IS_NOW})) AS times",
        f"min(if({_IS_NOW}, position_int, NULL)) AS now",
        f"max(if({_IS_NOW}, NULL, position_int)) AS before",
    ).selectExpr(
        "*",
        "times > 0 AS is_there",
        f"{_COUNTS_RECORDS} AS counts",
        f"coalesce({_START}, 0) AS start",
        f"if({_COUNTS_RECORDS}, {_STOP}, {_SIZE}) AS stop",
    )
    return aggregated(
        splits,
        _OF_OPERATOR,
        "sum(int(is_there)) AS splits",
        "coalesce(sum(if(counts, now, NULL)), 0) AS counted",
        "sum(int(is_there AND (NOT counts OR now IS NULL))) AS uncounted",
        "max(is_there AND (now IS NULL OR now > start)) AS was_read",
        _faults(
            {
                "NOT is_there": (8, "split {split:s} was in the previous cut and is missing"),
                "times > 1": (5, "split {split:s} is in {times} tasks"),
                "is_there AND counts AND now IS NULL": (
                    6,
                    "the position in split {split:s} is not a number of records",
                ),
                f"(counts OR {_SIZE} IS NOT NULL) AND now < before": (
                    8,
                    "the position in split {split:s} is {now}, before the {before} of the previous cut",
                ),
                "now < start OR now > stop": (6, "the position in split {split:s} is {now}, outside the split"),
            }
        ),
    )


def sink_facts(roles: CutRoles) -> DataFrame:
    """One row per sink: the records `held` by transactions that are new in this cut, and `faults`."""
    # Transactions committed since the previous cut are no longer listed.
    listed = aggregated(
        roles.rows("transactions", NOW, BEFORE),
        (*_OF_OPERATOR, "name"),
        f"sum(int({_IS_NOW})) AS times",
        f"sum(int(NOT ({_IS_NOW}))) AS times_before",
        *(f"max(if({_IS_NOW}, {name}, NULL)) AS {name}" for name in ("prepared_epoch", "prepared_attempt", "records")),
        "count(DISTINCT prepared_epoch, prepared_attempt, records) AS versions",
    ).where("times > 0")
    ending = "concat('.attempt-', prepared_attempt, '.epoch-', prepared_epoch)"
    return aggregated(
        listed,
        _OF_OPERATOR,
        "sum(if(times_before = 0, records, 0)) AS held",
        _faults(
            {
                "times > 1": (6, "transaction {name:s} is listed {times} times"),
                f"NOT (startswith(name, concat(operator, '.')) AND endswith(name, {ending}))": (
                    6,
                    "the name of transaction {name:s} does not match its epoch {prepared_epoch} and attempt "
                    "{prepared_attempt}",
                ),
                "prepared_epoch > epoch": (
                    6,
                    "transaction {name:s} belongs to epoch {prepared_epoch}, later than this cut",
                ),
                "versions > 1 AND times_before > 0": (
                    6,
                    "transaction {name:s} differs from the one of that name in the previous cut: two epochs share it",
                ),
            }
        ),
    )


def state_facts(roles: CutRoles) -> DataFrame:
    """One row per operator, task and layer: its number of state rows, and their lowest and highest key group."""
    figures = ("count(*) AS rows", "min(key_group) AS lowest", "max(key_group) AS highest")
    return aggregated(roles.now("state_layers"), (*_OF_OPERATOR, "task_index", "layer"), *figures)


def _faults(faults: Mapping[str, tuple[int, str]]) -> str:
    """Of each fault that occurs: its statement, the number of rows that have it, and the story of the first."""
    found: list[str] = []
    for wrong, (statement, story) in faults.items():
        text = f"if({wrong}, {telling(story)}, NULL)"
        found.append(f"struct({statement} AS statement, count({text}) AS found, min({text}) AS story)")
    return f"filter(array({', '.join(found)}), fault -> fault.found > 0) AS faults"


# -- findings ------------------------------------------------------------------------------------------------------


Counts = Mapping[str, int]


@dataclass
class OperatorCounts:
    """Figures aggregated from the rows of a cut: state by operator, task and layer, the others by operator."""

    sources: dict[str, Facts] = field(default_factory=dict[str, Facts])
    sinks: dict[str, Facts] = field(default_factory=dict[str, Facts])
    answers: dict[str, Facts] = field(default_factory=dict[str, Facts])
    state: dict[tuple[str, int, int], Facts] = field(default_factory=dict[tuple[str, int, int], Facts])

    def read(self, source: str) -> int | None:
        """Number of records read according to positions; None if some positions are byte offsets."""
        found = self.sources.get(source)
        return found["counted"] if found is not None and not found["uncounted"] else None


def records_of(cut: CutDocuments | None, kind: str) -> dict[str, int]:
    """Records counted by each operator of a kind since the job began, over all its tasks."""
    records: dict[str, int] = {}
    for task in cut.manifest["tasks"] if cut is not None else ():
        for facts in task["operators"]:
            if facts["kind"] == kind:
                records[facts["name"]] = records.get(facts["name"], 0) + facts["records"]
    return records


def check_operators(
    cut: CutDocuments, counted: OperatorCounts, before: CutDocuments | None, *, is_first: bool
) -> Iterator[tuple[Finding, int]]:
    """Findings, each with its number of occurrences. `before` is the previous cut if it still exists.

    `is_first` says that this cut is the first of the job.
    """
    begun = begun_again(cut, before)
    former = {
        kind: {name: count for name, count in records_of(before, kind).items() if name not in begun}
        for kind in ("source", "sink")
    }
    yield from ((one, 1) for one in _check_sources(cut, counted))
    if before is not None or is_first:
        yield from ((one, 1) for one in _check_sinks(cut, counted, former["sink"]))
    yield from ((one, 1) for one in _check_state(cut, counted))
    for kind, rows in (("source", counted.sources), ("sink", counted.sinks)):
        for name, count in former[kind].items():
            now = records_of(cut, kind).get(name, 0)
            if now < count:
                story = f"{kind} {name!r} has counted {now} records, fewer than the {count} in the previous cut"
                yield cut.wrong(8, story), 1
        for name, row in rows.items():
            for fault in row["faults"]:
                more = f" (and {fault['found'] - 1} more)" if fault["found"] > 1 else ""
                story = f"{kind} {name!r}: {fault['story']}{more}"
                yield cut.wrong(fault["statement"], story), fault["found"]


def _check_sources(cut: CutDocuments, counted: OperatorCounts) -> Iterator[Finding]:
    for name, sent in records_of(cut, "source").items():
        row: Mapping[str, Any] = counted.sources.get(name, {"splits": 0, "was_read": False})
        read = counted.read(name) if name in counted.sources else 0
        if read is not None and read != sent:
            yield cut.wrong(6, f"source {name!r} has sent {sent} records but its positions count {read}")
        elif sent and not row["was_read"]:
            story = f"source {name!r} has sent {sent} records but the positions are at the start of every split"
            yield cut.wrong(6, story)


def _check_sinks(cut: CutDocuments, counted: OperatorCounts, before: Counts) -> Iterator[Finding]:
    for name, written in records_of(cut, "sink").items():
        since = written - before.get(name, 0)
        held = counted.sinks[name]["held"] if name in counted.sinks else 0
        if since != held:
            story = f"sink {name!r} has written {since} records since the previous cut"
            yield cut.wrong(6, f"{story} but the transactions prepared since then hold {held}")


def _check_state(cut: CutDocuments, counted: OperatorCounts) -> Iterator[Finding]:
    parallelism: Counts = cut.manifest["parallelism"]
    for task in cut.manifest["tasks"]:
        id = TaskId(task["task"], task["index"])
        own, names = len(task["below"]), [facts["name"] for facts in task["operators"]]
        held = sum(row["rows"] for name in names if (row := counted.state.get((name, id.index, own))) is not None)
        if held != task["state_rows"]:
            story = f"its state files hold {held} rows but the manifest says {task['state_rows']}"
            yield cut.wrong(5, story, task=id)
        for name, layer in ((name, layer) for name in names for layer in range(own + 1)):
            row = counted.state.get((name, id.index, layer))
            if row is None or row.get("lowest") is None or name not in parallelism:
                continue
            # The task index increases with the key group, so checking the lowest and the highest is enough.
            homes = [task_of_group(row[end], parallelism[name]) for end in ("lowest", "highest")]
            if homes != [id.index, id.index]:
                story = f"operator {name!r} holds key groups {row['lowest']} to {row['highest']}, which belong to "
                story += f"tasks {homes[0]} to {homes[1]}"
                yield cut.wrong(5, story, task=id)
