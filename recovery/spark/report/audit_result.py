"""Collects the findings of one cut and turns them into a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from backedge.graphs.wording import counted
from backedge.recovery.spark.audit.channel_checks import CHANNEL_STATEMENTS
from backedge.recovery.spark.audit.file_verification import manifest_sizes
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.spark.audit.operator_checks import OperatorCounts, records_of
from backedge.recovery.spark.cut_tables.lineage import Place
from backedge.recovery.spark.cut_tables.manifest_tables import layered_files
from backedge.recovery.spark.report.verdict import (
    FINDINGS_MAX,
    STATEMENTS,
    CutVerdict,
    Facts,
    Finding,
    InvariantResult,
    StatementResult,
    finding,
)


@dataclass
class Found:
    """The findings of a cut, and the figures to report. `totals` counts all findings per statement, listed or not."""

    findings: list[Finding] = field(default_factory=list[Finding])
    totals: Counter[int] = field(default_factory=Counter[int])
    channels: list[Facts] = field(default_factory=list[Facts])
    counted: OperatorCounts = field(default_factory=OperatorCounts)
    invariants: list[InvariantResult] = field(default_factory=list[InvariantResult])

    def add(self, found: Iterable[tuple[Finding, int]]) -> None:
        """Add findings, each with its number of occurrences."""
        for one, times in found:
            self.findings.append(one)
            self.totals[one.statement] += times

    def add_channel(self, row: Facts, epoch: int) -> None:
        """Add a row of `check_channels`. Every row carries the totals of all channels."""
        findings, totals, channel = row.pop("findings"), row.pop("totals"), row.pop("channel")
        if not self.channels:
            self.totals.update(dict(zip(CHANNEL_STATEMENTS, totals, strict=True)))
        self.findings += [finding(one["statement"], one["story"], epoch, channel=channel) for one in findings]
        flags = {name: bool(row[name]) for name in ("restored", "is_back", "within_actor")}
        self.channels.append({name: value for name, value in row.items() if name != "epoch"} | flags)


def conclude_cut(cut: CutDocuments, place: Place, found: Found, is_readable: bool, there: Set[int]) -> CutVerdict:
    """The verdict on a cut. `there` are the cuts that could be read."""
    manifest, sizes = cut.manifest, manifest_sizes(cut.manifest)
    tables = manifest["deployment"]["channels"]
    declared, counted = (sum(len(table[column]) for table in tables) for column in ("senders", "within_actor"))
    sizes |= {"channels": declared, "digested": declared - counted, "counted": counted}
    compared = dict(_compared(cut, place, found, sizes, there)) if is_readable else {}
    broken = sum(not one.holds for one in found.invariants)
    findings = sorted(found.findings, key=lambda one: one.statement)
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
        answers=list(_answer_facts(found)),
        sizes=sizes,
        statements=[
            StatementResult(
                number,
                name,
                broken if number == 7 else found.totals[number],
                compared.get(number, "not compared: some of its files cannot be read"),
            )
            for number, name in STATEMENTS.items()
        ],
        invariants=found.invariants,
        findings=list(_limited(findings)),
    )


def conclude_malformed(place: Place, found: Found) -> CutVerdict:
    """The verdict on a cut with a malformed manifest; its facts come from the chain."""
    entry = place.entry
    sizes = dict.fromkeys(("files", "bytes", "state_rows", "log_batches", "log_bytes", "log_records"), 0)
    return CutVerdict(
        epoch=int(entry.epoch),
        attempt=int(entry.attempt),
        policy=entry.mode.value,
        savepoint=entry.savepoint,
        previous=place.previous,
        graph_hash="",
        graph={"name": "", "operators": [], "edges": []},
        parallelism={},
        sizes={**sizes, "channels": 0, "digested": 0, "counted": 0},
        statements=[
            StatementResult(number, name, found.totals[number], "not compared: the manifest is malformed")
            for number, name in STATEMENTS.items()
        ],
        findings=found.findings,
    )


def _limited(findings: Iterable[Finding]) -> Iterator[Finding]:
    listed = Counter[int]()
    for found in findings:
        listed[found.statement] += 1
        if listed[found.statement] <= FINDINGS_MAX:
            yield found


def _compared(
    cut: CutDocuments, place: Place, found: Found, sizes: Facts, there: Set[int]
) -> Iterator[tuple[int, str]]:
    """Statement -> a description of what was compared."""
    manifest, graph = cut.manifest, cut.graph
    kinds = Counter(operator["kind"] for operator in graph["operators"])
    back = sum(edge["loop"] is not None for edge in graph["edges"])
    logged = sum(len(table["senders"]) for table in manifest["deployment"]["channels"] if table["is_back"])
    before = f"against epoch {place.previous}"
    if place.previous is None:
        before = "the first cut, compared with the start of the job"
    elif place.previous not in there:
        before = f"not compared: epoch {place.previous}, the previous cut, no longer exists or cannot be read"
    regular = "all channels may hold batches" if manifest["mode"] == "unaligned" else ""
    yield 1, counted(sizes["channels"], "channel")
    yield 2, f"{sizes['digested']:,} channels digested, {sizes['counted']:,} counted; {sizes['log_batches']:,} batches"
    yield 3, regular or counted(sizes["channels"] - logged, "channel")
    yield 4, f"{counted(len(graph['edges']), 'edge')}, {counted(back, 'back edge')} among them"
    of_five = {"task": len(manifest["tasks"]), "channel": sizes["channels"], "file": sizes["files"]}
    yield 5, ", ".join(counted(count, what) for what, count in of_five.items())
    yield 6, f"{counted(kinds['source'], 'source')}, {counted(kinds['sink'], 'sink')}; output: {before}"
    yield 7, counted(len(found.invariants), "invariant") if found.invariants else "no invariant was given"
    yield 8, before
    used = sum(row.get("used_since") or 0 for row in found.counted.answers.values())
    yield (
        9,
        f"{counted(used, 'answer')} used since the previous cut" if used else "no answer used since the previous cut",
    )


def _task_facts(cut: CutDocuments, task: Facts) -> Facts:
    placed = {(one["task"], one["index"]): one for one in cut.manifest["deployment"]["tasks"]}
    return {
        "task": task["task"],
        "index": task["index"],
        "operators": [facts["name"] for facts in task["operators"]],
        "actor": placed.get((task["task"], task["index"]), {}).get("actor"),
        "ended": task["ended"],
        "state_rows": task["state_rows"],
        "bytes": sum(file["size"] for _, file in layered_files(task)),
    }


def _answer_facts(found: Found) -> Iterator[Facts]:
    """What each operator has paid for up to this cut, and what no record has used."""
    for operator, row in sorted(found.counted.answers.items()):
        if answers := row.get("answers"):
            unused, cost_unused = answers - row["used"], row["cost"] - row["cost_used"]
            facts = {"operator": operator, "answers": answers, "cost": row["cost"], "unused": unused}
            yield {**facts, "cost_unused": cost_unused, "second": row.get("second") or 0}


def _position_facts(cut: CutDocuments, found: Found) -> Iterator[Facts]:
    """Records sent by each source and written by each sink since the job began."""
    for kind in ("source", "sink"):
        for name, records in records_of(cut, kind).items():
            splits = found.counted.sources.get(name, {}).get("splits")
            read = found.counted.read(name)
            yield {"operator": name, "kind": kind, "records": records, "splits": splits, "read": read}
