"""One run of a case, with what Spark says of it: what the examples do when they are called by name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from backedge.cases import case_of
from backedge.flows import WrongCallError
from backedge.trials import Trial
from engine.on_ray.job import RunResult


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a run, its records, and a line for each thing that is wrong with them."""

    result: RunResult
    rows: list[dict[str, Any]]
    spark_seconds: float
    failures: list[str]

    def summary(self) -> dict[str, Any]:
        """All but the records, as JSON takes it."""
        found = {"rows": len(self.rows), "equal": not self.failures, "failures": self.failures}
        return {**self.result.summary(), **found, "spark_seconds": round(self.spark_seconds, 3)}


def run_checked(
    module: ModuleType | str,
    *,
    size: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    snapshots: str | None = None,
    resume: Any = "never",
    kills: Sequence[str] = (),
    **options: Any,
) -> Checked:
    """Have Spark prepare a module's input, run its flow on Ray, and have Spark compare: see `backedge.cases`.

    Takes the `options` of `run`, too. Input, output and cuts are in a temporary folder unless `snapshots` names one.
    """
    folder = tempfile.mkdtemp(prefix="backedge-") if snapshots is None else os.path.abspath(snapshots)
    is_prepared = os.path.isdir(os.path.join(folder, "inputs"))
    if is_prepared and resume == "never":
        raise WrongCallError(f"{folder} holds a run already: resume the run, or give another folder")
    try:
        trial = Trial(case_of(module), folder, size=size, rounds=rounds, seed=seed)
        with trial.session():
            if not is_prepared:
                trial.prepare()
            result = trial.run("output", snapshots=folder, resume=resume, kills=kills, seed=seed, **options)
            reference, spark_seconds = trial.reference()
            found = trial.found("output", result, reference)
            failures = trial.judge(found, reference).failures("the run and the reference")
            failures += [f"the planned kill {fault} did not happen" for fault in result.missed_faults]
            rows = [row.asDict(recursive=True) for row in found.collect()]
            return Checked(result, rows, spark_seconds, failures)
    finally:
        if snapshots is None:
            shutil.rmtree(folder, ignore_errors=True)
