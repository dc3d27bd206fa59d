"""Detached runs: found by the name of their job, followed and joined from any process of their cluster.

The supervisor of a detached run is a detached actor, named after its job. Where the same job is started again while its
run is alive, the new call joins it: it starts nothing, and follows the run like the call that has started it.
"""

from __future__ import annotations

import time
from typing import cast

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import REPEAT_S, Job
from backedge.engine.on_ray.api.progress_line import Display
from backedge.engine.on_ray.planned_faults import Faults
from backedge.engine.on_ray.ray_data import check_not_detached
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.run_spec import RunIdentity
from backedge.engine.on_ray.supervisor.supervisor_actor import About
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.kinds import Write
from backedge.graphs.naming import check_name
from backedge.graphs.plan import Plan
from backedge.graphs.public import public

SPACE = "backedge"
"""Ray's namespace of the supervisors of detached runs."""

ANSWER_LOOK_S, ANSWER_TOLD_S, ANSWER_TIMEOUT_S = 0.25, 5.0, 60.0


@public
class NoSuchRunError(LookupError):
    """No detached run of this job is alive on the cluster.

    Fix: check the name and RAY_ADDRESS; if the run has ended, `resume="latest"` continues or finishes it.
    """


@public
class RunAliveError(ValueError):
    """A run of this job is alive, and this call cannot join it.

    Fix: attach to it, stop it first, or give the options that it has.
    """


@public
class NoAnswerError(TimeoutError):
    """The supervisor of a run gives no answer: it is stopped, or waits for a machine.

    Fix: try again; if its process is suspended, end that process, and Ray starts the supervisor again.
    """


@public
def attach(job: str, *, progress: bool = True) -> Job:
    """Find the detached run of a job, to follow it, to take savepoints, or to end it.

    A run that has ended is found for another minute. `progress`: whether to show its progress, and print what its
    `Print` sinks write, from the last thousand lines on. Raises `NoSuchRunError` if there is none, `NoAnswerError` if
    its supervisor does not answer for a minute.
    """
    check_name(job, "job")
    cluster.connect(must_exist=True)
    found = _find(job)
    if found is None and f"{job}/supervisor" in {name for name, _ in cluster.named_actors()}:
        raise NoSuchRunError(
            f"a run of job {job!r} is alive and not detached, so only the process that has started it can steer it, or "
            "`backedge ui --control`: to steer it from anywhere, end it there, and start it again with resume='latest' "
            "and detached=True (--detached)"
        )
    if found is None:
        others = ", ".join(map(repr, cluster.actor_names(SPACE))) or "none"
        raise NoSuchRunError(
            f"no detached run of job {job!r} is alive on this cluster; those that are: {others}. If it is on another "
            "cluster, name that in RAY_ADDRESS; if it has ended, start it again, with resume='latest' to continue it"
        )
    supervisor, about = found
    state = "has ended" if about.has_ended else "is alive"
    told = f"the run of job {job!r} {state}"
    return Job(supervisor, told, progress, about.planned, detached_as=job, has_ended=about.has_ended, prints=progress)


def join(identity: RunIdentity, job: str, options: RunOptions, faults: Faults) -> Job | None:
    """The living run that this call joins, or None if there is none and the call starts one.

    Raises `RunAliveError` if the call cannot join the run and would fight it, `NoAnswerError` if its supervisor does
    not answer for a minute.
    """
    found = _find(job)
    while options.detached and found is not None and found[1].has_ended:
        # The new run needs its name; those who followed the old one have its result.
        _free_name(job, found[0])
        # Another process may have started the job in this moment.
        found = _find(job)
    if found is None or found[1].has_ended:
        return None
    supervisor, about = found
    is_same_place = identity.root is not None and identity.root == about.identity.root
    if not (is_same_place or options.detached):
        return None  # two runs that share nothing but a name
    differences = identity.differences(about.identity)
    if options.resume != "latest":
        differences.append(f"resume={options.resume!r}, not 'latest'")
    if faults.planned:
        differences.append("planned kills, which a run gets at its start")
    if differences:
        raise RunAliveError(
            f"job {job!r} has a detached run that is alive, and this call cannot join it because it has "
            f"{'; '.join(differences)}: follow the run with `backedge attach {job}`, or end it first with "
            f"`backedge stop {job}`"
        )
    told = f"job {job!r} has a detached run that is alive: joined it, nothing was started"
    return Job(supervisor, told, options.progress, about.planned, detached_as=job)


def _find(job: str) -> tuple[cluster.Actor, About] | None:
    """The supervisor of a job's detached run, and its run."""
    supervisor = cluster.find_actor(job, SPACE)
    asked: cluster.Pending | None = None
    began_s, is_told = time.monotonic(), False
    while supervisor is not None:
        asked = asked or supervisor.about.remote()
        try:
            if cluster.is_over(asked, ANSWER_LOOK_S):
                return supervisor, cast(About, cluster.get(asked))
        except cluster.ActorDiedError:
            return None
        except cluster.ActorUnavailableError:
            asked = None  # it is being replaced
            time.sleep(REPEAT_S)
        waited_s = time.monotonic() - began_s
        silent = f"the supervisor of job {job!r} has not answered for {waited_s:.0f} s"
        if waited_s >= ANSWER_TIMEOUT_S:
            raise NoAnswerError(
                f"{silent}: its process is stopped or waits for a machine, see `ray list actors`; call again when it "
                "goes on, or end that process for a successor"
            )
        if waited_s >= ANSWER_TOLD_S and not is_told:
            is_told = True
            Display(True).say(f"{silent}: waiting for {ANSWER_TIMEOUT_S:.0f} s at most")
    return None


def _free_name(job: str, supervisor: cluster.Actor) -> None:
    """End the supervisor of a run that has ended, and wait until its name is free or belongs to another one."""
    cluster.kill(supervisor)
    while cluster.find_actor(job, SPACE) == supervisor:
        time.sleep(REPEAT_S)


def check_detached(plan: Plan, options: RunOptions, what: str) -> None:
    """Raise if the run would need something that only the process that starts it can supply."""
    if not options.detached:
        return
    if options.audit != "never":
        raise BadOptionError(
            f"{what} has audit={options.audit!r} and detached=True, but the process that starts a run audits it: "
            "leave audit= out, and use `backedge audit`, also while the run goes on"
        )
    for operator in plan.operators.values():
        check_not_detached(operator.function, what)
    if plan.constants and options.snapshots is None:
        raise BadOptionError(
            f"{what} has detached=True and constant {next(iter(plan.constants))!r}, whose value would be lost with the "
            "process that starts the run: give it snapshots=, where it is kept"
        )
    collecting = [o.name for o in plan.operators.values() if isinstance(o.kind, Write) and o.kind.sink.keeps]
    if collecting and options.snapshots is None:
        raise BadOptionError(
            f"{what} has detached=True and sink {collecting[0]!r}, whose records would be lost with the supervisor: "
            "give it snapshots=, where they are kept, or write them to files or a table"
        )


def check_cluster(what: str) -> None:
    """Raise if the cluster ends with this process: a detached run would end with it."""
    if cluster.ends_with_us():
        raise BadOptionError(
            f"{what} has detached=True, but this process has started the Ray that it would run on, and Ray ends with "
            f"it: {cluster.START_ONE}"
        )
