"""Judges a simulated run by what it leaves behind. It shares no code with what it judges.

`cut_checks.py` checks each complete cut by itself, `trail.py` against the trace; `theorem.py` rearranges and replays
the run around it; `counts.py` and `output_checks.py` check input and output. It has only the data classes of cuts,
messages and graphs in common with the engine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from backedge.engine.simulation.checker.chain_checks import check_chain
from backedge.engine.simulation.checker.counts import check_counts, check_held
from backedge.engine.simulation.checker.cut_checks import ONCE, check_cover, check_cut
from backedge.engine.simulation.checker.output_checks import (
    check_conservation,
    check_output,
    check_replaced,
    check_transactions,
)
from backedge.engine.simulation.checker.plain import reference
from backedge.engine.simulation.checker.record import Record, Violation
from backedge.engine.simulation.checker.theorem import check_theorem
from backedge.engine.simulation.checker.trail import Trail, check_against, check_ends, check_replay, lineage, walk
from backedge.graphs.ids import Attempt


def check(record: Record, seed: int = 0) -> list[Violation]:
    """Everything that is wrong with a run whose flow the plain interpreter can run.

    The theorem is replayed for one cut, chosen by `seed`.
    """
    trails = walk(record)
    found = _check_protocol(record, trails)
    expected = reference(record.plan, record.inputs)
    if found or not trails:
        return found + list(check_output(record, expected))
    epochs = sorted(epoch for epoch, cut in record.cuts.items() if cut.attempt in trails)
    if epochs:
        cut = record.cuts[random.Random(seed).choice(epochs)]
        found += check_theorem(record, trails[cut.attempt], cut)
    if record.conserved is not None:
        for epoch in epochs:
            cut = record.cuts[epoch]
            found += check_conservation(record, cut, lineage(cut, record.cuts, trails), record.conserved)
    return found + list(check_output(record, expected))


def check_protocol(record: Record) -> list[Violation]:
    """What is wrong with the cuts, channels and transactions of a run, regardless of what its flow computes."""
    return _check_protocol(record, walk(record))


def _check_protocol(record: Record, trails: Mapping[Attempt, Trail]) -> list[Violation]:
    found = check_cover(record.plan)
    for trail in trails.values():
        found += trail.violations
        if trail.restored_from is not None and trail.restored_from in record.cuts:
            restored = record.cuts[trail.restored_from]
            found += check_replay(trail, restored)
            found += check_ends(trail, restored)
    for epoch, cut in sorted(record.cuts.items()):
        if cut.epoch != epoch or cut.attempt not in record.deployments:
            found.append(Violation(ONCE, f"filed here is the cut of epoch {cut.epoch}, attempt {cut.attempt}", epoch))
            continue
        trail = trails.get(cut.attempt)
        previous = lineage(cut, record.cuts, trails)
        found += check_cut(cut, record.deployments[cut.attempt], previous, trail.logs if trail is not None else None)
        found += check_counts(record, cut, previous)
        if trail is not None:
            found += check_against(trail, cut)
    found += check_held(record)
    found += check_transactions(record)
    found += check_replaced(record)
    found += check_chain(record)
    return found
