"""Starts a flow on Ray: `run` waits for its end, `start` returns at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.broken_rule import core_of
from backedge.engine.on_ray.api.detached_runs import SPACE, RunAliveError, check_cluster, check_detached, join
from backedge.engine.on_ray.api.job_handle import Job, RunResult
from backedge.engine.on_ray.api.kept_constants import digests_of, given_values, held, keep, values_of
from backedge.engine.on_ray.api.launch_checks import (
    beginning_of,
    check_input,
    check_kept,
    check_no_import,
    check_no_output_arrives,
    check_output,
    released_if_it_fails,
    storage_location,
    with_absolute_paths,
    with_begun_sources,
)
from backedge.engine.on_ray.api.living_runs import told_takeover
from backedge.engine.on_ray.api.progress_line import Display
from backedge.engine.on_ray.api.shared_paths import checked_paths
from backedge.engine.on_ray.cluster import ActorName
from backedge.engine.on_ray.job_store import run_name
from backedge.engine.on_ray.planned_faults import NO_FAULTS, Faults, Kill, check_kills, planned_for
from backedge.engine.on_ray.run_options import RunOptions, with_keywords_of
from backedge.engine.on_ray.run_spec import RESULT_KEPT_S, RunSpec, identity_of
from backedge.engine.on_ray.supervisor.actor_starter import start_first
from backedge.engine.on_ray.supervisor.audit_process import start_auditor
from backedge.engine.on_ray.supervisor.crew import needs_of
from backedge.engine.on_ray.supervisor.supervisor_actor import FOLLOWERS, FOLLOWERS_MAX, SupervisorActor
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.engine.operators.check_picklable import check_pickles
from backedge.engine.task.ports import FlowLimits
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.flow import Flow
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.plan import Plan
from backedge.graphs.public import public
from backedge.graphs.wording import counted
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.pipelines import Pipeline
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.spark.sessions.spark_session import check_start
from backedge.recovery.stores.keys import signing_key
from backedge.recovery.stores.store_schemes import scheme_of, store_opener

NEVER_MS = 10**12

STATE_FILES_MAX = 32
"""Limit of the files that make up the keyed state of a task. Compaction begins at half of it."""

PIECE_BYTES_MAX = 64 * 1024
DETACHED_BYTES_MAX = 8_000_000
"""A detached run must outlive the memory of the process that starts it.

