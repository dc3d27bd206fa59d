"""Commands that follow a run on a cluster: how they end, and what they report.

0: finished, and every planned fault happened. 1: the run failed, and the same command may get further: processes died
too often, the cluster was lost. 2: it could not start. 3: it failed, and would fail again: a function of the user's
raised, an audit found an inconsistent cut, another run has taken over the job. 130 and 143: interrupted by Ctrl-C or
SIGTERM; the run is cancelled, and its last cut stays. A detached run is not cancelled, it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from backedge.engine.batches.arrow import filesystems
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.detached_runs import NoSuchRunError, RunAliveError
from backedge.engine.on_ray.api.job_handle import Job, RunResult
from backedge.engine.on_ray.api.shared_paths import check_path
from backedge.engine.on_ray.planned_faults import KillSpecError
from backedge.engine.on_ray.run_spec import RequestFailedError, RunFailedError
from backedge.engine.on_ray.supervisor.audit_process import AuditFailedError
from backedge.engine.on_ray.supervisor.crew import NoRoomError
from backedge.flows import WrongCallError
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.task_errors import TaskError
from backedge.graphs.wording import counted
from backedge.printing import explained
from backedge.recovery.spark.spark_errors import SparkJobError
from backedge.recovery.stores.folder_store import local_path
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import scheme_of

DONE, FAILED, WRONG_CALL, FAILED_FOR_GOOD = 0, 1, 2, 3
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
REFUSED = (
    WrongCallError,
    GraphError,
    KillSpecError,
    NoSuchRunError,
    RunAliveError,
    TaskError,
    StoreError,
    SparkJobError,
    OSError,
)
"""What is raised before anything runs. A `ClusterError` is an `OSError`."""


class Termination:
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


class Following:
    """Follows one run to its end, from the command line.

    `error` is the failure of the run, if it has failed. `written`: where its sinks of files and tables write, if that
    is known.
    """

    def __init__(self, command: str, given: Namespace) -> None:
        self.command = command
        self.error: str | None = None
        self.written: Mapping[str, Mapping[str, str]] = {}
        self._given = given
        self._json_file: JsonFile | None = None
        self._was_connected = cluster.is_connected()
        self._termination = Termination()
        self._termination.watch()

    def obey(self, act: Callable[[], int]) -> int:
        """Do what the command is to do; return the exit code, also of what is refused."""
        try:
            self._json_file = None if self._given.json_out is None else JsonFile(self._given.json_out)
            return act()
        except REFUSED as refused:
            if self._termination.came:
                return TERMINATED  # in the middle of the user's code, which seems to have raised it
            return say(self.command, explained(refused), WRONG_CALL)
        except RequestFailedError as refused:
            return say(self.command, str(refused), WRONG_CALL if refused.is_for_good else FAILED)
        except KeyboardInterrupt:
            return INTERRUPTED
        except SystemExit:
            if self._termination.came or not self._termination.is_watching:
                return TERMINATED
            raise
        except (RunFailedError, cluster.RayError) as lost:
            return say(self.command, cluster.first_line(lost), FAILED)
        finally:
            if not self._was_connected:
                cluster.disconnect()
            self._termination.leave()

    def follow(self, job: Job, name: str, end: Callable[[], RunResult], on_cancelled: Callable[[], str] = str) -> int:
        """Wait for the end of a run and report its summary; returns the exit code.

        `end` waits, and may ask the run to end. `on_cancelled` says how to continue a run that Ctrl-C has cancelled.
        """
        # Connecting to Ray has installed Ray's own handler.
        self._termination.watch()
        try:
            code = self._wait(job, end)
        except (KeyboardInterrupt, SystemExit):
            if not job.is_detached:
                note(on_cancelled())
                self._report(job, name)
            raise
        self._report(job, name)
        return code

    def _wait(self, job: Job, end: Callable[[], RunResult]) -> int:
        try:
            result = end()
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
        return say(self.command, why, code)

    def _report(self, job: Job, name: str) -> None:
        summary = job.result.summary() if job.result is not None else _unknown(name)
        if self.error is not None:
            summary["error"] = self.error
        if summary["state"] in ("finished", "stopped"):
            summary |= self.written
        self.tell(summary, told(summary))

    def tell(self, document: dict[str, Any], text: str) -> None:
        """Print the result of the command as text or as JSON, and write it where it was asked for."""
        if self._json_file is not None:
            self._json_file.write(document)
        # The summary is the last line: what other processes have printed comes first.
        if not self._was_connected:
            cluster.disconnect()
        sys.stderr.flush()
        try:
            print(json.dumps(document) if self._given.json else text, flush=True)
        except BrokenPipeError:
            # Nobody reads it, as behind `| head -1`; the run has ended as it has. Python flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command(name: str) -> Callable[[Callable[[Following, Namespace], int]], Callable[[Namespace], int]]:
    """Make a command of a function that follows a run."""

    def made(act: Callable[[Following, Namespace], int]) -> Callable[[Namespace], int]:
        def obey(given: Namespace) -> int:
            following = Following(name, given)
            return following.obey(lambda: act(following, given))

        return obey

    return made


def _unknown(job: str) -> dict[str, Any]:
    figures = ("records", "hops", "snapshots", "snapshots_with_log", "seconds", "starting_seconds", "kills", "restores")
    lists: dict[str, Any] = {"faults": [], "missed_faults": [], "restored": [], "outputs": {}, "audit": None}
    return {"job": job, "state": "lost", **dict.fromkeys(figures, 0), "last_epoch": None, **lists}


def note(line: str) -> None:
    """Tell the user something about the command, on standard error."""
    print(f"backedge: {line}", file=sys.stderr, flush=True)


def say(command: str, line: str, code: int) -> int:
    """Tell the user why a command ends; returns the exit code."""
    print(f"backedge {command}: {line}", file=sys.stderr, flush=True)
    return code


# -- the summary ---------------------------------------------------------------------------------------------------


class JsonFile:
    """A file for one JSON document, at a path or a URI. Raises at once if it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = JsonFile(f"{folder}/results/run.json")
    ...     file.write({"state": "finished"})
    ...     Path(folder, "results", "run.json").read_text()
    '{"state": "finished"}\\n'
    """

    def __init__(self, given: str) -> None:
        check_path("--json-out", given, " or s3://BUCKET/")
        self._given = given
        self._path: Path | None = None
        if scheme_of(given) == "file":
            self._path = Path(local_path(given))
        try:
            if self._path is None:
                self._filesystem, self._remote = filesystems().FileSystem.from_uri(given)
            elif self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a folder")
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._temporary.touch()
                self._temporary.unlink()
        except (OSError, ValueError, NotImplementedError) as error:
            raise WrongCallError(f"--json-out {given} cannot be written ({error}): give another path") from error

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file by this document, atomically where the place allows it."""
        data = (json.dumps(document) + "\n").encode()
        if self._path is None:
            with self._filesystem.open_output_stream(self._remote) as stream:
                stream.write(data)
            return
        self._temporary.write_bytes(data)
        os.replace(self._temporary, self._path)

    @property
    def _temporary(self) -> Path:
        path = self._path or Path(self._given)
        return path.with_name(f".{path.name}.{os.getpid()}")


