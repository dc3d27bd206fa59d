"""Detects termination from a consistent cut (rule 10), component by component, upstream first.

A loop has run dry when, in one cut, all its inputs from outside have ended, its channels are empty, and none of its
tasks is busy. This property is stable: nothing can start again.

The cut comes from a probe: an epoch whose cut is counted but not stored. Iterations end by their own rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from backedge.graphs.deployment import Component, Deployment
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.protocol.effects import Report


class Termination:
    """Decides which components may have run dry, and which have."""

    def __init__(self, deployment: Deployment) -> None:
        self.free = tuple(c for c in deployment.components if not c.in_rounds)
        self._entering: dict[str, dict[TaskId, frozenset[ChannelId]]] = {
            component.name: {
                task: frozenset(c.id for c in deployment.tasks[task].inputs if c.id.sender not in component.tasks)
                for task in component.tasks
            }
            for component in self.free
        }

    def may_be_dry(self, component: Component, ended: Collection[TaskId]) -> bool:
        """Whether all tasks that send into the component have ended while the component has not."""
        senders = {c.sender for channels in self._entering[component.name].values() for c in channels}
        return all(sender in ended for sender in senders) and any(head not in ended for head in component.heads)

    def is_dry(self, component: Component, reports: Mapping[TaskId, Report], ended: Collection[TaskId]) -> bool:
        """Whether this cut shows that the component has run dry.

        A task that has already ended (before a restore, or told to a moment ago) must have been dry.
        """
        for task in component.tasks:
            if task in ended:
                continue
            report = reports[task]
            if report.in_flight or report.busy or not self._entering[component.name][task] <= report.ended:
                return False
        return True
