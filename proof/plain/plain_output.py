"""Compares what a run leaves behind with the plain interpreter: published output, values kept, a conserved quantity.

- In the end the output equals that of the plain interpreter, as a multiset: nothing is lost or doubled. Before the end
  it is a part of that. The same holds for the values kept by key. A run that went back to an older cut has published
  other output, too.
- 7. In every cut: state + logs + set aside + waiting + output + not yet read = the total of the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from backedge.engine.simulation.checker.chain_checks import listed_by, listed_until
from backedge.engine.simulation.checker.payloads import frozen, hops_in
from backedge.engine.simulation.checker.record import Conserved, Record, Violation
from backedge.recovery.cut.cut import Cut, TaskSnapshot
from backedge.recovery.protocol.messages import marker_in
from proof.plain.interpreter import Result
from proof.plain.plain_task import decoded, waiting_in

OUTPUT = "exactly once: the output is that of the plain interpreter"
KEPT = "exactly once: the values at the end are those of the plain interpreter"
CONSERVED = "7: nothing is made or lost"


def check_output(record: Record, expected: Result) -> Iterator[Violation]:
    """Compare the output with that of the plain interpreter, and once everything has ended, the values kept as well."""
    is_whole = record.finished and record.plan.stop_when is None
    visible: dict[str, Counter[Any]] = {sink: Counter() for sink in expected.sinks}
    belongs = _belongs_to_the_last_cut(record)
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


def _belongs_to_the_last_cut(record: Record) -> Callable[[str], bool]:
    """Whether a cut on the way to the last one lists a transaction; always true if the run never went back."""
    if not record.asked or not record.cuts:
        return lambda name: True
    return listed_until(record, max(record.cuts)).__contains__


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
