"""The living runs on the cluster that this process is connected to, also those that other processes have started."""

from __future__ import annotations

from typing import cast

from engine.on_ray import cluster
from engine.on_ray.api.detached_runs import SPACE
from recovery.run_status import RunStatus

ANSWER_TIMEOUT_S = 5.0


class LivingRuns:
    """Asks the supervisors of the cluster, again and again. One that hangs delays only the first answer.

    - late: the questions without an answer, by name and namespace of the supervisor.
    """

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._late: dict[tuple[str, str], cluster.Pending] = {}

    def ask(self) -> list[RunStatus]:
        """What the supervisors tell of their runs. One that gives no answer within seconds is left out."""
        late = {who: asked for who, asked in self._late.items() if not cluster.is_over(asked, 0)}
        asked = {
            who: actor.status.remote()
            for who in cluster.named_actors()
            if _is_supervisor(*who) and who not in late and (actor := cluster.find_actor(*who)) is not None
        }
        unanswered = cluster.unanswered(list(asked.values()), self._timeout_s) if asked else []
        self._late = late | {who: pending for who, pending in asked.items() if pending in unanswered}
        found: list[RunStatus] = []
        for who, answer in asked.items():
            if who not in self._late:
                try:
                    found.append(cast(RunStatus, cluster.get(answer)))
                except cluster.RayError:
                    continue  # it has ended meanwhile
        return [status for status in found if not status.is_over]


def living_runs() -> list[RunStatus]:
    """What the supervisors tell of their runs, once."""
    return LivingRuns().ask()


def _is_supervisor(name: str, space: str) -> bool:
    """The supervisor of a detached run has the name of its job; that of any other run has a space of its own."""
    return space == SPACE or (space.startswith(f"{SPACE}-") and name.endswith("/supervisor"))