def told(summary: dict[str, Any]) -> str:
    """A summary in a few lines.

    >>> print(told({"job": "rank", "state": "finished", "seconds": 2.5, "records": 1200, "hops": 900, "snapshots": 3,
    ...     "snapshots_with_log": 1, "kills": 1, "restores": 2, "missed_faults": [], "outputs": {"done": 400},
    ...     "files": {"ranks": "/out/ranks"}, "tables": {"booked": "'bookings' of /out/shop.db"}}))
    rank: finished in 2.5 s; 1,200 records, 900 hops; 3 cuts, 1 with records in loops; 1 kill, 2 restores
      done: 400 records
      ranks: files in /out/ranks
      booked: rows of table 'bookings' of /out/shop.db
    """
    how = f"{summary['job']}: {summary['state']} in {summary['seconds']:.1f} s"
    worked = f"{counted(summary['records'], 'record')}, {counted(summary['hops'], 'hop')}"
    cuts = f"{counted(summary['snapshots'], 'cut')}, {summary['snapshots_with_log']} with records in loops"
    faults = f"{counted(summary['kills'], 'kill')}, {counted(summary['restores'], 'restore')}"
    audit = f"; audit: {summary['audit']['state']}" if summary.get("audit") else ""
    lines = [f"{how}; {worked}; {cuts}; {faults}{audit}"]
    lines += [
        f"  rescaled at epoch {rescale['epoch']} in {rescale['gap_ms']} ms" for rescale in summary.get("rescales", [])
    ]
    lines += [f"  {sink}: {counted(count, 'record')}" for sink, count in summary["outputs"].items()]
    lines += [f"  {sink}: files in {place}" for sink, place in summary.get("files", {}).items()]
    lines += [f"  {sink}: rows of table {title}" for sink, title in summary.get("tables", {}).items()]
    return "\n".join(lines)
