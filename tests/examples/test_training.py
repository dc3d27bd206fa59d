"""Nested loops and rollout training: what they promise, in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import simulate
from examples.cyclic import async_training, nested_loops
from examples.cyclic.async_training import COIN, EPISODES, LEANING, STALE, STEPS_MAX, play

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
def test_accounts_have_the_core_numbers_of_their_chain_their_ring_their_star_and_of_all_who_pay_each_other():
    """A chain is peeled from its ends; who loses all partners in one round has a number, too."""
    chain, ring = [(1, 2), (2, 3), (3, 4)], [(4, 5), (5, 6), (4, 6)]
    star = [(10, leaf) for leaf in range(11, 16)]
    everybody = [(20 + one, 20 + other) for one in range(4) for other in range(one)]
    found = cores(*chain, *ring, *star, *everybody, (23, 24), (24, 25))
    assert {account: core for account, core in found.items() if account < 10} == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    assert {account: core for account, core in found.items() if 10 <= account < 20} == dict.fromkeys(range(10, 16), 1)
    assert {account: core for account, core in found.items() if account >= 20} == {
        **dict.fromkeys(range(20, 24), 3),
        **dict.fromkeys((24, 25), 1),
    }


@pytest.mark.slow
def test_every_sample_is_used_once_and_the_learner_is_the_same_whatever_dies():
    batches = 4
    used = simulate(async_training.flow(size=batches * EPISODES, seconds=0), seeds=range(4), crashes=2).outputs["used"]
    assert len(used) == batches * EPISODES
    assert {(row["batch"], row["episode"]) for row in used} == {
        (batch, episode) for batch in range(batches) for episode in range(EPISODES)
    }
    assert {row["batch"] - row["version"] for row in used if row["batch"] >= STALE} == {STALE}


@pytest.mark.slow
def test_what_was_learned_beats_a_coin_and_who_pushes_where_the_pole_leans():
    batches = 36
    used = simulate(async_training.flow(size=batches * EPISODES, seconds=0), seeds=range(1)).outputs["used"]
    learned = np.mean([row["steps"] for row in used if row["batch"] >= batches - 6])
    lucks = [np.random.default_rng([2, episode]).random(4 + STEPS_MAX).tolist() for episode in range(50)]
    coin, leaning = (np.mean([play(weights, luck)["steps"] for luck in lucks]) for weights in (COIN, LEANING))
    assert coin < leaning < 50
    assert learned > 3 * leaning
