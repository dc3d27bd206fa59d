"""`backedge run`: one run, from the words on the command line to an exit code (`following.py`)."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import replace

from backedge.engine.io.files.file_formats import FileSink
from backedge.engine.io.marked_output import MarkedSink
from backedge.engine.on_ray.api.cut_lookup import find_cut
from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.api.launch_checks import RunExistsError
from backedge.engine.on_ray.api.shared_paths import check_path
from backedge.engine.on_ray.api.starting import start_run
from backedge.engine.on_ray.planned_faults import Faults
from backedge.flows import WrongCallError, flow_at, settings_in
from backedge.following import WRONG_CALL, Following, command, note, say
from backedge.graphs.flow import Flow
from backedge.run_flags import options_from
from backedge.ui_command import page_beside_run


@command("run")
def run_flow(following: Following, given: argparse.Namespace) -> int:
    """Run the flow that the command line names; returns the exit code."""
    if given.control and not given.ui:
        raise WrongCallError("--control: it adds buttons to the live page, so give --ui as well")
    faults = Faults(given.kills)
    options = options_from(given)
    flow = flow_at(given.flow, settings_in(given.settings))
    if given.snapshots is not None:
        check_path("--snapshots", given.snapshots)
        if isinstance(options.resume, int):
            find_cut(given.snapshots, flow.name, options.resume, options.key)
    folder, temporary = options.snapshots, None
    if folder is None and (faults.kills or options.audit != "never"):
        if options.detached:
            raise WrongCallError("--detached: name the folder of the cuts with --snapshots, which a kill needs")
        # A kill is planned to see the recovery, and any folder serves that purpose.
        folder = temporary = tempfile.mkdtemp(prefix="backedge-")
    # A key from the environment is not for a run that keeps no cuts.
    key = None if folder is None else options.key
    try:
        job = start_run(flow, replace(options, snapshots=folder, key=key), faults)
    except RunExistsError as refused:
        _remove(temporary)
        fix = "continue it with --resume latest, give another folder, or remove it"
        return say("run", f"{refused.fact}: {fix}", WRONG_CALL)
    except BaseException:
        _remove(temporary)
        raise
    if temporary is not None:
        note(f"no --snapshots: cuts are kept in {folder} until the run has finished")
    following.written = _written_of(flow)
    snapshots = None if folder is None else os.fspath(folder)
    with page_beside_run(snapshots, key, is_wanted=given.ui, has_control=given.control):
        code = following.follow(job, flow.name, job.wait, lambda: after_interruption(job.result, folder))
    if job.result is not None and job.result.state == "finished":
        _remove(temporary)
    return code


def _written_of(flow: Flow) -> dict[str, dict[str, str]]:
    """The places of its sinks of files and of tables, by the names of the sinks."""
    operators = flow.plan().operators.values()
    sinks = {operator.name: operator.function.absolute() for operator in operators if operator.kind.is_sink}
    return {
        "files": {name: sink.path for name, sink in sinks.items() if isinstance(sink, FileSink)},
        "tables": {name: sink.title for name, sink in sinks.items() if isinstance(sink, MarkedSink)},
    }


def _remove(temporary: str | None) -> None:
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def after_interruption(result: RunResult | None, folder: object) -> str:
    """What became of a run that was interrupted, and how to continue it. `result` is None if it is not known."""
    if folder is None:
        return "cancelled; without --snapshots there is no cut to continue from"
    if result is not None and result.state == "finished":
        return "interrupted while its last cut was audited; the run itself has finished"
    again = f"run it again with --snapshots {folder} --resume latest"
    if result is None:
        return f"cancelled; to continue from its last cut, or begin again if it has none, {again}"
    restored = [restore["epoch"] for restore in result.restores if restore["epoch"] is not None]
    epoch = result.last_epoch or max(restored, default=None)
    if epoch is None:
        return f"cancelled before a cut was complete; to begin again, or continue from a cut of an earlier run, {again}"
    return f"cancelled; its last cut, {epoch}, is in {folder}: to continue, {again}"
