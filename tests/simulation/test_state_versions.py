"""A run is taken over by code with a later version of state, under crashes.

Each value is upgraded exactly once. If the state is dropped instead, every record in flight arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from backedge import UserFunctionError
from backedge.engine.simulation.world_options import Parts
from backedge.engine.upgrading import upgraded
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.recovery.outline import CutOutline
from backedge.recovery.rescale import RestorePlan, plan_restore
from backedge.recovery.taking_back import take_back
from tests.simulation.versions import DROPPED, DROPPED_ALONE, TRIPS, UPGRADED, Versions, taken_over


def run_seeds(
    seeds: range, parts: Callable[[], Parts] = Parts, versions: Versions = UPGRADED
) -> tuple[list[str], Counter[str]]:
    """What went wrong, and what happened."""
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
    wrong, counts = run_seeds(range(150))
    assert not wrong, wrong[0]
    assert counts["changed"] > 30
    assert counts["changed_again"] > 30
    assert counts["restored_from_deltas"] > 50


def take_back_upgraded_twice(plan: RestorePlan, files: Any, deployment: Deployment, *others: Any) -> Any:
    return take_back(plan, upgraded(files, plan, deployment.plan), deployment, *others)


def plan_without_upgrade(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    return {task: replace(plan, former_versions={}) for task, plan in plan_restore(cut, deployment).items()}


def plan_with_an_older_base(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """What changes after an upgrade is written on top of what was not upgraded."""
    plans = plan_restore(cut, deployment)
    return {task: replace(plan, base=cut.epoch if cut.former_versions else plan.base) for task, plan in plans.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "seeds"),
    [
        (lambda: Parts(take_back=take_back_upgraded_twice), range(5)),
        (lambda: Parts(plan_restore=plan_without_upgrade), range(5)),
        (lambda: Parts(plan_restore=plan_with_an_older_base), range(128, 133)),
    ],
    ids=["upgraded twice", "not upgraded", "an older base"],
)
def test_a_restore_that_upgrades_wrongly_is_found(parts: Callable[[], Parts], seeds: range):
    wrong, _ = run_seeds(seeds, parts)
    assert wrong


@pytest.mark.slow
@pytest.mark.parametrize("versions", [DROPPED, DROPPED_ALONE], ids=["in a chain", "in a task of its own"])
def test_every_record_on_its_way_to_an_operator_arrives_although_its_state_is_dropped(versions: Versions):
    wrong, counts = run_seeds(range(60), versions=versions)
    assert not wrong, wrong[0]
    assert counts["changed_with_logs"] > 10


def plan_without_logs_of_dropped_operators(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """What was logged for an operator is given up with its state."""
    return {
        task: replace(plan, moved_logs=tuple(log for log in plan.moved_logs if task.name not in cut.dropped))
        for task, plan in plan_restore(cut, deployment).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("versions", [DROPPED, DROPPED_ALONE], ids=["in a chain", "in a task of its own"])
def test_a_restore_that_gives_up_records_with_the_state_is_found(versions: Versions):
    wrong, _ = run_seeds(range(17, 20), lambda: Parts(plan_restore=plan_without_logs_of_dropped_operators), versions)
    assert wrong
