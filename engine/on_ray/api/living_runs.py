"""The living runs on the cluster that this process is connected to, also those that other processes have started."""

from __future__ import annotations

from typing import cast

from engine.on_ray import cluster
from engine.on_ray.api.detached_runs import SPACE
from recovery.run_status import RunStatus

ANSWER_TIMEOUT_S = 5.0


def living_runs() -> list[RunStatus]:
    """What the supervisors tell of their runs. One that gives no answer within seconds is left out."""
    asked = [
        actor.status.remote()
        for name, space in cluster.named_actors()
        if _is_supervisor(name, space) and (actor := cluster.find_actor(name, space)) is not None
    ]
    late = cluster.unanswered(asked, ANSWER_TIMEOUT_S) if asked else []
    found: list[RunStatus] = []
    for answer in asked:
        if answer not in late:
            try:
                found.append(cast(RunStatus, cluster.get(answer)))
            except cluster.RayError:
                continue  # it has ended meanwhile
    return [status for status in found if not status.is_over]


def _is_supervisor(name: str, space: str) -> bool:
    """The supervisor of a detached run has the name of its job; that of any other run has a space of its own."""
    return space == SPACE or (space.startswith(f"{SPACE}-") and name.endswith("/supervisor"))
