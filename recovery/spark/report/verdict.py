"""The result of an audit as data: what was compared and what is wrong, for each cut and for the job as a whole.

docs/audit.md describes the JSON. Existing names do not change; readers must ignore names they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from backedge.graphs.wording import counted, printable

VERSION = 2
"""Version of the JSON. It changes when a name is removed or changes its meaning."""

STATEMENTS: Mapping[int, str] = {
    1: "nothing is received that was not sent",
    2: "a log is exactly what was in its channel",
    3: "a channel that is not logged is empty at the cut",
    4: "the back edges cover every cycle",
    5: "every task, channel and file occurs exactly once",
    6: "positions and output match what was sent and written up to the cut",
    7: "the invariants of the flow hold",
    8: "nothing moves backwards from one cut to the next",
    9: "every answer that was used is in the journal, and none was used twice",
}
"""What must hold of a cut, in words."""

FINDINGS_MAX = 20
"""Findings listed per statement and cut; further ones are only counted."""

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a statement. `name` is the statement in words.

    >>> finding = Finding(1, STATEMENTS[1], "5 batches consumed but only 4 sent", 7, channel="a.out->b.in a/0->b/0")
    >>> str(finding)
    'epoch 7, statement 1 (nothing is received that was not sent): channel a.out->b.in a/0->b/0: \
5 batches consumed but only 4 sent'
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
    """A finding with the name of its statement filled in."""
    return Finding(statement, STATEMENTS[statement], story, epoch, channel, task)


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of one statement in one cut. `found` counts the violations; `compared` describes what was compared."""

    statement: int
    name: str
    found: int
    compared: str

    @property
    def holds(self) -> bool:
        return not self.found


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """The result of an invariant: the number of rows that its query returned (the violations), and the first of them.

    `unread` counts the values of the cut that could not be read, if the query read one of them.

    >>> print(InvariantResult("no debts", 0, unread=3))
    no debts: not decided, as 3 values could not be read
    """

    name: str
    rows: int
    examples: tuple[str, ...] = ()
    unread: int = 0

    @property
    def holds(self) -> bool:
        """Whether the query returned no row and every value could be read."""
        return not self.rows and not self.unread

    def __str__(self) -> str:
        first = f"; first: {self.examples[0]}" if self.examples else ""
        unread = f"{counted(self.unread, 'value')} could not be read"
        if self.rows:
            violated = f"{self.name}: violated by {counted(self.rows, 'row')}{first}"
            return f"{violated}; {unread}" if self.unread else violated
        return f"{self.name}: not decided, as {unread}" if self.unread else f"{self.name}: holds"


@dataclass(frozen=True)
class CutVerdict:
    """The verdict on one cut. `previous` is the cut before it in its lineage, None for the first.

    docs/audit.md describes graph, tasks, channels, positions, answers and sizes.
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
    answers: Sequence[Facts] = ()
    sizes: Facts = field(default_factory=Facts)
    statements: Sequence[StatementResult] = ()
    invariants: Sequence[InvariantResult] = ()
    findings: Sequence[Finding] = ()

    @property
    def consistent(self) -> bool:
        """Whether all statements but 7 hold. The user's invariants are judged separately."""
        return not self.findings

    @property
    def invariants_hold(self) -> bool | None:
        """Whether the user's invariants hold; None if none was evaluated."""
        return all(one.holds for one in self.invariants) if self.invariants else None

    def line(self) -> str:
        """One line about what was compared."""
        sizes = self.sizes
        logged = f"{sizes['log_batches']:,} batches in logs"
        if sizes["log_records"] is not None:
            logged += f" with {sizes['log_records']:,} records"
        channels = f"{sizes['channels']:,} channels, {sizes['digested']:,} digested, {sizes['counted']:,} counted"
        paid = "".join(f"; {_paid(one)}" for one in self.answers)
        return (
            f"epoch {self.epoch}, attempt {self.attempt}, {self.policy}: {len(self.tasks):,} tasks, {channels}; "
            f"{sizes['state_rows']:,} rows of state, {logged}, {sizes['bytes']:,} bytes{paid}"
        )

    def to_json(self) -> Facts:
        """The verdict as plain values."""
        # Not `asdict`, which would copy the graph and all channels.
        return {one.name: getattr(self, one.name) for one in fields(self)} | {
            "consistent": self.consistent,
            "invariants_hold": self.invariants_hold,
            "statements": [{**asdict(result), "holds": result.holds} for result in self.statements],
            "invariants": [{**asdict(one), "holds": one.holds} for one in self.invariants],
            "findings": [asdict(found) for found in self.findings],
        }


