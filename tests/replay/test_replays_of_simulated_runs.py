"""Replays of generated flows under crashes: loops, rounds, timers, calls, columns, other parallelism."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from proof.runner import case_of, on_columns, run_case
from tests.replay.kept import keeping_parts, replays_of

# Small flows that have all calls in common.
SEEDS = (0, 26, 36, 99, 156)
WORDS = {
    *("produce", "process", "timers", "answer", "end"),
    *("round_end", "contributions", "decide", "release_round", "release_result"),
}


@pytest.mark.slow
def test_replays_send_what_the_runs_sent_whatever_died(tmp_path: Path):
    happened, words = Counter[str](), set[str]()
    for seed in SEEDS:
        case, job = case_of(seed, on_columns(seed)), f"seed-{seed}"
        outcome, world = run_case(case, seed, crashes=3, parts=keeping_parts(tmp_path, job, case.plan))
        assert outcome.violations == [], seed
        for host in world.hosts.values():
            host.runtime.close()
        for each in replays_of(world, tmp_path, job):
            assert each.found.is_same and each.found.error is None, (seed, each)
            words.update(each.words)
            happened["complete" if each.found.is_complete else "cut off"] += 1
            happened["begins with a cut"] += each.id.epoch > 0
            happened["goes past a cut"] += bool(each.found.cuts)
            happened["is of a later attempt"] += each.id.attempt > 1
            happened["sent"] += each.found.sent
    assert words == WORDS
    assert {"complete", "cut off", "begins with a cut", "goes past a cut", "is of a later attempt"} <= (
        +happened
    ).keys()
    assert happened["sent"] > 200
