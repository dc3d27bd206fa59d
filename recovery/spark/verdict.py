"""What an audit found, as data: of each cut what was compared and what is wrong, and the same of the job as a whole.

docs/audit.md describes the JSON. Its names stay; a reader passes over names that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
"""The version of the JSON. It changes when a name of it goes, or comes to mean something else."""

STATEMENTS: Mapping[int, str] = {
    1: "nothing is received that was not sent",
    2: "a log is exactly what was in its channel",
    3: "a channel that is not logged is empty at the cut",
    4: "the back edges cover every cycle",
    5: "every task, channel and file is there once",
    6: "positions and output are what was sent and written up to the cut",
    7: "the invariants of the flow hold",
    8: "from one cut to the next nothing goes back",
}
"""What must hold of a cut, in words."""

FINDINGS_MAX = 20
"""So many findings of one statement in one cut are told; the others are counted."""

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `name` is the statement in words, or the invariant of that name.

    >>> finding = Finding(1, STATEMENTS[1], "5 batches were consumed, 4 were sent", 7, channel="a.out->b.in a/0->b/0")
    >>> str(finding)
    'epoch 7, statement 1 (nothing is received that was not sent): channel a.out->b.in a/0->b/0: \
5 batches were consumed, 4 were sent'
    """

    statement: int
    name: str
    story: str
    epoch: int | None
    channel: str | None = None
    task: str | None = None

    def __str__(self) -> str:
        where = "the job" if self.epoch is None else f"epoch {self.epoch}"
        places = [f"channel {self.channel}"] if self.channel else []
        places += [f"task {self.task}"] if self.task else []
        place = f"{', '.join(places)}: " if places else ""
        return f"{where}, statement {self.statement} ({self.name}): {place}{self.story}"


def finding(
    statement: int, story: str, epoch: int | None, *, channel: str | None = None, task: str | None = None
) -> Finding:
    """A finding under the name of its statement."""
    return Finding(statement, STATEMENTS[statement], story, epoch, channel, task)


@dataclass(frozen=True, slots=True)
class StatementResult:
    """How one statement came out in one cut. `found` counts all that is wrong; `compared` says what was looked at."""

    statement: int
    name: str
    found: int
    compared: str

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.found


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """How an invariant came out: the rows that its query returned, which are what is wrong, and the first of them."""

    name: str
    rows: int
    examples: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the query returned no row."""
        return not self.rows


@dataclass(frozen=True)
class CutVerdict:
    """One cut. `previous` is the cut before it in its lineage, None where there is none.

    What graph, tasks, channels, positions and sizes hold is described in docs/audit.md.
    """

    epoch: int
    attempt: int
    policy: str
    savepoint: str | None
    previous: int | None
    graph_hash: str
    graph: Facts
    parallelism: Mapping[str, int]
    tasks: Sequence[Facts] = ()
    channels: Sequence[Facts] = ()
    positions: Sequence[Facts] = ()
    sizes: Facts = field(default_factory=Facts)
    statements: Sequence[StatementResult] = ()
    invariants: Sequence[InvariantResult] = ()
    findings: Sequence[Finding] = ()

    @property
    def consistent(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.findings

    def line(self) -> str:
        """What was compared, in one line."""
        sizes = self.sizes
        logged = f"{sizes['log_batches']:,} batches in logs"
        if sizes["log_records"] is not None:
            logged += f" with {sizes['log_records']:,} records"
        channels = f"{sizes['channels']:,} channels, {sizes['digested']:,} digested, {sizes['counted']:,} counted"
        told = f"epoch {self.epoch}, attempt {self.attempt}, {self.policy}: {len(self.tasks):,} tasks, {channels}"
        told += f"; {sizes['state_rows']:,} rows of state, {logged}, {sizes['bytes']:,} bytes"
        if self.invariants:
            told += f"; {len(self.invariants)} invariants"
        return told

    def to_json(self) -> Facts:
        """As plain values."""
        return {
            "epoch": self.epoch,
            "attempt": self.attempt,
            "policy": self.policy,
            "savepoint": self.savepoint,
            "previous": self.previous,
            "consistent": self.consistent,
            "graph_hash": self.graph_hash,
            "graph": self.graph,
            "parallelism": dict(self.parallelism),
            "tasks": list(self.tasks),
            "channels": list(self.channels),
            "positions": list(self.positions),
            "sizes": self.sizes,
            "statements": [{**asdict(result), "holds": result.holds} for result in self.statements],
            "invariants": [
                {"name": one.name, "holds": one.holds, "rows": one.rows, "examples": list(one.examples)}
                for one in self.invariants
            ],
            "findings": [asdict(found) for found in self.findings],
        }


@dataclass(frozen=True)
class Verdict:
    """The cuts of a job that were audited, and what is wrong with its chain as a whole.

    `attempts` are the starts of attempts with the epoch that each restored.
    """

    job: str
    job_id: str
    path: str
    epochs: Sequence[CutVerdict]
    attempts: Sequence[Facts] = ()
    of_chain: Sequence[Finding] = ()

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong, the chain first, then cut by cut."""
        return [*self.of_chain, *(found for cut in self.epochs for found in cut.findings)]

    @property
    def consistent(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def lines(self) -> list[str]:
        """For a person: the outcome, then each finding, or each cut with what was compared."""
        cuts = f"{len(self.epochs)} cut{'s' if len(self.epochs) != 1 else ''} of {self.job}"
        found = self.findings
        if not found:
            return [f"consistent: {cuts}", *(f"  {cut.line()}" for cut in self.epochs)]
        violated = sorted({one.statement for one in found})
        statements = f"statement{'s' if len(violated) > 1 else ''} {', '.join(map(str, violated))}"
        lines = [f"not consistent: {cuts}, {statements} violated", *(f"  {one}" for one in found)]
        for cut in self.epochs:
            told = {number: sum(one.statement == number for one in cut.findings) for number in violated}
            lines += [
                f"  epoch {cut.epoch}, statement {result.statement}: {result.found - told[result.statement]:,} more"
                for result in cut.statements
                if result.found > told.get(result.statement, 0)
            ]
        return lines

    def to_json(self) -> Facts:
        """As plain values, for `json.dumps` and for the page."""
        return {
            "version": VERSION,
            "job": self.job,
            "job_id": self.job_id,
            "path": self.path,
            "consistent": self.consistent,
            "violated": sorted({found.statement for found in self.findings}),
            "attempts": list(self.attempts),
            "cuts": [cut.to_json() for cut in self.epochs],
            "findings": [asdict(found) for found in self.findings],
            "invariants": [
                {"epoch": cut.epoch, "name": one.name, "holds": one.holds, "rows": one.rows}
                for cut in self.epochs
                for one in cut.invariants
            ],
        }
