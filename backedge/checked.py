"""One run of a case, checked by Spark: what an example does when it is called by name."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from backedge.cases import case_of
from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.api.launch_checks import storage_location
from backedge.engine.on_ray.api.shared_paths import check_path
from backedge.engine.on_ray.planned_faults import NO_FAULTS, Faults, check_kills
from backedge.engine.on_ray.run_options import RunOptions
from backedge.flows import WrongCallError
from backedge.graphs.expansion import expand
from backedge.graphs.public import public
from backedge.recovery.spark.report.verdict import Verdict
from backedge.recovery.stores.store_schemes import scheme_of
from backedge.trials import Judged, Trial

DEFAULT = RunOptions()


@public
@dataclass(frozen=True, slots=True)
class Checked:
    """A run, its records, how they differ from the reference, and the verdict of an audit."""

    result: RunResult
    rows: list[dict[str, Any]]
    judged: Judged
    verdict: Verdict | None
    spark_seconds: float

    @property
    def failures(self) -> list[str]:
        """A line for each thing that is wrong."""
        lines = self.judged.failures("the run and the reference")
        lines += [f"the planned kill {fault} did not happen" for fault in self.result.missed_faults]
        wrong = [] if self.verdict is None else self.verdict.failures
        return lines + [f"the audit: {line}" for line in wrong]

    @property
    def audit(self) -> str | None:
        if self.verdict is not None:
            return self.verdict.outcome
        return None if self.result.audit is None else self.result.audit["state"]

    def summary(self) -> dict[str, Any]:
        """Everything except the records, ready for JSON."""
        found = {"rows": len(self.rows), "differing": self.judged.differing, "audit": self.audit}
        spark = {"spark_seconds": round(self.spark_seconds, 3), "failures": self.failures}
        return {**self.result.summary(), **found, **spark}


@public
def run_checked(
    module: ModuleType | str,
    options: RunOptions = DEFAULT,
    *,
    faults: Faults = NO_FAULTS,
    size: int | None = None,
    rounds: int | None = None,
) -> Checked:
    """Have Spark prepare a module's input, run its flow on Ray, and have Spark compare: see `backedge.cases`.

    `RunOptions(audit="final")` has Spark audit the last cut as well, with the invariants of the module. Input, output
    and cuts are in a temporary folder unless `snapshots` names one; file:///FOLDER says that all hosts of the cluster
    have mounted it.
    """
    if options.detached:
        raise WrongCallError(
            "the process that starts a checked run also compares it: leave out detached, or --detached"
        )
    snapshots = None if options.snapshots is None else os.fspath(options.snapshots)
    if snapshots is not None:
        check_path("--snapshots", snapshots)
        if scheme_of(snapshots) != "file":
            raise WrongCallError(
                f"--snapshots {snapshots} is not a local folder, and input and output of the case go there, too: give "
                "a folder, or run the flow with `backedge run`"
            )
    folder = tempfile.mkdtemp(prefix="backedge-") if snapshots is None else storage_location(snapshots, hosts=1)
    # The last cut is audited in the session that is there anyway; only cuts that appear meanwhile need another.
    meanwhile = options.audit if options.audit == "every-cut" else "never"
    try:
        trial = Trial(case_of(module), folder, size=size, rounds=rounds, options=options)
        check_kills(faults.planned, expand(trial.flow("output").plan(), options.parallelism))
        _check_folder(folder, trial.is_prepared, options.resume)
        with trial.session():
            if not trial.is_prepared:
                trial.prepare()
            result = trial.run("output", faults, snapshots=_for_the_run(snapshots, folder), audit=meanwhile)
            reference, spark_seconds = trial.reference()
            found = trial.found("output", result, reference)
            rows = [row.asDict(recursive=True) for row in found.collect()]
            judged = trial.judge(found, reference)
            verdict = trial.audit(folder, "latest") if options.audit == "final" else None
            return Checked(result, rows, judged, verdict, spark_seconds)
    finally:
        if snapshots is None:
            shutil.rmtree(folder, ignore_errors=True)


def _for_the_run(given: str | None, folder: str) -> str:
    """The folder as the run gets it: a URI if a URI was given, which confirms that all hosts have mounted it.

    >>> _for_the_run("file:///data/a%23b", "/data/a#b"), _for_the_run("cuts", "/data/cuts")
    ('file:///data/a%23b', '/data/cuts')
    """
    return Path(folder).as_uri() if (given or "").startswith("file:///") else folder


def _check_folder(folder: str, holds_a_run: bool, resume: Any) -> None:
    """Refuse a wrong call before Spark is started, which takes seconds."""
    if holds_a_run and resume == "never":
        raise WrongCallError(
            f"{folder} holds a run already: continue it with --resume latest, give another folder, or remove it"
        )
    if isinstance(resume, int) and not holds_a_run:
        raise WrongCallError(f"{folder} holds no run, and so no cut {resume}: give the folder of the run to continue")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise WrongCallError(
            f"{folder} cannot be made ({error.strerror}): give another folder for --snapshots"
        ) from error
