"""A run is taken over by code with a later version of state, under crashes.

Each value is upgraded exactly once. If the state is dropped instead, every record in flight arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from backedge import UserFunctionError
from backedge.engine.simulation.world.world_options import Parts
from tests.simulation.versions import DROPPED, DROPPED_ALONE, TRIPS, UPGRADED, Versions, taken_over


def run_seeds(
    seeds: range, parts: Callable[[], Parts] = Parts, versions: Versions = UPGRADED
) -> tuple[list[str], Counter[str]]:
    wrong: list[str] = []
    counts = Counter[str]()
    for seed in seeds:
        run = taken_over(seed, parts(), versions)
        try:
            found = run.drive()
        except UserFunctionError as error:  # the flow's functions fail for what was upgraded twice or not at all
            found = str(error)
        if found is None and sorted(run.outputs()["done"]) != [(number, TRIPS) for number in range(6)]:
            found = f"published {run.outputs()['done']}"
        if found is not None:
            wrong.append(f"seed {seed}: {found}")
        counts += run.world.counts
    return wrong, counts


@pytest.mark.slow
def test_every_value_is_upgraded_exactly_once_also_when_the_run_dies_before_its_first_cut():
    wrong, counts = run_seeds(range(50))
    assert not wrong, wrong[0]
    assert counts["changed"] > 10
    assert counts["changed_again"] > 10
    assert counts["restored_from_deltas"] > 16


@pytest.mark.slow
@pytest.mark.parametrize("versions", [DROPPED, DROPPED_ALONE], ids=["in a chain", "in a task of its own"])
def test_every_record_on_its_way_to_an_operator_arrives_although_its_state_is_dropped(versions: Versions):
    wrong, counts = run_seeds(range(25), versions=versions)
    assert not wrong, wrong[0]
    assert counts["changed_with_logs"] > 4
