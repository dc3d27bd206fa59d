"""Audits a run with Spark in a separate process: started before the run, notified of its end, ended with it.

The process is `python -m backedge.recovery.spark watch`. It only reads the folder of the job. When this process ends,
in whatever way, the pipe to the other one closes, which ends that process and its Java.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from backedge.engine.on_ray.run_options import Audit
from backedge.engine.on_ray.run_spec import RunFailedError
from backedge.graphs.public import public
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.stores.names import JOB

END_S = 10.0
_HOME = str(Path(__file__).absolute().parents[4])


@public
class AuditFailedError(RunFailedError):
    """A cut of the run is not consistent, or could not be audited; the message says what is wrong, and where.

    Fix: run `backedge audit` with `--page`, and keep the folder of the job: an inconsistent cut is a mistake in
    Backedge.
    """


class Auditor:
    """Audits the cuts of one job. The results are in `cuts` and `skipped`."""

    def __init__(self, root: str, job: str, mode: Audit, key: bytes | None) -> None:
        self.cuts = 0
        self.skipped = 0
        self.violation: str | None = None
        self._fault: str | None = None
        self._is_over = False
        self._facts: SimpleQueue[dict[str, Any]] = SimpleQueue()
        path = os.path.join(root, job)
        since = str(_latest(path, key))
        self._temporary = tempfile.mkdtemp(prefix="backedge-audit-")
        paths = [_HOME, *filter(None, [os.environ.get("PYTHONPATH")])]
        # PySpark may have noted a session in its environment that does not exist in the other process.
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
        self._process = subprocess.Popen(
            # -P: the user's working folder may contain modules of any name.
            [sys.executable, "-P", "-m", "backedge.recovery.spark", "watch", path, mode, since, self._temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C is meant for the run, which then ends the audit.
            start_new_session=True,
        )
        # Not on its command line, nor in its environment, which others may be able to read.
        self._tell((key or b"").hex())
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="audit", daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._facts.put(json.loads(line))
        self._facts.put({"ended": True})

    def news(self) -> list[str]:
        """New results, as lines for the user. Raises `AuditFailedError` if a cut is not consistent."""
        lines: list[str] = []
        while True:
            try:
                lines += self._take(self._facts.get_nowait())
            except Empty:
                return lines

    def finish(self) -> list[str]:
        """The run is over: wait until its last cut is audited. Also raises `AuditFailedError`."""
        lines: list[str] = []
        self._tell("over")
        while not self._is_over:
            lines += self._take(self._facts.get())
        if self._fault is not None:
            raise AuditFailedError(self._fault)
        return lines

    def summary(self) -> dict[str, Any]:
        """The outcome, and how many cuts were audited and skipped."""
        state = "not consistent" if self.violation is not None else "consistent" if self.cuts else "not audited"
        return {"state": state, "cuts": self.cuts, "skipped": self.skipped}

    def close(self) -> None:
        """End the process and its Java, whether or not it has finished."""
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):  # it has ended before it has read everything
                stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(END_S)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _tell(self, line: str) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):  # it has ended, and its earlier output says why
                stdin.write(f"{line}\n")
                stdin.flush()

    def _take(self, fact: dict[str, Any]) -> list[str]:
        match fact:
            case {"epoch": epoch, "consistent": True}:
                self.cuts += 1
                return [f"audit: cut {epoch} is consistent"]
            case {"epoch": _, "line": str(line)}:
                self.cuts += 1
                self.violation = line
                raise AuditFailedError(f"the audit found a cut that is not consistent: {line}")
            case {"skipped": count, "from": first, "to": last}:
                self.skipped += count
                return [f"audit: {count} cuts from {first} to {last} are left out, for the audit is behind"]
            case {"over": True}:
                self._is_over = True
                return []
            case _ if self._is_over:
                return []
            case _:
                # The run goes on, because nothing is known to be wrong with it, but it will not be called consistent.
                self._is_over = True
                self._fault = f"the audit could not be done: {fact.get('error', 'its process died')}"
                return [self._fault]


@contextmanager
def start_auditor(root: str | None, job: str, mode: Audit, key: bytes | None) -> Generator[Auditor | None]:
    """The requested audit; None if none was requested. It is ended if the start of the run fails."""
    auditor = None if root is None or mode == "never" else Auditor(root, job, mode, key)
    try:
        yield auditor
    except BaseException:
        if auditor is not None:
            auditor.close()
        raise


def _latest(path: str, key: bytes | None) -> int:
    """The last cut of an earlier run; cuts up to that one are not audited again."""
    return max(JobFolder.open(path, key).cuts(), default=0) if os.path.isfile(os.path.join(path, JOB)) else 0
