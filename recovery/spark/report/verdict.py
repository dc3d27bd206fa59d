"""What an audit found, as data: of each cut what was compared and what is wrong, and the same of the job as a whole.

docs/audit.md describes the JSON. Its names stay; a reader passes over names that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graphs.wording import counted, printable

VERSION = 2
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
    """One thing that is wrong. `name` is the statement in words.

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
    """How an invariant came out: the rows that its query returned, which are what is wrong, and the first of them.

    `unread` counts the values of the cut that could not be read, if the query looked at one of them.

    >>> print(InvariantResult("no debts", 0, unread=3))
    no debts: 3 values could not be read, so nothing is known of them
    """

    name: str
    rows: int
    examples: tuple[str, ...] = ()
    unread: int = 0

    @property
    def holds(self) -> bool:
        """Whether the query returned no row, and no value was kept from it."""
        return not self.rows and not self.unread

    def __str__(self) -> str:
        first = f", the first is {self.examples[0]}" if self.examples else ""
        told = [f"{counted(self.rows, 'row')} wrong{first}"] if self.rows else []
        if self.unread:
            told.append(f"{counted(self.unread, 'value')} could not be read, so nothing is known of them")
        return f"{self.name}: {'; '.join(told) or 'holds'}"


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
        """Whether the engine kept its promises. What the user says of the flow is another matter."""
        return not self.findings

    @property
    def invariants_hold(self) -> bool | None:
        """Whether the user's invariants hold; None if there are none, or none could be asked."""
        return all(one.holds for one in self.invariants) if self.invariants else None

    def line(self) -> str:
        """What was compared, in one line."""
        sizes = self.sizes
        logged = f"{sizes['log_batches']:,} batches in logs"
        if sizes["log_records"] is not None:
            logged += f" with {sizes['log_records']:,} records"
        channels = f"{sizes['channels']:,} channels, {sizes['digested']:,} digested, {sizes['counted']:,} counted"
        told = f"epoch {self.epoch}, attempt {self.attempt}, {self.policy}: {len(self.tasks):,} tasks, {channels}"
        told += f"; {sizes['state_rows']:,} rows of state, {logged}, {sizes['bytes']:,} bytes"
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
            "invariants_hold": self.invariants_hold,
            "graph_hash": self.graph_hash,
            "graph": self.graph,
            "parallelism": dict(self.parallelism),
            "tasks": list(self.tasks),
            "channels": list(self.channels),
            "positions": list(self.positions),
            "sizes": self.sizes,
            "statements": [{**asdict(result), "holds": result.holds} for result in self.statements],
            "invariants": [
                {
                    "name": one.name,
                    "holds": one.holds,
                    "rows": one.rows,
                    "unread": one.unread,
                    "examples": list(one.examples),
                }
                for one in self.invariants
            ],
            "findings": [asdict(found) for found in self.findings],
        }


@dataclass(frozen=True)
class Verdict:
    """The cuts of a job that were audited, and what is wrong with its chain as a whole.

    There are two verdicts: `consistent` says whether the engine kept its promises, `invariants_hold` whether what the
    user says of the flow holds.

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
        """Whether the engine kept its promises."""
        return not self.findings

    @property
    def invariants_hold(self) -> bool | None:
        """Whether all invariants hold in all cuts; None if there are none, or none could be asked."""
        asked = [cut.invariants_hold for cut in self.epochs if cut.invariants_hold is not None]
        return all(asked) if asked else None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong by either verdict."""
        return self.consistent and self.invariants_hold is not False

    @property
    def outcome(self) -> str:
        """Both verdicts in a few words."""
        if self.consistent and self.invariants_hold is False:
            return "consistent, and an invariant does not hold"
        return "consistent" if self.consistent else "not consistent"

    @property
    def scope(self) -> str:
        """What stands behind the engine's verdict, over all cuts."""
        digested, only_counted = (
            sum(cut.sizes.get(what, 0) for cut in self.epochs) for what in ("digested", "counted")
        )
        told = f"{counted(digested, 'channel')} compared by digest"
        return f"{told}, {only_counted:,} within actors only counted" if only_counted else told

    @property
    def failures(self) -> list[str]:
        """A line for everything that is wrong by either verdict."""
        return [printable(line) for line in (*map(str, self.findings), *self._broken())]

    def _broken(self) -> list[str]:
        return [f"epoch {cut.epoch}, invariant {one}" for cut in self.epochs for one in cut.invariants if not one.holds]

    def lines(self) -> list[str]:
        """For a person: the engine's verdict with each finding, or each cut; then the user's, with what is broken."""
        return [printable(line) for line in (*self._lines(), *self._lines_of_invariants())]

    def _lines_of_invariants(self) -> list[str]:
        asked = sum(len(cut.invariants) for cut in self.epochs)
        broken = self._broken()
        match self.invariants_hold:
            case None:
                return []
            case True:
                return [f"invariants hold: {asked} of {asked}"]
            case False:
                return [f"invariants do not hold: {len(broken)} of {asked}", *(f"  {line}" for line in broken)]

    def _lines(self) -> list[str]:
        cuts = f"{len(self.epochs)} cut{'s' if len(self.epochs) != 1 else ''} of {self.job}"
        found = self.findings
        if not found:
            return [f"consistent: {cuts}; {self.scope}", *(f"  {cut.line()}" for cut in self.epochs)]
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
            "scope": self.scope,
            "invariants_hold": self.invariants_hold,
            "violated": sorted({found.statement for found in self.findings}),
            "attempts": list(self.attempts),
            "cuts": [cut.to_json() for cut in self.epochs],
            "findings": [asdict(found) for found in self.findings],
            "invariants": [
                {"epoch": cut.epoch, "name": one.name, "holds": one.holds, "rows": one.rows, "unread": one.unread}
                for cut in self.epochs
                for one in cut.invariants
            ],
        }
