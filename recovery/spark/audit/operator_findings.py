"""Compares the per-operator figures that Spark aggregated with the manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backedge.graphs.ids import TaskId
from backedge.graphs.routing import task_of_group
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.spark.report.verdict import Facts, Finding, finding

Counts = Mapping[str, int]


@dataclass
class OperatorCounts:
    """Figures aggregated from the rows of a cut: sources and sinks by operator, state by operator, task and layer."""

    sources: dict[str, Facts] = field(default_factory=dict[str, Facts])
    sinks: dict[str, Facts] = field(default_factory=dict[str, Facts])
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
    yield from ((one, 1) for one in _check_sources(cut, counted))
    if before is not None or is_first:
        yield from ((one, 1) for one in _check_sinks(cut, counted, records_of(before, "sink")))
    yield from ((one, 1) for one in _check_state(cut, counted))
    for kind, rows in (("source", counted.sources), ("sink", counted.sinks)):
        for name, count in records_of(before, kind).items():
            now = records_of(cut, kind).get(name, 0)
            if now < count:
                story = f"{kind} {name!r} has counted {now} records, fewer than the {count} in the previous cut"
                yield finding(8, story, cut.epoch), 1
        for name, row in rows.items():
            for fault in row["faults"]:
                more = f" (and {fault['found'] - 1} more)" if fault["found"] > 1 else ""
                story = f"{kind} {name!r}: {fault['story']}{more}"
                yield finding(fault["statement"], story, cut.epoch), fault["found"]


def _check_sources(cut: CutDocuments, counted: OperatorCounts) -> Iterator[Finding]:
    for name, sent in records_of(cut, "source").items():
        row: Mapping[str, Any] = counted.sources.get(name, {"splits": 0, "was_read": False})
        read = counted.read(name) if name in counted.sources else 0
        if read is not None and read != sent:
            yield finding(6, f"source {name!r} has sent {sent} records but its positions count {read}", cut.epoch)
        elif sent and not row["was_read"]:
            story = f"source {name!r} has sent {sent} records but the positions are at the start of every split"
            yield finding(6, story, cut.epoch)


def _check_sinks(cut: CutDocuments, counted: OperatorCounts, before: Counts) -> Iterator[Finding]:
    for name, written in records_of(cut, "sink").items():
        since = written - before.get(name, 0)
        held = counted.sinks[name]["held"] if name in counted.sinks else 0
        if since != held:
            story = f"sink {name!r} has written {since} records since the previous cut"
            yield finding(6, f"{story} but the transactions prepared since then hold {held}", cut.epoch)


def _check_state(cut: CutDocuments, counted: OperatorCounts) -> Iterator[Finding]:
    parallelism: Counts = cut.manifest["parallelism"]
    for task in cut.manifest["tasks"]:
        id = TaskId(task["task"], task["index"])
        own, names = len(task["below"]), [facts["name"] for facts in task["operators"]]
        held = sum(row["rows"] for name in names if (row := counted.state.get((name, id.index, own))) is not None)
        if held != task["state_rows"]:
            story = f"its state files hold {held} rows but the manifest says {task['state_rows']}"
            yield finding(5, story, cut.epoch, task=str(id))
        for name, layer in ((name, layer) for name in names for layer in range(own + 1)):
            row = counted.state.get((name, id.index, layer))
            if row is None or row.get("lowest") is None or name not in parallelism:
                continue
            # The task index increases with the key group, so checking the lowest and the highest is enough.
            homes = [task_of_group(row[end], parallelism[name]) for end in ("lowest", "highest")]
            if homes != [id.index, id.index]:
                story = f"operator {name!r} holds key groups {row['lowest']} to {row['highest']}, which belong to "
                story += f"tasks {homes[0]} to {homes[1]}"
                yield finding(5, story, cut.epoch, task=str(id))
