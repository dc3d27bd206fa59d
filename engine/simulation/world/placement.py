"""Places the tasks of an attempt, and plans what each restores: the driver's part of a restore."""

from __future__ import annotations

from collections.abc import Callable

from backedge.engine.run.ports import Placed
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import Actors, expand, resized
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.protocol.requests import Sizes
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import RestorePlan, fitting

PlanRestore = Callable[[CutOutline, Deployment], dict[TaskId, RestorePlan]]
"""Plans what each task restores from a cut, and from which files."""


class Placement:
    """Deploys attempts. There is one deployment per parallelism."""

    def __init__(self, plan: Plan, actors: Actors, plan_restore: PlanRestore) -> None:
        self.plan = plan
        self.actors: Actors = actors
        self.plan_restore = plan_restore
        self.made: dict[int, Deployment] = {}
        self.fitted: list[Deployment] = []
        self.refused = 0

    def deployment(self, parallelism: int) -> Deployment:
        if parallelism not in self.made:
            self.made[parallelism] = expand(self.plan, parallelism, self.actors)
        return self.made[parallelism]

    def resized(self, sizes: Sizes) -> Deployment:
        for deployment in self.made.values():
            if deployment.parallelism == dict(sizes):
                return deployment
        deployment = resized(next(iter(self.made.values())), dict(sizes))
        self.fitted.append(deployment)
        return deployment

    def place_rescaled(self, cut: CutOutline, sizes: Sizes) -> Placed:
        """Deploy with the numbers of tasks that a rescale asks for. Raises `RescaleError` if the cut forbids them."""
        deployment = fitting(cut, self.resized(sizes))
        if deployment not in (*self.made.values(), *self.fitted):
            self.fitted.append(deployment)
        return Placed(deployment, dict(self.plan_restore(cut, deployment)))

    def place(self, current: Deployment, cut: CutOutline | None, wanted: int | None) -> Placed:
        """Deploy with the wanted parallelism if the cut allows it, else with that of the cut."""
        if cut is None:
            deployment = current if wanted is None else self.deployment(wanted)
            return Placed(deployment, dict.fromkeys(deployment.tasks))
        former = self._taken_with(cut)
        deployment = former if wanted is None else fitting(cut, self.deployment(wanted))
        if deployment is not former and deployment not in self.made.values():
            self.fitted.append(deployment)
        try:
            return Placed(deployment, dict(self.plan_restore(cut, deployment)))
        except RescaleError:
            if deployment is former:
                raise
            self.refused += 1
            return Placed(former, dict(self.plan_restore(cut, former)))

    def _taken_with(self, cut: CutOutline) -> Deployment:
        for deployment in (*self.made.values(), *self.fitted):
            if deployment.tasks.keys() == cut.tasks.keys() and dict(deployment.parallelism) == dict(cut.parallelism):
                return deployment
        raise LookupError(f"no attempt had the tasks of epoch {cut.epoch}")
