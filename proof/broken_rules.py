"""How each break is found: by the first seed that shows it, or by a walk of the explorer."""

from __future__ import annotations

from backedge.engine.simulation.breaks import BREAKS
from proof.explored_pipelines import GIVEN_UP, explore_pipelines
from proof.runner import run_seed
from proof.two_pipelines import run_pipelines

CRASHES = 3
SEEDS = range(600)
FIRST = {
    "refused-rescale-goes-on": 36,
    "split-in-work-forgotten": 15,
    "split-handed-out-again": 18,
    "split-begun-again": 66,
    "probe-overtakes-a-cut-between-rounds": 2,
    "unknown-entry-given-up": 3,
    "base-given-up-meanwhile": 6,
    "delta-applied-twice": 7,
    "supersedes-unseen": 7,
    "order-not-repeated": 8,
    "base-not-complete": 8,
    "deletions-not-noted": 9,
    "answered-stop-forgotten": 10,
    "replay-lost-in-new-snapshot": 13,
    "retention-outside-the-chain": 13,
    "output-of-former-tasks-replaced": 12,
    "goes-on-from-the-latest-cut": 14,
    "going-back-drops-output": 14,
    "credit-lost-after-an-abort": 15,
    "compaction-swept": 17,
    "woken-supervisor-goes-on": 28,
    "compaction-replaces-too-much": 17,
    "marker-overtakes-a-batch": 52,
    "touched-keys-dropped-on-abort": 8,
    "rescale-restores-an-older-cut": 21,
    "rescale-within-the-attempt": 21,
    "spilled-batches-unlogged": 23,
    "base-removed-too-early": 23,
    "replaces-output-once": 28,
    "truncated-log-written": 34,
    "reads-not-noted": 39,
    "own-entry-taken-for-anothers": 39,
    "replaced-cuts-restorable": 39,
    "rescale-undoes-another": 41,
    "wrong-key-group-on-rescale": 90,
    "claims-in-vain-count": 61,
    "ends-twice": 55,
    "restored-rest-behind-live-log": 50,
    "older-values-not-asked": 52,
    "early-barrier-declined": 69,
    "request-outlives-its-attempt": 72,
    "credit-not-repeated": 75,
    "abort-ignored": 27,
    "base-kept-under-another-parallelism": 90,
    "restores-another-tasks-key-groups": 90,
    "compaction-superseded": 103,
    "hold-at-round-markers": 119,
    "waits-behind-a-queue": 119,
    "changed-arrays-not-noted": 163,
    "segment-removed-too-early": 136,
    "answer-of-a-cut-sent": 183,
    "segment-of-the-restored-cut": 381,
    "later-error-settles-unknown": 750,
    "old-sets-dropped": 227,
    "heads-choose-the-cut-between-rounds": 252,
    "deletions-lost-in-a-compaction": 4_031,
}
"""For rules that few seeds find, one that does, under the schedules as they are now: it is tried before all others."""

WALKED = {"given-up-pipeline-continues": GIVEN_UP}
"""Rules that no seed is about, and the walk that finds each."""


def how_found(rule: str) -> str | None:
    """What finds a break. None if nothing does.

    Of a seed, `python -m proof run --seed SEED --crashes 3 --break RULE` tells the story.
    """
    if (name := WALKED.get(rule)) is not None:
        found = explore_pipelines(name, BREAKS[rule].parts().supervisor)
        return f"every schedule of {name!r}" if found.violations else None
    return next((f"seed {seed}" for seed in (FIRST.get(rule, 0), *SEEDS) if _is_found(rule, seed)), None)


def _is_found(rule: str, seed: int) -> bool:
    if BREAKS[rule].of_pipelines:
        return any(one.outcome.violations for one in run_pipelines(seed, CRASHES, rule))
    return bool(run_seed(seed, CRASHES, rule)[0].violations)
