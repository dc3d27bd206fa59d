"""Where a user starts a flow on Ray: `run`, and `start` for those who want to do something meanwhile."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from engine.on_ray import cluster
from engine.on_ray.actor.broken_rule import core_of
from engine.on_ray.api.call_checks import faults_in
from engine.on_ray.api.job_handle import Job, RunResult
from engine.on_ray.api.launch_checks import check_input, check_output, is_fresh, storage_folder, with_absolute_paths
from engine.on_ray.api.shared_paths import checked_paths
from engine.on_ray.job_store import run_name
from engine.on_ray.planned_faults import Kill, check_kills
from engine.on_ray.run_spec import RunSpec
from engine.on_ray.supervisor.audit_process import Audit, check_audit, start_auditor
from engine.on_ray.supervisor.supervisor_actor import SupervisorActor
from engine.on_ray.transport.control_messages import Limits, TaskOptions
from engine.travel import check_pickles
from graphs.deployment import Deployment
from graphs.expansion import Actors, expand
from graphs.flow import Flow
from graphs.graph_errors import BadOptionError
from graphs.ids import Epoch
from graphs.options import check_choice, is_whole, taking_options_of
from graphs.plan import Plan
from graphs.wording import counted
from recovery.coordinator import SnapshotOptions, why_never_dry
from recovery.messages import Mode
from recovery.stores.keys import signing_key
from recovery.supervisor import RestartOptions

Policy = Literal["aligned", "unaligned", "drain"]
Resume = Literal["latest", "never"] | int
NEVER_MS = 10**12


def start(
    flow: Flow,
    *,
    snapshots: str | os.PathLike[str] | None = None,
    every: float = 1.0,
    cut_timeout: float = 60.0,
    cut_patience: float | None = 1.0,
    keep: int = 3,
    resume: Resume = "never",
    key: bytes | None = None,
    parallelism: int = 1,
    actors: Actors = "auto",
    policy: Policy = "aligned",
    max_restarts: int = 10,
    restart_window: float = 3600.0,
    spares: int = 0,
    silence_timeout: float = 30.0,
    on_silence: Literal["report", "restart"] = "report",
    placement: Literal["DEFAULT", "SPREAD"] = "DEFAULT",
    seed: int = 0,
    credit_bytes: int = 4_000_000,
    loop_bytes: int = 64_000_000,
    loop_disk_bytes: int = 10_000_000_000,
    kills: Sequence[str] = (),
    audit: Audit = "never",
    progress: bool = True,
    broken_rule: str | None = None,
) -> Job:
    """Start a flow on Ray and return at once.

    - snapshots: a folder for its cuts. Without one, the death of a process fails the run.
    - every: seconds between cuts; keep: how many are kept. policy: how they are taken.
    - resume: "latest" goes on from the latest cut, or begins; a number from that one, and later output comes again.
    - cut_timeout: seconds without progress after which a cut is given up. The run goes on with the next one, and says
      what the cut was waiting for.
    - cut_patience: seconds that a task waits for the barriers of an aligned cut. Then it captures its state at once and
      logs what is queued, so that a cut does not take longer than that where records are slow. None: it waits.
    - key: signs cuts and collected output, and nothing signed otherwise is restored; by default the value of the
      environment variable BACKEDGE_KEY. Without a key, a folder that other users can write to is refused.
    - actors: one process a task, or one for task i of every operator ("slice"); "auto" chooses by the CPUs there are.
    - max_restarts: how many attempts may fail within restart_window seconds. The first restart begins at once; while no
      cut is complete, each one after it waits twice as long, up to 30 seconds. spares: processes that wait to replace
      those that die.
    - silence_timeout: seconds after which an actor that says nothing is reported, with the function that it is in; with
      on_silence="restart" the attempt is restarted then. A restart waits as long for an actor that is in a function.
    - credit_bytes: the most that may be on its way in a channel; less where a task is slow. loop_bytes: what waits in
      memory in a channel of a loop; the rest waits on disk, up to loop_disk_bytes a process, beyond which the run fails
      with `LoopOverflowError`.
    - audit: have Spark audit the last cut ("final") or cuts as they appear ("every-cut"); may raise `AuditFailedError`.
    - kills: planned faults, such as "head@epoch=3". broken_rule: a rule to break, such as "no-loop-log", for tests.
    """
    planned = faults_in(flow, snapshots, every, resume, seed, kills)
    if key is not None and snapshots is None:
        raise BadOptionError(f"flow {flow.name!r} has key=, which signs cuts: give it snapshots=")
    # A wrong key is refused before Ray is started.
    key = None if snapshots is None else signing_key(key)
    plan = with_absolute_paths(checked_paths(flow.plan(), snapshots))
    _check(plan, snapshots, actors, policy, placement, on_silence, audit, broken_rule)
    _at_least(plan, 1, parallelism=parallelism, keep=keep, credit_bytes=credit_bytes)
    _at_least(plan, 0, max_restarts=max_restarts, spares=spares, loop_bytes=loop_bytes, loop_disk_bytes=loop_disk_bytes)
    _positive(plan, cut_timeout=cut_timeout, restart_window=restart_window, silence_timeout=silence_timeout)
    if cut_patience is not None:
        _positive(plan, cut_patience=cut_patience)
    splits = check_input(plan)
    deployment, description = _deploy(plan, parallelism, actors, planned)
    root = None if snapshots is None else storage_folder(os.fspath(snapshots), cluster.hosts())
    limits = Limits(credit_bytes, loop_bytes, loop_disk_bytes)
    options = TaskOptions(
        seed=seed, root=root, job=plan.name, splits=splits, limits=limits, broken_rule=broken_rule, key=key
    )
    fresh = is_fresh(plan, options, resume)
    options = replace(options, run=run_name(options))
    check_output(plan, options, fresh)
    interval_ms = NEVER_MS if root is None else int(every * 1000)
    patience_ms = None if cut_patience is None else int(cut_patience * 1000)
    timeout_ms = int(cut_timeout * 1000)
    cuts = SnapshotOptions(Mode(policy), interval_ms, timeout_ms=timeout_ms, patience_ms=patience_ms, keep=keep)
    wanted = None if isinstance(resume, str) else Epoch(resume)
    restarts = RestartOptions(max_restarts, int(restart_window * 1000))
    spec = RunSpec(
        deployment,
        options,
        cuts,
        restarts,
        spares,
        placement,
        wanted,
        resume == "never",
        planned,
        int(silence_timeout * 1000),
        on_silence == "restart",
    )
    with start_auditor(root, plan.name, audit, key) as auditor:
        return Job(_start_supervisor(spec), description, progress, [str(kill) for kill in planned], auditor)


@taking_options_of(start)
def run(*arguments: Any, **options: Any) -> RunResult:
    """Run a flow to its end; takes what `start` takes.

    Raises a `TaskError`, such as `UserFunctionError`, if a function of the user's raised, `FencedError` if another run
    has taken over the job, and `RunFailedError` if processes died too often.
    """
    return start(*arguments, **options).wait()


def _check(
    plan: Plan,
    snapshots: object,
    actors: str,
    policy: str,
    placement: str,
    on_silence: str,
    audit: str,
    broken_rule: str | None,
) -> None:
    flow = f"flow {plan.name!r}"
    check_choice(actors, ("task", "slice", "auto"), "actors", flow)
    check_choice(policy, ("aligned", "unaligned", "drain"), "policy", flow)
    if policy == "drain" and (why := why_never_dry(expand(plan))) is not None:
        raise BadOptionError(f"{flow} has policy='drain': {why}")
    check_choice(placement, ("DEFAULT", "SPREAD"), "placement", flow)
    check_choice(on_silence, ("report", "restart"), "on_silence", flow)
    check_audit(flow, snapshots, audit)
    core_of(broken_rule)
    if plan.stop_when is not None and snapshots is None:
        raise BadOptionError(f"{flow} has stop_when, which is asked on complete cuts: give it snapshots=")
    check_pickles(plan, cluster.pickled)


def _at_least(plan: Plan, least: int, **amounts: object) -> None:
    for option, value in amounts.items():
        if not is_whole(value) or value < least:
            raise BadOptionError(f"flow {plan.name!r} has {option}={value!r}: give an integer of at least {least}")


def _positive(plan: Plan, **seconds: Any) -> None:
    for option, value in seconds.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0.001 <= value < math.inf:
            raise BadOptionError(f"flow {plan.name!r} has {option}={value!r}: give seconds, such as {option}=60")


def _deploy(plan: Plan, parallelism: int, actors: Actors, planned: tuple[Kill, ...]) -> tuple[Deployment, str]:
    """What runs where, and the same in words."""
    # Before Ray is started, which takes seconds; which tasks there are does not depend on the CPUs.
    check_kills(planned, expand(plan, parallelism))
    cluster.connect()
    cpus = cluster.cpus()
    deployment = expand(plan, parallelism, actors, cpus)
    return deployment, describe(deployment, actors, cpus)


def describe(deployment: Deployment, actors: str, cpus: int) -> str:
    """What runs where, in a line."""
    count = len({task.actor for task in deployment.tasks.values()})
    chosen = f' (actors="auto" with {cpus} CPUs)' if actors == "auto" else ""
    return f"{counted(len(deployment.tasks), 'task')} in {counted(count, 'actor')}{chosen}"


def _start_supervisor(spec: RunSpec) -> cluster.Actor:
    space = f"backedge-{os.getpid()}-{os.urandom(4).hex()}"
    name = f"{spec.options.job}/supervisor"
    return cluster.start_actor(SupervisorActor, spec, name=name, space=space, needs=cluster.Needs(), threads=4)
