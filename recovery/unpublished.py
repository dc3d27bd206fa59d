"""Output of a cut that a run goes back behind: the cut was complete, so what it lists is published all the same.

The tasks do it before any of them runs, each for the sinks that it holds. Any task can publish what another prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from graphs.deployment import Deployment
from graphs.ids import Attempt, Epoch, TaskId
from recovery.cut import OperatorState, Transaction
from recovery.restored import TaskRestore


def named(transaction: str) -> tuple[str, int]:
    """The sink that prepared a transaction, and the index of its task.

    >>> named("late.orders.3.attempt-1.epoch-12")
    ('late.orders', 3)
    """
    sink, index, _, _ = transaction.rsplit(".", 3)
    return sink, int(index)


def with_unpublished(
    parts: Mapping[TaskId, TaskRestore | None], unpublished: Iterable[str], deployment: Deployment
) -> dict[TaskId, TaskRestore | None]:
    """The parts of a restore, with these transactions among those that their tasks publish first."""
    found = dict(parts)
    for name in unpublished:
        sink, index = named(name)
        holders = [task.id for task in deployment.tasks.values() if sink in task.operators]
        if not holders:
            raise LookupError(f"transaction {name!r} is of sink {sink!r}, which this deployment does not have")
        holder = holders[index % len(holders)]
        found[holder] = _with_one(found[holder] or TaskRestore(), sink, name)
    return found


def _with_one(part: TaskRestore, sink: str, name: str) -> TaskRestore:
    if name in part.transactions:
        return part
    state = part.operators.get(sink, OperatorState())
    # Published before the task captures anything: neither epoch nor attempt ever becomes part of a cut.
    transaction = Transaction(name, Epoch(0), Attempt(0))
    operators = {**part.operators, sink: replace(state, transactions=(*state.transactions, transaction))}
    return replace(part, operators=operators, transactions=(*part.transactions, name))
