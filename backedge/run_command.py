"""`backedge run`: one run, from the words on the command line to an exit code.

0: finished, and every planned fault happened. 1: the run failed, and the same command may get further: processes died
too often, the cluster was lost. 2: it could not start. 3: it failed, and would fail again: a function of the user's
raised, an audit found an inconsistent cut, another run has taken over the job. 130 and 143: interrupted by Ctrl-C or
SIGTERM; the run is cancelled, and its last cut stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from types import FrameType
from typing import Any

from backedge.flows import WrongCallError, flow_at, settings_in
from backedge.run_flags import options_from
from backedge.summaries import JsonFile, told
from engine.on_ray import cluster
from engine.on_ray.api.cut_lookup import find_cut
from engine.on_ray.api.job_handle import Job
from engine.on_ray.api.launch_checks import RunExistsError
from engine.on_ray.api.shared_paths import check_path
from engine.on_ray.api.starting import start_run
from engine.on_ray.planned_faults import Faults, KillSpecError
from engine.on_ray.run_spec import RunFailedError
from engine.on_ray.supervisor.audit_process import AuditFailedError
from engine.on_ray.supervisor.crew import NoRoomError
from engine.task_errors import TaskError
from graphs.flow import Flow
from graphs.graph_errors import GraphError
from recovery.spark.spark_errors import SparkJobError
from recovery.stores.store_errors import StoreError

DONE, FAILED, WRONG_CALL, FAILED_FOR_GOOD = 0, 1, 2, 3
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
REFUSED = (WrongCallError, GraphError, KillSpecError, RunExistsError, TaskError, StoreError, SparkJobError, OSError)
"""What is raised before anything runs. A `ClusterError` is an `OSError`."""


def run_flow(given: argparse.Namespace) -> int:
    """Run the flow that the command line names; returns the exit code."""
    was_connected = cluster.is_connected()
    termination = _Termination()
    termination.watch()
    try:
        return _Run(given, was_connected, termination).go()
    except RunExistsError as refused:
        return _say(f"{refused.fact}: continue it with --resume latest, give another folder, or remove it", WRONG_CALL)
    except REFUSED as refused:
        return _say(" ".join(str(refused).split("\n")), WRONG_CALL)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:
        if termination.came or not termination.is_watching:
            return TERMINATED
        raise
    finally:
        if not was_connected:
            cluster.disconnect()
        termination.leave()


class _Run:
    def __init__(self, given: argparse.Namespace, was_connected: bool, termination: _Termination) -> None:
        self.is_json: bool = given.json
        self.termination = termination
        self.was_connected = was_connected
        self.faults = Faults(given.kills)
        self.options = options_from(given)
        self.flow: Flow = flow_at(given.flow, settings_in(given.settings))
        self.json_file = None if given.json_out is None else JsonFile(given.json_out)
        if given.snapshots is not None:
            check_path("--snapshots", given.snapshots)
            if isinstance(self.options.resume, int):
                root = given.snapshots.removeprefix("file://")
                find_cut(root, self.flow.name, self.options.resume, self.options.key)
        self.temporary: str | None = None
        self.error: str | None = None

    def go(self) -> int:
        options, folder = self.options, self.options.snapshots
        if folder is None and (self.faults.kills or options.audit != "never"):
            # A kill is planned to see the recovery, and any folder serves that purpose.
            folder = self.temporary = tempfile.mkdtemp(prefix="backedge-")
        # A key from the environment is not for a run that keeps no cuts.
        key = None if folder is None else options.key
        try:
            job = start_run(self.flow, replace(options, snapshots=folder, key=key), self.faults)
        except BaseException:
            self._remove_temporary()
            raise
        # Connecting to Ray has installed Ray's own handler.
        self.termination.watch()
        if self.temporary is not None:
            _note(f"no --snapshots: cuts are kept in {folder} until the run has finished")
        try:
            code = self._wait(job)
        except (KeyboardInterrupt, SystemExit):
            _note(_after_interruption(job, folder))
            self._report(job)
            raise
        if job.result is not None and job.result.state == "finished":
            self._remove_temporary()
        self._report(job)
        return code

    def _wait(self, job: Job) -> int:
        try:
            result = job.wait()
        except RunFailedError as error:
            return self._failed(str(error), FAILED_FOR_GOOD if isinstance(error, AuditFailedError) else FAILED)
        except Exception as error:
            if job.result is None:
                raise
            is_transient = isinstance(error, OSError | NoRoomError)
            return self._failed(f"{type(error).__name__}: {error}", FAILED if is_transient else FAILED_FOR_GOOD)
        if result.missed_faults:
            missed = ", ".join(result.missed_faults)
            return self._failed(f"the run was over before these planned faults happened: {missed}")
        return DONE

    def _failed(self, why: str, code: int = FAILED) -> int:
        self.error = why
        return _say(why, code)

    def _report(self, job: Job) -> None:
        summary = job.result.summary() if job.result is not None else _unknown(self.flow.name)
        if self.error is not None:
            summary["error"] = self.error
        if self.json_file is not None:
            self.json_file.write(summary)
        # The summary is the last line: what other processes have printed comes first.
        if not self.was_connected:
            cluster.disconnect()
        sys.stderr.flush()
        print(json.dumps(summary) if self.is_json else told(summary), flush=True)

    def _remove_temporary(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def _unknown(job: str) -> dict[str, Any]:
    figures = ("records", "hops", "snapshots", "snapshots_with_log", "seconds", "starting_seconds", "kills", "restores")
    lists: dict[str, Any] = {"faults": [], "missed_faults": [], "restored": [], "outputs": {}, "audit": None}
    return {"job": job, "state": "lost", **dict.fromkeys(figures, 0), "last_epoch": None, **lists}


def _after_interruption(job: Job, folder: object) -> str:
    if folder is None:
        return "cancelled; without --snapshots there is no cut to continue from"
    if job.result is not None and job.result.state == "finished":
        return "interrupted while its last cut was audited; the run itself has finished"
    epoch = None if job.result is None else job.result.last_epoch
    last = "its cuts are" if epoch is None else f"its last cut, {epoch}, is"
    return f"cancelled; {last} in {folder}: to continue, run it again with --snapshots {folder} --resume latest"


def _note(line: str) -> None:
    print(f"backedge: {line}", file=sys.stderr, flush=True)


def _say(line: str, code: int) -> int:
    print(f"backedge run: {line}", file=sys.stderr, flush=True)
    return code


class _Termination:
    """SIGTERM unwinds the stack as Ctrl-C does. `came`: it was received, even if Ray changes the exit on its way."""

    def __init__(self) -> None:
        self.came = False
        self._before = signal.getsignal(signal.SIGTERM)

    @property
    def is_watching(self) -> bool:
        """False while Ray starts: then Ray handles SIGTERM itself, and exits."""
        return signal.getsignal(signal.SIGTERM) == self._terminate

    def watch(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._terminate)

    def leave(self) -> None:
        """Restore the previous handler."""
        signal.signal(signal.SIGTERM, self._before)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise SystemExit(TERMINATED)
