"""What was found of one cut, and the verdict that comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from recovery.spark.lineage import Place
from recovery.spark.presence import Described
from recovery.spark.verdict import (
    FINDINGS_MAX,
    STATEMENTS,
    CutVerdict,
    Facts,
    Finding,
    InvariantResult,
    StatementResult,
)
from recovery.spark.verifying import sizes_of


@dataclass
class Found:
    """What is wrong with a cut, and what is shown of it."""

    findings: list[Finding] = field(default_factory=list[Finding])
    totals: dict[int, int] = field(default_factory=dict[int, int])
    channels: list[Facts] = field(default_factory=list[Facts])
    read: dict[str, Facts] = field(default_factory=dict[str, Facts])
    invariants: list[InvariantResult] = field(default_factory=list[InvariantResult])

    def add(self, findings: Iterable[Finding], total: int = 0) -> None:
        """More of them. `total` is how many there are of that statement where not all are told."""
        for found in findings:
            self.findings.append(found)
            self.totals[found.statement] = max(total, self.totals.get(found.statement, 0))


def conclude(cut: Described, place: Place, found: Found, is_readable: bool, there: Set[int]) -> CutVerdict:
    """The verdict over a cut. `there` are the cuts that could be read."""
    manifest, sizes = cut.manifest, sizes_of(cut.manifest)
    declared = manifest["deployment"]["channels"]
    counted = sum(channel["within_actor"] for channel in declared)
    sizes |= {"channels": len(declared), "digested": len(declared) - counted, "counted": counted}
    compared = dict(_compared(cut, place, found, sizes, there)) if is_readable else {}
    findings = [*found.findings, *_of_invariants(cut, found)]
    counts = Counter(one.statement for one in findings)
    told = sorted(findings, key=lambda one: one.statement)
    return CutVerdict(
        epoch=cut.epoch,
        attempt=int(cut.entry.attempt),
        policy=manifest["mode"],
        savepoint=manifest["savepoint"],
        previous=place.previous,
        graph_hash=manifest["graph_hash"],
        graph=cut.graph,
        parallelism=manifest["parallelism"],
        tasks=[_task_facts(cut, task) for task in manifest["tasks"]],
        channels=sorted(found.channels, key=lambda one: (one["edge"], one["sender_index"], one["receiver_index"])),
        positions=list(_position_facts(cut, found)),
        sizes=sizes,
        statements=[
            StatementResult(
                number,
                name,
                max(counts[number], found.totals.get(number, 0)),
                compared.get(number, "not compared: its files cannot be told apart"),
            )
            for number, name in STATEMENTS.items()
        ],
        invariants=found.invariants,
        findings=list(_limited(told)),
    )


def _of_invariants(cut: Described, found: Found) -> Iterator[Finding]:
    for one in found.invariants:
        if not one.holds:
            first = f": {one.examples[0]}" if one.examples else ""
            yield Finding(7, one.name, f"{one.rows:,} rows are wrong, the first is{first}", cut.epoch)


def _limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    told = Counter[int]()
    for found in findings:
        told[found.statement] += 1
        if told[found.statement] <= FINDINGS_MAX:
            yield found


def _compared(cut: Described, place: Place, found: Found, sizes: Facts, there: Set[int]) -> Iterator[tuple[int, str]]:
    """What was looked at for each statement."""
    manifest, graph = cut.manifest, cut.graph
    kinds = Counter(operator["kind"] for operator in graph["operators"])
    back = sum(edge["loop"] is not None for edge in graph["edges"])
    logged = sum(channel["is_back"] for channel in manifest["deployment"]["channels"])
    before = f"against epoch {place.previous}"
    if place.previous is None:
        before = "the first cut: it is held against the beginning"
    elif place.previous not in there:
        before = f"not compared: epoch {place.previous}, the cut before, is not there any more"
    regular = "all channels may hold something" if manifest["mode"] == "unaligned" else ""
    empty = sizes["channels"] if manifest["mode"] == "drain" else sizes["channels"] - logged
    yield 1, f"{sizes['channels']:,} channels"
    yield 2, f"{sizes['digested']:,} channels digested, {sizes['counted']:,} counted; {sizes['log_batches']:,} batches"
    yield 3, regular or f"{empty:,} channels"
    yield 4, f"{len(graph['edges']):,} edges, {back:,} of them back edges"
    yield 5, f"{len(manifest['tasks']):,} tasks, {sizes['channels']:,} channels, {sizes['files']:,} files"
    yield 6, f"{kinds['source']:,} sources, {kinds['sink']:,} sinks; output: {before}"
    yield 7, f"{len(found.invariants):,} invariants" if found.invariants else "no invariant was given"
    yield 8, before


def _task_facts(cut: Described, task: Facts) -> Facts:
    placed = {(one["task"], one["index"]): one for one in cut.manifest["deployment"]["tasks"]}
    return {
        "task": task["task"],
        "index": task["index"],
        "operators": [facts["name"] for facts in task["operators"]],
        "actor": placed.get((task["task"], task["index"]), {}).get("actor"),
        "ended": task["ended"],
        "state_rows": task["state_rows"],
        "bytes": sum(file["size"] for file in task["files"]),
    }


def _position_facts(cut: Described, found: Found) -> Iterator[Facts]:
    """What each source has sent and each sink written, since the job began."""
    records: dict[tuple[str, str], int] = {}
    for facts in (facts for task in cut.manifest["tasks"] for facts in task["operators"]):
        if facts["kind"] in ("source", "sink"):
            key = (facts["name"], facts["kind"])
            records[key] = records.get(key, 0) + facts["records"]
    for (name, kind), count in records.items():
        read = found.read.get(name, {"splits": None, "read": None})
        yield {"operator": name, "kind": kind, "records": count, **read}
