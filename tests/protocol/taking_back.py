"""What all tasks take back from a cut that is in memory."""

from __future__ import annotations

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.restore.restore_task import MoveWhole, Reroute, SnapshotsInMemory, take_back


def restored_parts(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """The part of each task. Each reads only the files that its plan names."""
    parts: dict[TaskId, TaskRestore] = {}
    for task, plan in plan_restore(outline_of(cut), deployment).items():
        files = SnapshotsInMemory({former: cut.snapshots[former] for former in plan.tasks})
        parts[task] = take_back(plan, files, deployment, reroute, move_whole)
    return parts
