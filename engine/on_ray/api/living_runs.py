"""The living runs on the cluster that this process is connected to, also those that other processes have started.

They can be looked at and steered from here. None of them ends with this process.
"""

from __future__ import annotations

import time
from typing import cast

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.detached_runs import SPACE
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.on_ray.run_spec import RequestFailedError
from backedge.recovery.stores.run_status import RunStatus

ANSWER_TIMEOUT_S = 5.0
KEPT_AGO_S = 60.0
"""A run that has kept its status within these seconds may be alive. It does so with cuts, at most every ten seconds."""


class LivingRuns:
    """Asks the supervisors of the cluster, again and again. One that hangs delays only the first answer.

    `job`: only runs of this job are asked for.

    - late: the questions without an answer, by name and namespace of the supervisor.
    - alive: the runs of the last answers, by their number, each with its supervisor and the name of its job.
    - steered: those that were asked for, so that each has one follower here.
    """

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S, job: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._job = job
        self._late: dict[tuple[str, str], cluster.Pending] = {}
        self._alive: dict[str, tuple[cluster.Actor, str]] = {}
        self._steered: dict[str, Job] = {}

    def ask(self) -> list[RunStatus]:
        """What the supervisors tell of their runs. One that gives no answer within seconds is left out."""
        late = {who: asked for who, asked in self._late.items() if not cluster.is_over(asked, 0)}
        actors = {
            who: actor
            for who in cluster.named_actors()
            if self._is_asked(*who) and who not in late and (actor := cluster.find_actor(*who)) is not None
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

    def _is_asked(self, name: str, space: str) -> bool:
        """The supervisor of a detached run has the name of its job; that of any other run has a space of its own."""
        job = name if space == SPACE else name.removesuffix("/supervisor")
        is_supervisor = space == SPACE or (space.startswith(f"{SPACE}-") and job != name)
        return is_supervisor and self._job in (None, job)


def living_runs() -> list[RunStatus]:
    """What the supervisors tell of their runs, once."""
    return LivingRuns().ask()


def told_takeover(job: str, root: str, kept: RunStatus | None) -> str | None:
    """What to tell the user if a run takes over a job from one that is alive or may be; else None.

    `root` is where the job has its cuts, `kept` the status that its last run has kept there. On this cluster the run
    itself answers. Of a run elsewhere, only that status is known.
    """
    ends = "ends with FencedError (exit code 3)"
    for status in LivingRuns(job=job).ask():
        if status.snapshots == root or (kept is not None and status.run == kept.run):
            alive = f"job {job!r} has a run that is alive, in attempt {status.attempt}"
            return f"{alive}: this run takes over, and that one {ends}"
    if kept is None or kept.is_over or abs(ago_s := time.time() - kept.at_s) > KEPT_AGO_S:
        return None
    return (
        f"job {job!r} had a run {max(ago_s, 0.0):.0f} s ago, in attempt {kept.attempt}: this run takes over, and if "
        f"that one is still alive, it {ends}"
    )
