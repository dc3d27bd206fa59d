"""A case run clean, run with kills, and computed by Spark: the three are compared, and the last cuts are audited.

`backedge compare` is here, too. Exit codes: 0 if all is equal and all planned kills happened, 1 if something differs or
a kill did not happen, 2 if the call was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from backedge.arguments import key_from
from backedge.cases import Case, case_of
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.planned_faults import NO_FAULTS, Faults, role_of
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.run_spec import RunFailedError
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError
from backedge.graphs.wording import counted
from backedge.printing import refuse
from backedge.trials import DataFrame, Judged, Trial

Facts = dict[str, Any]

EVERY_MIN_S, EVERY_MAX_S = 0.05, 1.0
EPOCHS_BEFORE, EPOCHS_A_KILL = 12, 2
SHARE_MIN, SHARE_MAX = 0.2, 0.7
KILLED = "the run with kills and the reference"
BLIND = "one wrong row would not be found, so the comparison shows nothing: narrow TOLERANCES"
DONE, WRONG = 0, 1


@public
def compare(
    module: ModuleType | str,
    *,
    kills: int = 3,
    seed: int = 0,
    size: int | None = None,
    parallelism: int = 1,
    rounds: int | None = None,
    every: float | None = None,
    spark: Any = None,
    plant_error: bool = False,
    key: bytes | None = None,
) -> Facts:
    """Compare a module (see `backedge.cases`) with itself killed and with its reference; `failures` says what is wrong.

    The seed chooses whom the kills hit, and when. `every` is the time between cuts; by default one in which all kills
    have room. `key` signs the cuts, as for `start`. `plant_error` changes a row of the result, which must then come out
    as a failure.
    """
    with tempfile.TemporaryDirectory(prefix="backedge-compare-") as folder:
        options = RunOptions(parallelism=parallelism, seed=seed, key=key)
        trial = Trial(case_of(module), folder, size=size, rounds=rounds, options=options)
        with trial.session(spark):
            return _Comparison(trial, folder, options).facts(kills, every, plant_error)


def planned_kills(
    deployment: Deployment, kills: int, seed: int, *, by_task: Mapping[str, int], in_loop: bool
) -> list[str]:
    """Plan `kills` faults that a run like the clean one reaches.

    `by_task` has the records that the tasks of the clean run processed. The first fault strikes a task of a loop; with
    `in_loop`, as soon as a complete cut holds records in one. The others strike when a task has processed a part of
    what it did in the clean run, each later than the one before. Sources are left out, unless
    there is nothing else: those that read files count in large steps.
    """
    chance = random.Random(seed)
    busy = [task for task in deployment.tasks.values() if by_task.get(str(task.id))]
    tasks = [task for task in busy if not task.is_source] or busy or list(deployment.tasks.values())
    loops = [task for task in tasks if role_of(task) in ("head", "body")]
    planned: list[str] = []
    for number in range(kills):
        task = chance.choice(tasks if planned else loops or tasks)
        share = SHARE_MIN + (SHARE_MAX - SHARE_MIN) * (number + chance.random()) / kills
        records = max(1, int(share * by_task.get(str(task.id), 0)))
        is_first = in_loop and not planned
        planned.append(f"{task.id}@loop=1" if is_first else f"{task.id}@records={records}")
    return planned


class _Comparison:
    def __init__(self, trial: Trial, folder: str, options: RunOptions) -> None:
        self.trial = trial
        self.case: Case = trial.case
        self.folder = folder
        self.options = options
        self.plan = trial.flow("clean").plan()

    def facts(self, kills: int, every: float | None, plant_error: bool) -> Facts:
        self.trial.prepare()
        clean = self._run("clean", EVERY_MAX_S, NO_FAULTS)
        deployment = expand(self.plan, self.options.parallelism)
        planned = planned_kills(deployment, kills, self.options.seed, by_task=clean.by_task, in_loop=self.case.in_loop)
        working_s = clean.seconds - clean.starting_seconds
        room = EPOCHS_BEFORE + EPOCHS_A_KILL * kills
        every = every or min(EVERY_MAX_S, max(EVERY_MIN_S, working_s / room))
        killed = self._run("killed", every, Faults(planned))
        reference, spark_seconds = self.trial.reference()
        found = {name: self.trial.found(name, run, reference) for name, run in (("clean", clean), ("killed", killed))}
        finds_error = self._finds_error(found["killed"], reference)
        if plant_error:
            found["killed"] = self._with_error(found["killed"], reference)
        judged = self._judged(found, reference)
        worst = max(judged.values(), key=lambda one: one.differing)
        audited, wrong = self._audited()
        failures = [line for what, one in judged.items() for line in one.failures(what)]
        return {
            "module": self.case.name,
            "size": self.trial.size,
            "parallelism": self.options.parallelism,
            "seed": self.options.seed,
            "equal": not any(one.differing or one.broken or one.fault for one in judged.values()),
            "kills_planned": len(planned),
            "kills_happened": len(killed.kills),
            "kills": planned,
            "rows": judged[KILLED].rows,
            "audit": audited,
            "recovery_seconds": round(sum(restore["seconds"] or 0 for restore in killed.restores), 3),
            "spark_seconds": round(spark_seconds, 3),
            "clean_seconds": round(working_s, 3),
            "killed_seconds": round(killed.seconds - killed.starting_seconds, 3),
            "every": round(every, 3),
            "restores": len(killed.restores),
            "in_loop_records": sum(restore["in_loop_records"] for restore in killed.restores),
            "differing": worst.differing,
            "first_differences": worst.first,
            "planted_error_found": finds_error,
            "failures": [*failures, *self._not_happened(killed), *wrong, *([] if finds_error else [BLIND])],
        }

    def _run(self, name: str, every: float, faults: Faults) -> RunResult:
        return self.trial.run(name, faults, snapshots=os.path.join(self.folder, f"{name}-cuts"), every=every)

    def _with_error(self, frame: DataFrame, reference: DataFrame) -> DataFrame:
        from backedge.recovery.spark.compare.run_outputs import with_planted_error

        beyond = set(frame.columns) - set(reference.columns)
        return with_planted_error(frame, [*self.case.keys, *self.case.tolerances, *beyond])

    def _finds_error(self, frame: DataFrame, reference: DataFrame) -> bool:
        """Whether one wrong row would be found."""
        return bool(self.trial.judge(self._with_error(frame, reference), reference).failures(KILLED))

    def _judged(self, found: dict[str, DataFrame], reference: DataFrame) -> dict[str, Judged]:
        return {
            KILLED: self.trial.judge(found["killed"], reference),
            "the clean run and the reference": self.trial.judge(found["clean"], reference),
            "the run with kills and the clean run": self.trial.differ(found["killed"], found["clean"], reference),
        }

    def _not_happened(self, killed: RunResult) -> Iterable[str]:
        for fault in killed.missed_faults:
            yield f"the planned kill {fault} did not happen: the run was over before it was due"
        if self.case.in_loop and killed.restores and not any(one["in_loop_records"] for one in killed.restores):
            yield "no restored cut had records in a loop: the kills proved little"

    def _audited(self) -> tuple[str, list[str]]:
        verdict = self.trial.audit(os.path.join(self.folder, "killed-cuts"), "all")
        return verdict.outcome, [] if verdict.passed else verdict.lines()


# -- the command ---------------------------------------------------------------------------------------------------


def compare_module(options: argparse.Namespace) -> int:
    try:
        with cluster.left_as_found():
            facts = compare(
                options.module,
                kills=options.kills,
                seed=options.seed,
                size=options.size,
                parallelism=options.parallelism,
                rounds=options.rounds,
                every=options.every,
                plant_error=options.plant_error,
                key=key_from(options.key_file),
            )
    except (RunFailedError, TaskError) as failed:
        refuse("compare", failed)
        return WRONG
    print(json.dumps(facts, default=str) if options.json else "\n".join(lines(facts)), flush=True)
    return WRONG if facts["failures"] else DONE


def lines(facts: Facts) -> list[str]:
    """What a comparison found, for a person."""
    kills = f"{facts['kills_happened']} of {counted(facts['kills_planned'], 'kill')}"
    ran = f"{kills} happened, {counted(facts['restores'], 'restore')}"
    outcome = "equal" if facts["equal"] else f"{facts['differing']:,} of them differ"
    told = [
        f"{facts['module']}, size {facts['size']:,}: {counted(facts['rows'], 'row')}, {outcome}",
        f"  {ran}, which found {counted(facts['in_loop_records'], 'record')} in loops",
        f"  {facts['clean_seconds']:.1f} s clean, {facts['killed_seconds']:.1f} s with kills, of which recovery took "
        f"{facts['recovery_seconds']:.1f} s; Spark computed the reference in {facts['spark_seconds']:.1f} s",
        f"  the last cuts are {facts['audit']}",
    ]
    return told + [f"  WRONG: {failure}" for failure in facts["failures"]]