def _paid(facts: Facts) -> str:
    """What an operator has paid for, and what of it in vain.

    >>> _paid({"operator": "ask", "answers": 9, "cost": 4.5, "unused": 2, "cost_unused": 1.0, "second": 1})
    'ask: 9 answers paid (cost 4.5), 2 not used (cost 1), 1 paid twice'
    """
    costs = [f" (cost {facts[name]:g})" if facts["cost"] else "" for name in ("cost", "cost_unused")]
    second = f", {facts['second']:,} paid twice" if facts["second"] else ""
    paid = f"{facts['operator']}: {counted(facts['answers'], 'answer')} paid{costs[0]}"
    return f"{paid}, {facts['unused']:,} not used{costs[1]}{second}"


@dataclass(frozen=True)
class Verdict:
    """The audited cuts of a job, and the findings about its chain as a whole (`of_chain`).

    There are two verdicts: `consistent` is about the engine, `invariants_hold` about the user's flow. `attempts` lists
    the start of each attempt that the chain still has, and the epoch that it restored.
    """

    job: str
    job_id: str
    path: str
    epochs: Sequence[CutVerdict]
    attempts: Sequence[Facts] = ()
    of_chain: Sequence[Finding] = ()

    @property
    def findings(self) -> list[Finding]:
        """All findings: first the chain's, then cut by cut."""
        return [*self.of_chain, *(found for cut in self.epochs for found in cut.findings)]

    @property
    def consistent(self) -> bool:
        """Whether all statements but 7 hold in every cut."""
        return not self.findings

    @property
    def invariants_hold(self) -> bool | None:
        """Whether all invariants hold in all cuts; None if none was evaluated."""
        results = [cut.invariants_hold for cut in self.epochs if cut.invariants_hold is not None]
        return all(results) if results else None

    @property
    def passed(self) -> bool:
        """Whether both verdicts are good."""
        return self.consistent and self.invariants_hold is not False

    @property
    def outcome(self) -> str:
        """Both verdicts in a few words."""
        if self.consistent and self.invariants_hold is False:
            return "consistent, but an invariant does not hold"
        return "consistent" if self.consistent else "not consistent"

    @property
    def scope(self) -> str:
        """What the verdict on consistency is based on, over all cuts."""
        digested, only_counted = (
            sum(cut.sizes.get(what, 0) for cut in self.epochs) for what in ("digested", "counted")
        )
        compared = f"{counted(digested, 'channel')} compared by digest"
        return f"{compared}, {only_counted:,} within actors only counted" if only_counted else compared

    @property
    def failures(self) -> list[str]:
        """One line per finding and per violated invariant."""
        return [printable(line) for line in (*map(str, self.findings), *self._broken())]

    def _broken(self) -> list[str]:
        return [f"epoch {cut.epoch}, invariant {one}" for cut in self.epochs for one in cut.invariants if not one.holds]

    def lines(self) -> list[str]:
        """A readable report: consistency with its findings or cuts, then the invariants with their violations."""
        return [printable(line) for line in (*self._lines(), *self._lines_of_invariants())]

    def _lines_of_invariants(self) -> list[str]:
        count = sum(len(cut.invariants) for cut in self.epochs)
        broken = self._broken()
        match self.invariants_hold:
            case None:
                return []
            case True:
                return [f"invariants hold: {count} of {count}"]
            case False:
                return [f"invariants do not hold: {len(broken)} of {count}", *(f"  {line}" for line in broken)]

    def _lines(self) -> list[str]:
        cuts = f"{len(self.epochs)} cut{'s' if len(self.epochs) != 1 else ''} of {self.job}"
        found = self.findings
        if not found:
            return [f"consistent: {cuts}; {self.scope}", *(f"  {cut.line()}" for cut in self.epochs)]
        violated = sorted({one.statement for one in found})
        statements = f"statement{'s' if len(violated) > 1 else ''} {', '.join(map(str, violated))}"
        lines = [f"not consistent: {cuts}, {statements} violated", *(f"  {one}" for one in found)]
        for cut in self.epochs:
            # Violated invariants are counted as statement 7, and have lines of their own.
            listed = {number: sum(one.statement == number for one in cut.findings) for number in violated}
            lines += [
                f"  epoch {cut.epoch}, statement {result.statement}: {result.found - listed[result.statement]:,} more"
                for result in cut.statements
                if result.found > listed.get(result.statement, result.found)
            ]
        return lines

    def to_json(self) -> Facts:
        """The verdict as plain values, for `json.dumps` and for the page."""
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
