"""Checks the chain of a job, from its first entry to its last.

- 8. Entries are numbered without a gap. Attempts increase, and a manifest belongs to the attempt of its pipeline that
  started last, with the same claimant. A claimant that was followed by another appends nothing more.
- 9. A start restores what the last entry of its pipeline names, unless its supervisor was asked for another cut: a
  manifest names its own cut, a start the cut that it restored. Those of a claimant of which no task ever ran do not
  count for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from backedge.engine.simulation.checker.record import Record, Violation
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.orders import AttemptStart, Manifest

CHAIN = "8: the chain has no gap, and only the attempt that started last appends to it"
CONTINUES = "9: a start restores what the entry before it says, or the cut that was asked for"


def check_chain(record: Record) -> Iterator[Violation]:
    """Statements 8 and 9."""
    asked = dict(record.asked)
    attempt, claimant, continues = Attempt(0), "", None
    highest, claimants = Attempt(0), [""]
    found: dict[str, Epoch | None] = {}
    for place, (number, entry) in enumerate(record.chain, start=1):
        if number != place:
            yield Violation(CHAIN, f"entry {number} is in place {place}")
        if entry.claimant in claimants[:-1]:
            yield Violation(CHAIN, f"entry {number} is by {entry.claimant!r}, and {claimants[-1]!r} has the job")
        elif entry.claimant != claimants[-1]:
            claimants.append(entry.claimant)
        if isinstance(entry, AttemptStart):
            if entry.attempt <= highest:
                yield Violation(CHAIN, f"entry {number} starts attempt {entry.attempt}, after attempt {highest}")
            highest = entry.attempt
        if entry.pipeline != record.pipeline:
            continue
        if entry.claimant not in found:
            found[entry.claimant] = continues = found[claimant] if claimant in record.in_vain else continues
        if isinstance(entry, AttemptStart):
            expected = asked.pop(entry.claimant, continues)
            is_handed_back = entry.claimant in record.in_vain and entry.restored == found[entry.claimant]
            if entry.restored != expected and not is_handed_back:
                story = f"entry {number}, the start of attempt {entry.attempt}, restores {entry.restored}"
                yield Violation(CONTINUES, f"{story} and not {expected}")
            attempt, claimant, continues = entry.attempt, entry.claimant, entry.restored
        else:
            if (entry.attempt, entry.claimant) != (attempt, claimant):
                story = f"entry {number} is of attempt {entry.attempt} by {entry.claimant!r}"
                yield Violation(CHAIN, f"{story}, and attempt {attempt} by {claimant!r} has the job")
            continues = entry.epoch


def should_be_replaced(record: Record) -> set[str]:
    """The transactions that no run that replaced output may have left."""
    dead: set[str] = set()
    for place, (_, start) in enumerate(record.chain):
        if not isinstance(start, AttemptStart) or start.replaces is None:
            continue
        if any(isinstance(entry, Manifest) for _, entry in record.chain[place:]):
            later = (c for c in record.cuts.values() if c.epoch > start.replaces and c.attempt < start.attempt)
            dead |= set[str]().union(*map(listed_by, later)) - listed_until(record, start.replaces)
    return dead


def listed_until(record: Record, epoch: Epoch | None) -> set[str]:
    """What the cuts on the way to this one list."""
    restored = {entry.attempt: entry.restored for _, entry in record.chain if isinstance(entry, AttemptStart)}
    listed: set[str] = set()
    while epoch is not None:
        attempt = record.cuts[epoch].attempt
        for cut in record.cuts.values():
            if cut.attempt == attempt and cut.epoch <= epoch:
                listed |= listed_by(cut)
        epoch = restored[attempt]
    return listed


def listed_by(cut: Cut) -> set[str]:
    """The transactions that a cut lists."""
    states = (state for snapshot in cut.snapshots.values() for state in snapshot.operators.values())
    return {transaction.name for state in states for transaction in state.transactions}
