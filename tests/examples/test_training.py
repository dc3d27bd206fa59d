"""Nested loops and rollout training: what they promise, in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import simulate
from examples.cyclic import nested_loops, rollout_training
from examples.cyclic.rollout_training import COIN, EPISODES, LEANING, STALE, STEPS_MAX, play

Record = dict[str, Any]


def accounts(*pairs: tuple[int, int]) -> list[Record]:
    """The accounts in these pairs, with their partners."""
    partners: dict[int, set[int]] = {}
    for one, other in pairs:
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return [{"account": account, "partners": sorted(partners[account])} for account in sorted(partners)]


def cores(*pairs: tuple[int, int], seeds: int = 3) -> dict[int, int]:
    flow = nested_loops.flow(seconds=0)
    found = simulate(flow, {"accounts": accounts(*pairs)}, seeds=range(seeds), crashes=2).outputs["cores"]
    assert len({row["account"] for row in found}) == len(found)
    return {row["account"]: row["core"] for row in found}


@pytest.mark.slow
def test_a_chain_is_peeled_from_its_ends_and_a_ring_stays_longer():
    chain = [(1, 2), (2, 3), (3, 4)]
    ring = [(4, 5), (5, 6), (4, 6)]
    assert cores(*chain, *ring) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}


@pytest.mark.slow
def test_who_loses_all_partners_in_one_round_gets_a_core_number_nevertheless():
    star = [(0, leaf) for leaf in range(1, 6)]
    assert cores(*star) == dict.fromkeys(range(6), 1)


@pytest.mark.slow
def test_four_who_all_pay_each_other_are_a_core_of_three():
    everybody = [(one, other) for one in range(4) for other in range(one)]
    assert cores(*everybody, (3, 4), (4, 5)) == {0: 3, 1: 3, 2: 3, 3: 3, 4: 1, 5: 1}


@pytest.mark.slow
def test_every_sample_is_used_once_and_the_learner_is_the_same_whatever_dies():
    batches = 4
    used = simulate(rollout_training.flow(size=batches * EPISODES, seconds=0), seeds=range(4), crashes=2).outputs[
        "used"
    ]
    assert len(used) == batches * EPISODES
    assert {(row["batch"], row["episode"]) for row in used} == {
        (batch, episode) for batch in range(batches) for episode in range(EPISODES)
    }
    assert {row["batch"] - row["version"] for row in used if row["batch"] >= STALE} == {STALE}


@pytest.mark.slow
def test_what_was_learned_beats_a_coin_and_who_pushes_where_the_pole_leans():
    batches = 36
    used = simulate(rollout_training.flow(size=batches * EPISODES, seconds=0), seeds=range(1)).outputs["used"]
    learned = np.mean([row["steps"] for row in used if row["batch"] >= batches - 6])
    lucks = [np.random.default_rng([2, episode]).random(4 + STEPS_MAX).tolist() for episode in range(50)]
    coin, leaning = (np.mean([play(weights, luck)["steps"] for luck in lucks]) for weights in (COIN, LEANING))
    assert coin < leaning < 50
    assert learned > 3 * leaning
