"""The relations that the cores of tasks and of a run keep after every event: `check()` finds a break of each."""

from __future__ import annotations

import pytest

from proof.runner import run_seed

RELATIONS = {
    "woken-supervisor-goes-on": (28, "is led under the claim LOST"),
    "no-hold-before-capture": (1, "whose barrier is not in front"),
    "overtaken-barrier-captures-again": (1, "has a log and is not captured"),
    "log-without-end": (0, "and its log is open"),
    "base-removed-too-early": (23, "may be needed, and the chain keeps"),
    "manifests-side-by-side": (0, "are on their way at once"),
    "probe-overtakes-a-cut-between-rounds": (2, "began while a cut between two rounds was open"),
    "request-served-twice": (0, "several epochs are open for the same"),
}
"""For each, a seed that finds it under the schedules as they are now, and what is said."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", RELATIONS)
def test_a_relation_that_does_not_hold_is_found_where_it_breaks(rule: str):
    first, words = RELATIONS[rule]
    for seed in (first, *range(100)):
        told = [str(violation) for violation in run_seed(seed, 3, rule)[0].violations]
        if any("BrokenInvariantError" in one and words in one for one in told):
            return
    pytest.fail("only the checker finds it, or nothing does")
