"""What Spark has counted of operators, against what manifests say of them: small figures, compared here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphs.ids import TaskId
from graphs.routing import task_of_group
from recovery.spark.audit.presence import Described
from recovery.spark.report.verdict import Facts, Finding, finding

Counts = Mapping[str, int]


@dataclass
class Counted:
    """What the rows of a cut come to: of sources and sinks by operator, of state by operator and task."""

    sources: dict[str, Facts] = field(default_factory=dict[str, Facts])
    sinks: dict[str, Facts] = field(default_factory=dict[str, Facts])
    state: dict[tuple[str, int], Facts] = field(default_factory=dict[tuple[str, int], Facts])

    def read(self, source: str) -> int | None:
        """The records that positions count; None where some of them are offsets in bytes."""
        found = self.sources.get(source)
        return found["counted"] if found is not None and not found["uncounted"] else None


def records_of(cut: Described | None, kind: str) -> dict[str, int]:
    """How many records the operators of a kind have counted since the job began, over all tasks."""
    records: dict[str, int] = {}
    for task in cut.manifest["tasks"] if cut is not None else ():
        for facts in task["operators"]:
            if facts["kind"] == kind:
                records[facts["name"]] = records.get(facts["name"], 0) + facts["records"]
    return records


def check_operators(
    cut: Described, counted: Counted, before: Described | None, *, is_first: bool
) -> Iterator[tuple[Finding, int]]:
    """What is wrong, and how often. `before` is the cut before if it is there; `is_first`: there is none."""
    yield from ((one, 1) for one in _check_sources(cut, counted))
    if before is not None or is_first:
        yield from ((one, 1) for one in _check_sinks(cut, counted, records_of(before, "sink")))
    yield from ((one, 1) for one in _check_state(cut, counted))
    for kind, rows in (("source", counted.sources), ("sink", counted.sinks)):
        for name, count in records_of(before, kind).items():
            now = records_of(cut, kind).get(name, 0)
            if now < count:
                story = f"{kind} {name!r} has counted {now} records, and {count} in the cut before"
                yield finding(8, story, cut.epoch), 1
        for name, row in rows.items():
            for fault in row["faults"]:
                more = f" (and {fault['found'] - 1} more)" if fault["found"] > 1 else ""
                story = f"{kind} {name!r}: {fault['story']}{more}"
                yield finding(fault["statement"], story, cut.epoch), fault["found"]


def _check_sources(cut: Described, counted: Counted) -> Iterator[Finding]:
    for name, sent in records_of(cut, "source").items():
        row: Mapping[str, Any] = counted.sources.get(name, {"splits": 0, "was_read": False})
        read = counted.read(name) if name in counted.sources else 0
        if read is not None and read != sent:
            yield finding(6, f"source {name!r} has sent {sent} records, and its positions count {read}", cut.epoch)
        elif sent and not row["was_read"]:
            story = f"source {name!r} has sent {sent} records, and all of its splits are where they begin"
            yield finding(6, story, cut.epoch)


def _check_sinks(cut: Described, counted: Counted, before: Counts) -> Iterator[Finding]:
    for name, written in records_of(cut, "sink").items():
        since = written - before.get(name, 0)
        held = counted.sinks[name]["held"] if name in counted.sinks else 0
        if since != held:
            story = f"sink {name!r} has written {since} records since the cut before"
            yield finding(6, f"{story}, and the transactions prepared since then hold {held}", cut.epoch)


def _check_state(cut: Described, counted: Counted) -> Iterator[Finding]:
    parallelism: Counts = cut.manifest["parallelism"]
    for task in cut.manifest["tasks"]:
        id = TaskId(task["task"], task["index"])
        rows = {facts["name"]: counted.state.get((facts["name"], id.index)) for facts in task["operators"]}
        held = sum(row["rows"] for row in rows.values() if row is not None)
        if held != task["state_rows"]:
            story = f"its files of state hold {held} rows, and the manifest says {task['state_rows']}"
            yield finding(5, story, cut.epoch, task=str(id))
        for name, row in rows.items():
            if row is None or row.get("least") is None or name not in parallelism:
                continue
            # The task of a key group grows with the group: the least and the greatest tell of all.
            homes = [task_of_group(row[end], parallelism[name]) for end in ("least", "greatest")]
            if homes != [id.index, id.index]:
                story = f"operator {name!r} holds key groups {row['least']} to {row['greatest']}, which belong to "
                story += f"tasks {homes[0]} to {homes[1]}"
                yield finding(5, story, cut.epoch, task=str(id))
