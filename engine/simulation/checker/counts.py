"""Checks statement 6: the counts of sources and sinks against independent counts.

- A source has sent as many records as its positions say, if positions count records.
- A sink has written as many records as the transactions contain that it prepared in this lineage, including those of
  aborted epochs.
- A transaction contains as many records as it states, and no two epochs share one.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence

from backedge.engine.simulation.checker.record import Record, Violation
from backedge.recovery.cut.cut import Cut, OperatorState, Transaction

COUNTED = "6: what was read was sent, and what was written is in transactions"

_COUNTING_SPLIT = re.compile(r"\d+-of-\d+")
"""A split of a source in memory, whose position counts records."""
_IN_ORDER = re.compile(r"\d+-of-\d+|.*\?size=\d+&.*", re.DOTALL)
"""A split whose name says that its position is a number of records or of bytes. Others may be tokens, say."""


def check_counts(record: Record, cut: Cut, previous: Sequence[Cut]) -> Iterator[Violation]:
    """Check the counts in a cut. `previous` is its lineage."""
    listed: dict[str, dict[str, Transaction]] = {}
    for earlier in (*previous, cut):
        for name, state in _states(earlier):
            for transaction in state.transactions:
                known = listed.setdefault(name, {}).setdefault(transaction.name, transaction)
                if known != transaction:
                    story = f"sink {name!r} has {transaction}, which another cut lists as {known}"
                    yield Violation(COUNTED, story, cut.epoch)
    for name, operator in record.plan.operators.items():
        states = [state for of, state in _states(cut) if of == name]
        counted = sum(state.records for state in states)
        positions = {split: position for state in states for split, position in state.splits.items()}
        if operator.kind.is_sink:
            held = sum(transaction.records for transaction in listed.get(name, {}).values())
            if held != counted:
                story = f"sink {name!r} has written {counted} records, and its transactions hold {held}"
                yield Violation(COUNTED, story, cut.epoch)
        elif operator.kind.is_source and all(map(_COUNTING_SPLIT.fullmatch, positions)):
            read = sum(map(pickle.loads, positions.values()))
            if read != counted:
                yield Violation(COUNTED, f"source {name!r} has sent {counted} records, and read {read}", cut.epoch)


def is_in_order(split: str) -> bool:
    """Whether the position in a split can only grow.

    >>> is_in_order("0-of-2"), is_in_order("a.jsonl?size=12&time_ns=5&start=0&stop=12"), is_in_order("polled")
    (True, True, False)
    """
    return _IN_ORDER.fullmatch(split) is not None


def check_held(record: Record) -> Iterator[Violation]:
    """Check the contents of the transactions of all cuts, as far as they still exist."""
    told = {t for cut in record.cuts.values() for _, state in _states(cut) for t in state.transactions}
    for transaction in sorted(told, key=lambda transaction: transaction.name):
        stored = record.written(transaction.name)
        if stored is not None and len(stored[1]) != transaction.records:
            story = f"transaction {transaction.name!r} holds {len(stored[1])} records, not {transaction.records}"
            yield Violation(COUNTED, story, transaction.epoch)


def _states(cut: Cut) -> Iterator[tuple[str, OperatorState]]:
    for snapshot in cut.snapshots.values():
        yield from snapshot.operators.items()
