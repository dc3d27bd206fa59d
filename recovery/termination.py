"""Termination, read off a consistent cut (rule 10), one component at a time, upstream first.

A loop has run dry for good when, in one cut: everything that enters it has ended, its channels hold nothing, and none
of its tasks is busy. This is stable: nothing can start again. For a drain the same is read, with inputs that the drain
holds in place of inputs that have ended.

The cut comes from a probe: an epoch whose cut is counted and not stored. An iteration ends by its own rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graphs.deployment import Component, Deployment
from graphs.ids import ChannelId, TaskId
from recovery.effects import Report


class Termination:
    """Which components can have run dry, and which have."""

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
        """Whether all tasks that send into the component have ended, and it has not."""
        senders = {c.sender for channels in self._entering[component.name].values() for c in channels}
        return all(sender in ended for sender in senders) and any(head not in ended for head in component.heads)

    def is_dry(
        self, component: Component, reports: Mapping[TaskId, Report], ended: Collection[TaskId], *, for_drain: bool
    ) -> bool:
        """Whether this cut shows that the component has run dry: for good, or for as long as a drain holds its inputs.

        A task of it that has ended already (restored so, or told a moment ago) is dry: it had to be, to end.
        """
        for task in component.tasks:
            if task in ended:
                continue
            report = reports[task]
            silent = report.ended | report.drained if for_drain else report.ended
            if report.in_flight or report.busy or not self._entering[component.name][task] <= silent:
                return False
        return True
