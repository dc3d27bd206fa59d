"""What all tasks take back from a cut that is in memory."""

from __future__ import annotations

from graphs.deployment import Deployment
from graphs.ids import TaskId
from recovery.cut import Cut
from recovery.outline import outline_of
from recovery.rescale import plan_restore
from recovery.restored import TaskRestore
from recovery.taking_back import MoveWhole, Reroute, SnapshotsInMemory, take_back


def restored_parts(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """The part of each task. Each reads only the files that its plan names."""
    parts: dict[TaskId, TaskRestore] = {}
    for task, plan in plan_restore(outline_of(cut), deployment).items():
        files = SnapshotsInMemory({former: cut.snapshots[former] for former in plan.tasks})
        parts[task] = take_back(plan, files, deployment, reroute, move_whole)
    return parts
