"""`backedge logs`: what the functions of a job have printed and logged, each line with its operators and task.

0: done. 2: the cluster knows nothing of the job or of the operator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.living_runs import living_runs
from backedge.engine.on_ray.worker_logs import WorkerLogs
from backedge.flows import WrongCallError
from backedge.graphs.naming import check_name
from backedge.graphs.wording import printable
from backedge.printing import refuse

DONE = 0
LOOK_S = 0.5


@cluster.left_as_found()
def show_logs(options: argparse.Namespace) -> int:
    """Print the lines; with --follow, also those that come until the run has ended."""
    try:
        job = check_name(options.job, "job")
        cluster.connect(must_exist=True)
        print_logs(WorkerLogs(job), job, options.operator, until=_end_of(job) if options.follow else None)
    except cluster.RayError as refused:
        return refuse("logs", refused)
    return DONE


def print_logs(logs: WorkerLogs, job: str, operator: str | None, until: Callable[[], bool] | None) -> None:
    """Print what there is, and what comes `until` the run is over. Raises `WrongCallError` if there is nothing."""
    is_over, operators = until is None, set[str]()
    while True:
        for line in logs.new_lines():
            operators.update(line.operators)
            if operator is None or operator in line.operators:
                print(printable(f"[{line.task}] {line.text.expandtabs()}"), flush=True)
        if until is None or is_over:
            break
        # Lines that were printed before the run was over are read once more.
        is_over = until()
        time.sleep(LOOK_S)
    if not logs.is_known:
        raise WrongCallError(
            f"this cluster has no output of job {job!r}: Ray keeps it until the cluster ends; if the run is on another "
            "cluster, name that in RAY_ADDRESS"
        )
    if operator is not None and operator not in operators:
        printed = ", ".join(sorted(operators)) or "none"
        raise WrongCallError(f"operator {operator!r} has printed nothing; those that have: {printed}")


def _end_of(job: str) -> Callable[[], bool]:
    def is_over() -> bool:
        return all(status.job != job for status in living_runs())

    return is_over
