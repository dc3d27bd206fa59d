"""Checks what a run leaves behind: published output, values kept at the end, and a conserved quantity.

- Only what complete cuts list is published, after they are complete. In the end all of it is, except what a run has
  removed that went back to an earlier cut.
- Once such a run has a cut of its own, nothing is published that earlier attempts wrote after the cut it went back to.
- In the end the output equals that of the plain interpreter, as a multiset: nothing is lost or doubled. Before the end
  it is a part of that. The same holds for the values kept by key.
- 7. In every cut: state + logs + set aside + waiting + output + not yet read = the total of the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from backedge.engine.simulation.checker.chain_checks import belongs_to_the_last_cut, listed_by, should_be_replaced
from backedge.engine.simulation.checker.plain import Result
from backedge.engine.simulation.checker.plain_operator import frozen
from backedge.engine.simulation.checker.plain_task import decoded, hops_in, waiting_in
from backedge.engine.simulation.checker.record import Committed, Completed, Conserved, Record, Violation
from backedge.recovery.cut.cut import Cut, TaskSnapshot
from backedge.recovery.protocol.messages import marker_in

LISTED = "6: only what a complete cut lists is published"
REPLACED = "exactly once: a run that replaces output removes what was published after its cut"
OUTPUT = "exactly once: the output is that of the plain interpreter"
KEPT = "exactly once: the values at the end are those of the plain interpreter"
CONSERVED = "7: nothing is made or lost"


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


def check_output(record: Record, expected: Result) -> Iterator[Violation]:
    """Compare the output with that of the plain interpreter, and once everything has ended, the values kept as well."""
    is_whole = record.finished and record.plan.stop_when is None
    visible: dict[str, Counter[Any]] = {sink: Counter() for sink in expected.sinks}
    belongs = belongs_to_the_last_cut(record)
    for name, (sink, records) in record.committed.items():
        if belongs(name):
            visible[sink].update(map(frozen, records))
    for sink, output in visible.items():
        lost, doubled = expected.sinks[sink] - output, output - expected.sinks[sink]
        if doubled:
            yield Violation(OUTPUT, f"sink {sink!r} has surplus records: {_told(doubled)}")
        if lost and is_whole:
            yield Violation(OUTPUT, f"sink {sink!r} lacks {_told(lost)}")
    if not is_whole or not record.cuts:
        return
    last = record.cuts[max(record.cuts)]
    if not all(snapshot.ended for snapshot in last.snapshots.values()):
        yield Violation(KEPT, "the run has finished, but its last cut has tasks that have not ended", last.epoch)
        return
    for name, values in expected.states.items():
        kept: dict[Any, Any] = {}
        for snapshot in last.snapshots.values():
            if name in snapshot.operators:
                state = decoded(snapshot.operators[name])
                kept |= {key: value for key, value in state.values.items() if key in state.all_keys()}
        if kept != values:
            yield Violation(KEPT, f"operator {name!r} keeps {kept}, but should keep {values}", last.epoch)


def check_conservation(record: Record, cut: Cut, previous: Sequence[Cut], conserved: Conserved) -> Iterator[Violation]:
    """Add up everything that a cut accounts for. `previous` is its lineage."""
    of_record = conserved.of_record
    injected = sum(of_record(record_) for records in record.inputs.values() for record_ in records)
    published = set[str]().union(*map(listed_by, (*previous, cut)))
    figures = Counter[str]()
    for name in published:
        stored = record.written(name)
        if stored is None:
            yield Violation(CONSERVED, f"transaction {name!r} is listed but does not exist", cut.epoch)
            continue
        figures["output"] += sum(map(of_record, stored[1]))
    for snapshot in cut.snapshots.values():
        _add_up(record, snapshot, conserved, figures)
    if figures.total() != injected:
        story = ", ".join(f"{what} {figure}" for what, figure in sorted(figures.items()))
        yield Violation(CONSERVED, f"{story}: {figures.total()} in all, of {injected}", cut.epoch)


def _add_up(record: Record, snapshot: TaskSnapshot, conserved: Conserved, figures: Counter[str]) -> None:
    of_record = conserved.of_record
    for name, encoded in snapshot.operators.items():
        keeps_answers = record.plan.operators[name].kind.keeps_answers
        state = decoded(encoded, keeps_answers)
        figures["state"] += sum(conserved.of_state(name, key, value) for key, value in state.values.items())
        figures["waiting"] += sum(of_record(one.record) for one in waiting_in(encoded, keeps_answers))
        if record.plan.operators[name].kind.is_source:
            for split, position in state.positions.items():
                index, count = map(int, split.split("-of-"))
                figures["not yet read"] += sum(map(of_record, record.inputs[name][index::count][position:]))
    if snapshot.rounds is not None:
        for channel, payloads in snapshot.rounds.aside.items():
            # Nothing is known of processed records, because user code may have modified them.
            skip = snapshot.rounds.skips.get(channel, 0)
            figures["set aside"] += _weight(payloads[0], conserved, skip)
            figures["set aside"] += sum(_weight(payload, conserved) for payload in payloads[1:])
    logged = [entry for received in snapshot.inputs for entry in received.log]
    figures["logs"] += sum(_weight(entry.payload, conserved, entry.skip) for entry in logged)


def _weight(payload: bytes, conserved: Conserved, skip: int = 0) -> int:
    if marker_in(payload) is not None:
        return 0
    return sum(conserved.of_record(one.record) for one in hops_in(payload)[skip:])


def _told(records: Counter[Any]) -> str:
    shown = [f"{count} x {record}" for record, count in list(records.items())[:3]]
    return "; ".join(shown) + (f" and {len(records) - 3} more" if len(records) > 3 else "")
