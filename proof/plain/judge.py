"""Judges a simulated run by what it leaves behind, and by what its flow means."""

from __future__ import annotations

import random

from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.checker.record import Record, Violation
from backedge.engine.simulation.checker.trail import lineage, walk
from proof.plain.interpreter import reference
from proof.plain.plain_output import check_conservation, check_output
from proof.plain.theorem import check_theorem


def check(record: Record, seed: int = 0) -> list[Violation]:
    """Everything that is wrong with a run whose flow the plain interpreter can run.

    The theorem is replayed for one cut, chosen by `seed`.
    """
    trails = walk(record)
    found = check_protocol(record, trails)
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
