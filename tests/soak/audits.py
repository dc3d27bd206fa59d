"""Audits the cuts of a soak with one Spark: all that a life has left, and the newest of a run that goes on."""

from __future__ import annotations

import shutil
import tempfile
import time
from threading import Lock
from typing import Any

from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.audit.live_audit import hold_cut
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.spark_errors import UnreadableError
from tests.soak.report import Progress

RESTS = 1.5
"""After the audit of a living run, Spark rests for so many times as long: the runs need the processors."""

TRIES = 10
"""An object store may be away."""


class Audits:
    """Audits one job at a time."""

    def __init__(self, spark: Any, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress
        self._turn = Lock()
        self._next_s = 0.0

    def all_of(self, name: str, path: str) -> None:
        """All cuts that a job has left."""
        with self._turn:
            for left in reversed(range(TRIES)):
                try:
                    verdict = audit(self._spark, JobFolder.open(path), "all")
                    return self._note(name, path, verdict)
                except (UnreadableError, OSError) as error:
                    if not left:
                        self._progress.fail(f"{name}, audit", error, path)
                    time.sleep(1.0)

    def newest_of(self, name: str, path: str) -> None:
        """Unless Spark is busy: the newest cut of a living run, linked into another folder before it is removed."""
        if "://" in path or time.monotonic() < self._next_s or not self._turn.acquire(blocking=False):
            return
        held = tempfile.mkdtemp(prefix="held-", dir=self._progress.folder)
        began_s = time.monotonic()
        try:
            try:
                epoch = JobFolder.open(path).latest()
                hold_cut(path, held, epoch)
            except (UnreadableError, OSError):
                return  # there is none yet, or it was removed meanwhile
            if epoch not in JobFolder.open(held).cuts():
                return  # the chain was shortened meanwhile
            # The journal of answers stays where it is.
            self._note(name, held, audit(self._spark, JobFolder.open(held), [epoch], has_journal=False))
        except UnreadableError as error:
            self._progress.fail(f"{name}, audit", error, held)
        finally:
            shutil.rmtree(held, ignore_errors=True)
            self._next_s = time.monotonic() + RESTS * (time.monotonic() - began_s)
            self._turn.release()

    def _note(self, name: str, path: str, verdict: Any) -> None:
        self._progress.count("cuts audited", len(verdict.epochs))
        if not verdict.passed:
            self._progress.fail(f"{name}, audit", "; ".join(verdict.failures), path)
