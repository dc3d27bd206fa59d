"""Where the tasks of an attempt go, and what each takes back: the driver's part of a restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.moving import move_whole
from engine.rerouting import reroute
from graphs.deployment import Deployment
from graphs.expansion import Actors, expand
from graphs.ids import TaskId
from graphs.plan import Plan
from recovery.cut import Cut
from recovery.protocol_errors import RescaleError
from recovery.rescale import MoveWhole, Reroute, fitting
from recovery.restored import TaskRestore


class PlanRestore(Protocol):
    """Says what each task takes back from a cut."""

    def __call__(
        self, cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole, /
    ) -> dict[TaskId, TaskRestore]: ...


@dataclass(frozen=True)
class Placed:
    """A deployment, and the part of each task; None where the run begins."""

    deployment: Deployment
    restores: dict[TaskId, TaskRestore | None]


class Placement:
    """Deploys attempts. Deployments are made once for each parallelism."""

    def __init__(self, plan: Plan, actors: Actors, plan_restore: PlanRestore) -> None:
        self.plan = plan
        self.actors: Actors = actors
        self.plan_restore = plan_restore
        self.made: dict[int, Deployment] = {}
        self.fitted: list[Deployment] = []
        self.refused = 0

    def deployment(self, parallelism: int) -> Deployment:
        """The deployment of that width."""
        if parallelism not in self.made:
            self.made[parallelism] = expand(self.plan, parallelism, self.actors)
        return self.made[parallelism]

    def place(self, current: Deployment, cut: Cut | None, wanted: int | None) -> Placed:
        """Deploy as wanted, if the cut allows it, else as the cut was taken."""
        if cut is None:
            deployment = current if wanted is None else self.deployment(wanted)
            return Placed(deployment, dict.fromkeys(deployment.tasks))
        former = self._taken_with(cut)
        deployment = former if wanted is None else fitting(cut, self.deployment(wanted))
        if deployment is not former and deployment not in self.made.values():
            self.fitted.append(deployment)
        try:
            return Placed(deployment, dict(self.plan_restore(cut, deployment, reroute, move_whole)))
        except RescaleError:
            if deployment is former:
                raise
            self.refused += 1
            return Placed(former, dict(self.plan_restore(cut, former, reroute, move_whole)))

    def _taken_with(self, cut: Cut) -> Deployment:
        for deployment in (*self.made.values(), *self.fitted):
            if deployment.tasks.keys() == cut.snapshots.keys() and dict(deployment.parallelism) == dict(
                cut.parallelism
            ):
                return deployment
        raise LookupError(f"no attempt had the tasks of epoch {cut.epoch}")
