"""The living runs on the cluster that this process is connected to, also those that other processes have started.

They can be looked at and steered from here. None of them ends with this process.
"""

from __future__ import annotations

from typing import cast

from engine.on_ray import cluster
from engine.on_ray.api.detached_runs import SPACE
from engine.on_ray.api.job_handle import Job
from engine.on_ray.run_spec import RequestFailedError
from recovery.run_status import RunStatus

ANSWER_TIMEOUT_S = 5.0


class LivingRuns:
    """Asks the supervisors of the cluster, again and again. One that hangs delays only the first answer.

    - late: the questions without an answer, by name and namespace of the supervisor.
    - alive: the runs of the last answers, by their number, each with its supervisor and the name of its job.
    - steered: those that were asked for, so that each has one follower here.
    """

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._late: dict[tuple[str, str], cluster.Pending] = {}
        self._alive: dict[str, tuple[cluster.Actor, str]] = {}
        self._steered: dict[str, Job] = {}

    def ask(self) -> list[RunStatus]:
        """What the supervisors tell of their runs. One that gives no answer within seconds is left out."""
        late = {who: asked for who, asked in self._late.items() if not cluster.is_over(asked, 0)}
        actors = {
            who: actor
            for who in cluster.named_actors()
            if _is_supervisor(*who) and who not in late and (actor := cluster.find_actor(*who)) is not None
        }
        asked = {who: actor.status.remote() for who, actor in actors.items()}
        unanswered = cluster.unanswered(list(asked.values()), self._timeout_s) if asked else []
        self._late = late | {who: pending for who, pending in asked.items() if pending in unanswered}
        found: list[RunStatus] = []
        alive: dict[str, tuple[cluster.Actor, str]] = {}
        for who, answer in asked.items():
            if who not in self._late:
                try:
                    status = cast(RunStatus, cluster.get(answer))
                except cluster.RayError:
                    continue  # it has ended meanwhile
                if not status.is_over:
                    found.append(status)
                    alive[status.run] = actors[who], status.job
        self._alive = alive
        return found

    def job(self, run: str) -> Job:
        """A run of the last answers, to steer it; `run` is the number in its status.

        Raises `RequestFailedError` if it is not alive.
        """
        if run not in self._alive:
            raise RequestFailedError("the run has ended, or its supervisor does not answer: look at it again")
        if run not in self._steered:
            supervisor, job = self._alive[run]
            self._steered[run] = Job(supervisor, "", progress=False, detached_as=job, prints=False)
        return self._steered[run]


def living_runs() -> list[RunStatus]:
    """What the supervisors tell of their runs, once."""
    return LivingRuns().ask()


def _is_supervisor(name: str, space: str) -> bool:
    """The supervisor of a detached run has the name of its job; that of any other run has a space of its own."""
    return space == SPACE or (space.startswith(f"{SPACE}-") and name.endswith("/supervisor"))