Ray keeps the arguments of an actor with its description, where a successor finds them, if each has less than 100 kB and
all of them less than 10 MB. Larger ones stay in the memory of the process that starts the actor.
"""


@public
@with_keywords_of(RunOptions)
def start(flow: Flow, options: RunOptions) -> Job:
    """Start a flow on Ray and return at once. Takes the options of a run as keywords: the fields of `RunOptions`.

    A detached run that is alive already is joined with `resume="latest"`.
    """
    return start_run(flow, options)


@public
@with_keywords_of(RunOptions)
def run(flow: Flow, options: RunOptions) -> RunResult:
    """Run a flow to its end. Takes the options of a run as keywords: the fields of `RunOptions`.

    A detached run that is alive already is joined with `resume="latest"`: nothing is started, and this call follows it.

    Raises a `TaskError`, such as `UserFunctionError`, if a function of yours raised, `FencedError` if another run has
    taken over the job, and `RunFailedError` if processes died too often.
    """
    return start_run(flow, options).wait()


def start_run(flow: Flow, options: RunOptions, faults: Faults = NO_FAULTS) -> Job:
    """Start a flow on Ray, with or without planned faults. Errors of the call are raised before anything else."""
    what = f"flow {flow.name!r}"
    check_no_import(what)
    options.check_snapshots(what)
    root = None if options.snapshots is None else os.fspath(options.snapshots)
    # A wrong key or scheme is refused before Ray is started.
    key = None if root is None else signing_key(options.key)
    if root is not None:
        store_opener(root)
    plan = with_absolute_paths(checked_paths(flow.plan(), root))
    _check(plan, options, faults, what)
    plan = with_begun_sources(plan, options, what)
    splits = check_input(plan)
    whole, cpus = _deploy(plan, options, faults.planned, what)
    if root is not None:
        root = storage_location(root, cluster.hosts())
    tasks = TaskOptions(
        seed=options.seed,
        root=root,
        job=plan.name,
        splits=splits,
        limits=FlowLimits(options.credit_bytes, loop_bytes_max=options.loop_bytes, log_budget_bytes=options.log_bytes),
        spill_bytes_max=options.loop_disk_bytes,
        broken_rule=faults.broken_rule,
        key=key,
        keep_inputs=frozenset(options.keep_inputs),
    )
    given = given_values(plan)
    identity = identity_of(plan.hash, tasks, options, digests_of(given))
    if (living := join(identity, plan.name, options, faults)) is not None:
        return living
    beginning = beginning_of(plan, tasks, options)
    deployments = _apart(whole, [pipeline.plan for pipeline in beginning.pipelines], options)
    description = describe(deployments, options.actors, cpus)
    if beginning.finished is not None:
        description = (
            f"{what} has finished already, with cut {beginning.finished}: nothing is left to do. Input that was added "
            "since is not read; to read it, give the run another folder for its cuts"
        )
        if not options.progress:
            print(f"[backedge] {description}", file=sys.stderr)
    tasks = replace(tasks, run=run_name(tasks))
    values = values_of(plan, given, beginning.constants, set(options.drop) - beginning.loaded)
    check_output(plan, tasks, beginning.is_fresh, is_replaced=options.replace_output)
    cuts = SnapshotOptions(
        Mode(options.policy),
        NEVER_MS if root is None or options.every is None else int(options.every * 1000),
        timeout_ms=int(options.cut_timeout * 1000),
        patience_ms=None if options.cut_patience is None else int(options.cut_patience * 1000),
        pause_ms_min=int(options.cut_pause * 1000),
        open_epochs_max=options.cuts_in_progress,
        failures_tolerated=options.cut_failures,
        keep=options.keep,
        files_max=1 if root is None else STATE_FILES_MAX,
    )
    run = RunSpec(whole, tasks, cuts, options, result_kept_s=RESULT_KEPT_S, graph=plan.hash)
    dropped = frozenset[str]() if beginning.is_fresh else frozenset(options.drop)
    run = replace(run, options=replace(tasks, constants=keep(values, tasks, run.id), dropped=dropped))
    specs = [
        replace(
            run,
            deployment=deployment,
            kills=kills,
            change=pipeline.change,
            resume_from=pipeline.resume_from,
            pipeline=Pipeline(pipeline.plan.pipeline, place, len(deployments), beginning.given_up),
        )
        for place, (deployment, kills, pipeline) in enumerate(
            zip(deployments, planned_for(faults.planned, deployments), beginning.pipelines, strict=True)
        )
    ]
    planned = list(map(str, faults.planned))
    if root is not None and not beginning.is_fresh and beginning.finished is None:
        takeover = told_takeover(plan.name, root, beginning.kept)
        if takeover is not None:
            Display(options.progress).say(takeover)
    with released_if_it_fails(plan, tasks), start_auditor(root, plan.name, options.audit, key) as auditor:
        try:
            supervisor, actors = _start_actors(specs, held(values, tasks))
        except _JobTakenError as taken:
            # Another process has started the same job since we looked.
            if (living := join(identity, plan.name, options, faults)) is None:
                raise RunAliveError(f"job {plan.name!r} was started by another process, too: start it again") from taken
            return living
        detached_as = plan.name if options.detached else None
        return Job(
            supervisor,
            description,
            options.progress,
            planned,
            auditor,
            actors=actors,
            detached_as=detached_as,
            silence_s=options.silence_timeout,
            may_replace=run.takeovers_max > 0,
        )


def _check(plan: Plan, options: RunOptions, faults: Faults, what: str) -> None:
    check_detached(plan, options, what)
    check_kept(plan, options, what)
    check_no_output_arrives(plan, what)
    if options.replace_output and not isinstance(options.resume, int):
        raise BadOptionError(
            f"{what} has replace_output=True and resume={options.resume!r}: give resume= the number of the cut after "
            "which output is removed"
        )
    if options.audit != "never":
        if options.snapshots is not None and scheme_of(os.fspath(options.snapshots)) != "file":
            raise BadOptionError(
                f"{what} has audit={options.audit!r}, which needs cuts in a folder, not in {options.snapshots}: leave "
                "audit= out and audit them with `backedge audit` afterwards, or keep the cuts in a folder"
            )
        check_start()
    core_of(faults.broken_rule)
    if plan.stop_when is not None and options.snapshots is None:
        raise BadOptionError(f"{what} has stop_when, which is evaluated on complete cuts: give it snapshots=")
    check_pickles(plan, cluster.pickled)


def _deploy(plan: Plan, options: RunOptions, planned: tuple[Kill, ...], what: str) -> tuple[Deployment, int]:
    """The deployment of the whole flow, and the number of CPUs that it was made for."""
    # Before Ray is started, which takes seconds; the set of tasks does not depend on the CPUs.
    check_kills(planned, expand(plan, options.parallelism))
    cluster.connect(must_exist=options.detached)
    if options.detached:
        check_cluster(what)
    cpus = cluster.cpus()
    return expand(plan, options.parallelism, options.actors, cpus), cpus


def _apart(whole: Deployment, plans: Sequence[Plan], options: RunOptions) -> list[Deployment]:
    """A deployment for each pipeline, whose tasks share actors as they would in one deployment."""
    if plans == [whole.plan]:
        return [whole]
    return [expand(plan, options.parallelism, "slice" if whole.by_slice else "task") for plan in plans]


def describe(deployments: Sequence[Deployment], actors: str, cpus: int) -> str:
    """A description of the deployment in one line."""
    tasks = [task for deployment in deployments for task in deployment.tasks.values()]
    count = len({task.actor for task in tasks})
    chosen = f' (actors="auto" with {cpus} CPUs)' if actors == "auto" else ""
    apart = f", in {len(deployments)} pipelines that fail independently" if len(deployments) > 1 else ""
    return f"{counted(len(tasks), 'task')} in {counted(count, 'actor')}{chosen}{apart}"


class _JobTakenError(Exception):
    """The job has a detached run already."""


def _start_actors(
    specs: Sequence[RunSpec], held: Mapping[str, cluster.Pending]
) -> tuple[cluster.Actor, list[cluster.Actor]]:
    """Start the supervisor of a run and its first actors. `_JobTakenError` if the job has a detached run already."""
    spec = specs[0]
    is_detached, job = spec.run.detached, spec.options.job
    pieces = _pieces(cluster.pickled(tuple(specs)), is_detached)
    name = ActorName(job, SPACE)
    if not is_detached:
        name = ActorName(f"{job}/supervisor", f"{SPACE}-{os.getpid()}-{os.urandom(4).hex()}")
    needs = {name: needed for each in specs for name, needed in needs_of(each.deployment).items()}
    of_run = cluster.RunSupervisor(name, spec.id)
    try:
        first, actors = start_first(job, spec.run.placement, needs, of_run, is_detached=is_detached)
    except ValueError as error:
        raise BadOptionError(f"Ray cannot start processes with these resources: {cluster.first_line(error)}") from error
    try:
        supervisor = cluster.start_actor(
            SupervisorActor,
            first,
            held,
            *pieces,
            name=name.name,
            space=name.space,
            needs=cluster.Needs(),
            threads=4,
            restarts=spec.takeovers_max,
            groups={FOLLOWERS: FOLLOWERS_MAX},
            is_detached=is_detached,
        )
    except ValueError as error:
        for actor in actors:
            cluster.kill(actor)
        raise _JobTakenError from error
    return supervisor, actors


def _pieces(pickled: bytes, is_detached: bool) -> list[bytes]:
    """A pickled run in pieces that Ray keeps with the description of an actor."""
    if is_detached and len(pickled) > DETACHED_BYTES_MAX:
        raise BadOptionError(
            f"the flow has detached=True and carries {len(pickled):,} bytes in its sources and functions, more than "
            f"the {DETACHED_BYTES_MAX:,} that outlive this process: read the data from files"
        )
    return [pickled[start : start + PIECE_BYTES_MAX] for start in range(0, len(pickled), PIECE_BYTES_MAX)]
