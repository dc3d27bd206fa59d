"""Plans what each task of an attempt restores from a cut."""

from __future__ import annotations

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.recovery.outline import CutOutline
from backedge.recovery.rescale import RestorePlan, plan_restore

Part = RestorePlan | None


def place(deployment: Deployment, cut: CutOutline | None) -> dict[TaskId, Part]:
    """The plan of each task; None if the run starts from the beginning."""
    if cut is None:
        return dict.fromkeys(deployment.tasks)
    return dict(plan_restore(cut, deployment))
