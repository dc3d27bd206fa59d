"""Drawn flows give on Ray what a plain interpreter gives, though their processes are killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from tests.faults.evidence import Evidence
from tests.generated.flows import Drawn
from tests.generated.test_drawn_flows import as_multisets, expected_of
from tests.on_ray.flows import begin

SEEDS = [seed for seed in range(40) if any(Drawn(seed).inputs.values())][:25]


@pytest.mark.long
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_flow_gives_the_same_though_its_processes_are_killed(seed: int, tmp_path: Path, evidence: Evidence):
    drawn, rng = Drawn(seed), random.Random(f"ray {seed}")
    actors, parallelism = cast("Any", rng.choice(("task", "slice"))), rng.randint(1, 3)
    kills = ["source@records=1"]
    job = begin(
        drawn.flow, snapshots=tmp_path, every=0.1, parallelism=parallelism, actors=actors, kills=kills, spares=1
    )
    result = job.wait()
    assert as_multisets(dict(result.outputs)) == expected_of(drawn), f"seed {seed}: {drawn.shapes}, {parallelism}"
    assert result.restores and not result.missed_faults
    evidence.happened("processes that died", len(result.kills))
    for shape in drawn.shapes:
        evidence.happened(f"graphs with {shape.replace('_', ' ')}", 1)
    evidence.survived("records equal to the reference", sum(map(len, result.outputs.values())))
    evidence.cuts(tmp_path)
