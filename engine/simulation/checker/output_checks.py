"""Checks what a run publishes.

- Only what complete cuts list is published, after they are complete. In the end all of it is, except what a run has
  removed that went back to an earlier cut.
- Once such a run has a cut of its own, nothing is published that earlier attempts wrote after the cut it went back to.
"""

from __future__ import annotations

from collections.abc import Iterator

from backedge.engine.simulation.checker.chain_checks import listed_by, should_be_replaced
from backedge.engine.simulation.checker.record import Committed, Completed, Record, Violation

LISTED = "6: only what a complete cut lists is published"
REPLACED = "exactly once: a run that replaces output removes what was published after its cut"


def check_transactions(record: Record) -> Iterator[Violation]:
    """Only what complete cuts list is published, after they are complete; each transaction belongs to one sink."""
    sink_of: dict[str, str] = {}
    for cut in record.cuts.values():
        for snapshot in cut.snapshots.values():
            for sink, state in snapshot.operators.items():
                for transaction in state.transactions:
                    if sink_of.setdefault(transaction.name, sink) != sink:
                        story = f"transaction {transaction.name!r} is of {sink!r} and of {sink_of[transaction.name]!r}"
                        yield Violation(LISTED, story, cut.epoch)
    for name, (sink, records) in record.committed.items():
        if sink_of.get(name) != sink:
            story = f"transaction {name!r} of sink {sink!r}, {len(records)} records, is in no complete cut of that sink"
            yield Violation(LISTED, story)
    listed: set[str] = set()
    for event in record.trace:
        if isinstance(event, Completed) and event.epoch in record.cuts:
            listed |= listed_by(record.cuts[event.epoch])
        elif isinstance(event, Committed) and not listed.issuperset(event.names):
            story = f"{sorted(set(event.names) - listed)} were published before a cut that lists them was complete"
            yield Violation(LISTED, story, task=event.task)
    listed = {name for cut in record.cuts.values() for name in listed_by(cut)}
    unpublished = listed - record.committed.keys() - record.replaced.keys()
    if record.finished and unpublished:
        yield Violation(LISTED, f"{sorted(unpublished)} are listed by complete cuts and were never published")


def check_replaced(record: Record) -> Iterator[Violation]:
    """What a run was to remove stays away."""
    for name in sorted(record.committed.keys() & should_be_replaced(record)):
        yield Violation(REPLACED, f"transaction {name!r} was published after the cut that a run went back to")
