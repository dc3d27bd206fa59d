"""What each task of an attempt takes back from a cut."""

from __future__ import annotations

from graphs.deployment import Deployment
from graphs.graph_errors import GraphError
from graphs.ids import TaskId
from graphs.plan import Plan
from recovery.outline import CutOutline
from recovery.rescale import RestorePlan, plan_restore

Part = RestorePlan | None


class GraphMismatchError(GraphError):
    """The cut is of another graph."""


def check_graph(plan: Plan, cut: CutOutline) -> None:
    """Raise unless a cut was taken of this graph."""
    if cut.graph_hash != plan.hash:
        raise GraphMismatchError(
            f"epoch {cut.epoch} was taken of another graph ({cut.graph_hash}) than flow {plan.name!r} has now "
            f"({plan.hash}); its operators were {', '.join(sorted(cut.parallelism))}: run the graph that it was taken "
            "of, or begin anew in another folder. Functions may be edited; operators and edges may not"
        )


def place(deployment: Deployment, cut: CutOutline | None) -> dict[TaskId, Part]:
    """The plan of each task; None where the run begins."""
    if cut is None:
        return dict.fromkeys(deployment.tasks)
    check_graph(deployment.plan, cut)
    return dict(plan_restore(cut, deployment))
