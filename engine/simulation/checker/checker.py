"""Judges a simulated run by what it leaves behind. It shares no code with what it judges.

`cut_checks.py` checks each complete cut by itself, `trail.py` against the trace, `counts.py` and `output_checks.py`
check what was read and published, and `chain_checks.py` the chain. It has only the data classes of cuts, messages and
graphs in common with the engine. What a flow computes is judged in `proof/plain/judge.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from backedge.engine.simulation.checker.chain_checks import check_chain
from backedge.engine.simulation.checker.counts import check_counts, check_held
from backedge.engine.simulation.checker.cut_checks import ONCE, check_cover, check_cut
from backedge.engine.simulation.checker.output_checks import check_replaced, check_transactions
from backedge.engine.simulation.checker.record import Record, Violation
from backedge.engine.simulation.checker.trail import Trail, check_against, check_ends, check_replay, lineage, walk
from backedge.graphs.ids import Attempt


def check_protocol(record: Record, trails: Mapping[Attempt, Trail] | None = None) -> list[Violation]:
    """What is wrong with the cuts, channels and transactions of a run, regardless of what its flow computes.

    `trails` are those of its attempts, if they are known.
    """
    trails = walk(record) if trails is None else trails
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
