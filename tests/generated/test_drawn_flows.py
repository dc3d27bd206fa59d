"""Drawn flows give what a plain interpreter gives, which knows no barriers, whatever the schedule and the crashes.

A failure names its seed: `simulated(SEED)` runs it again, and `Drawn(SEED).flow` is the flow.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

from backedge import simulate
from backedge.engine.simulation.checker.payloads import frozen
from proof.plain.interpreter import reference
from tests.generated.flows import Drawn

FEW_SEEDS = (0, 5, 8, 10, 43, 56, 160, 238, 296)
"""Together they have every shape, in flows that are not long."""

BESIDE_SEEDS = (59, 95, 132, 146, 163, 276)
"""Iterations beside loops, in flows that are not long."""

LONG_SEEDS = [seed for seed in range(300) if seed not in FEW_SEEDS]


def expected_of(drawn: Drawn) -> dict[str, Counter[Any]]:
    """What the plain interpreter says that each sink gets."""
    return reference(drawn.flow.plan(), drawn.inputs).sinks


def as_multisets(outputs: dict[str, list[Any]]) -> dict[str, Counter[Any]]:
    return {sink: Counter(map(frozen, records)) for sink, records in outputs.items()}


def simulated(seed: int) -> None:
    drawn, rng = Drawn(seed), random.Random(f"run {seed}")
    policy = cast("Any", rng.choice(("aligned", "unaligned")))
    parallelism = rng.sample((1, 2, 3, 4), 2)
    result = simulate(drawn.flow, seeds=range(2), crashes=3, parallelism=parallelism, policy=policy)
    assert as_multisets(dict(result.outputs)) == expected_of(drawn), f"seed {seed}: {drawn.shapes}, {policy}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_drawn_flow_gives_what_the_plain_interpreter_gives(seed: int):
    simulated(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_more_drawn_flows_give_what_the_plain_interpreter_gives(seed: int):
    simulated(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", BESIDE_SEEDS)
def test_an_iteration_beside_loops_ends_with_savepoints_at_any_time(seed: int):
    drawn = Drawn(seed)
    result = simulate(drawn.flow, seeds=range(20), crashes=0, parallelism=(2, 3))
    assert as_multisets(dict(result.outputs)) == expected_of(drawn)
