"""What each task of an attempt takes back from a cut."""

from __future__ import annotations

from collections.abc import Mapping

from engine.batch import decode
from engine.moving import move_whole
from engine.rerouting import reroute
from graphs.deployment import Deployment
from graphs.graph_errors import GraphError
from graphs.ids import TaskId
from graphs.plan import Plan
from recovery.cut import Cut
from recovery.messages import marker_in
from recovery.rescale import plan_restore
from recovery.restored import TaskRestore
from recovery.stores.manifests import CutDescription

Part = TaskRestore | None


class GraphMismatchError(GraphError):
    """The cut is of another graph."""


def check_graph(plan: Plan, cut: Cut | CutDescription) -> None:
    """Raise unless a cut was taken of this graph."""
    if cut.graph_hash != plan.hash:
        raise GraphMismatchError(
            f"epoch {cut.epoch} was taken of another graph ({cut.graph_hash}) than flow {plan.name!r} has now "
            f"({plan.hash}); its operators were {', '.join(sorted(cut.parallelism))}: run the graph that it was taken "
            "of, or begin anew in another folder. Functions may be edited; operators and edges may not"
        )


def place(deployment: Deployment, cut: Cut | None) -> dict[TaskId, Part]:
    """The part of each task; None where the run begins."""
    if cut is None:
        return dict.fromkeys(deployment.tasks)
    check_graph(deployment.plan, cut)
    return dict(plan_restore(cut, deployment, reroute, move_whole))


def records_in_logs(parts: Mapping[TaskId, Part]) -> int:
    """How many records the loop logs of a cut hold."""
    logs = [log for part in parts.values() if part is not None for log in part.logs]
    payloads = [payload for log in logs for payload in log.payloads if marker_in(payload) is None]
    return sum(map(len, map(decode, payloads))) - sum(log.skip for log in logs)
