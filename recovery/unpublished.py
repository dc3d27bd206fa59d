"""Publishes the output of a complete cut when a run resumes from an earlier one.

The tasks publish it before any of them runs, each for its own sinks. Any task can publish what another has prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.recovery.rescale import RestorePlan


def named(transaction: str) -> tuple[str, int]:
    """The sink that prepared a transaction, and the index of its task.

    >>> named("late.orders.3.attempt-1.epoch-12")
    ('late.orders', 3)
    """
    sink, index, _, _ = transaction.rsplit(".", 3)
    return sink, int(index)


def with_unpublished(
    plans: Mapping[TaskId, RestorePlan | None], unpublished: Iterable[str], deployment: Deployment
) -> dict[TaskId, RestorePlan | None]:
    """The plans of a restore, with these transactions among those that their tasks publish first."""
    found = dict(plans)
    for name in unpublished:
        sink, index = named(name)
        holders = [task.id for task in deployment.tasks.values() if sink in task.operators]
        if not holders:
            raise LookupError(f"transaction {name!r} belongs to sink {sink!r}, which this deployment does not have")
        holder = holders[index % len(holders)]
        plan = found[holder] or RestorePlan(holder)
        found[holder] = replace(plan, unpublished=(*plan.unpublished, name))
    return found
