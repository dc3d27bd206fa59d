"""Runs in which something goes wrong on purpose, for tests and demonstrations: processes are killed, rules are broken.

    from backedge import RunOptions
    from backedge.faults import Faults, run_with_faults

    result = run_with_faults(flow, Faults(kills=["head@epoch=3"]), RunOptions(snapshots="cuts"))
    assert result.missed_faults == ()

`engine/on_ray/planned_faults.py` says which kills can be planned. On the command line they are `--kill`.
"""

from __future__ import annotations

from backedge.engine.on_ray.api.job_handle import Job, RunResult
from backedge.engine.on_ray.api.starting import start_run
from backedge.engine.on_ray.planned_faults import NO_FAULTS, Faults, KillSpecError
from backedge.engine.on_ray.run_options import RunOptions
from backedge.graphs.flow import Flow

__all__ = ["NO_FAULTS", "Faults", "KillSpecError", "run_with_faults", "start_with_faults"]

DEFAULT = RunOptions()


def start_with_faults(flow: Flow, faults: Faults, options: RunOptions = DEFAULT) -> Job:
    """Start a flow, as `start` does, with these faults planned."""
    return start_run(flow, options, faults)


def run_with_faults(flow: Flow, faults: Faults, options: RunOptions = DEFAULT) -> RunResult:
    """Run a flow to its end, as `run` does, with these faults planned; the result names those that did not happen."""
    return start_run(flow, options, faults).wait()
