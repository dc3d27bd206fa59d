"""Audits the cuts of a run while it goes on, in a process of its own with one session: what `run(audit=...)` starts.

On the standard input here the run writes the key of its snapshots, as hexadecimal digits in a line (which is empty if
there is none), and a line when it is over. The end of that input before all is done means that nobody waits any more,
and ends this process, with its Java. On the standard output here are JSON objects, a line each:

    {"epoch": 7, "consistent": true, "line": "..."}    a cut was audited
    {"skipped": 2, "from": 5, "to": 6}                 cuts were left out: a later one was there, or they were gone
    {"over": true}                                     all is audited that was to be
    {"error": "..."}                                   no audit is possible

A cut is held by links, or by a copy on another disk, before it is audited: retention may remove it meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TextIO

from pyspark.errors import PySparkException

from graphs.ids import Epoch
from recovery.orders import Manifest
from recovery.spark.audit.audit_job import audit
from recovery.spark.cut_tables.job_folder import JobFolder
from recovery.spark.sessions.spark_session import close_session, open_session, reason_of
from recovery.spark.spark_errors import SparkJobError, UnreadableError
from recovery.stores.names import CHAIN, JOB, PAST, Parts, attempt_folder, epoch_folder, graph_file

OVER = "over"
LOOK_S = 0.1


class Watch:
    """Looks at the folder of one job, at the cuts behind the epoch `since`."""

    def __init__(self, path: str, since: int, temporary: str, said: TextIO) -> None:
        self._path = path
        self._said = said
        self._over = Event()
        self._temporary = temporary
        self._held = tempfile.mkdtemp(dir=temporary)
        self._key: bytes | None = None
        self._seen = since
        self._is_each = False
        self._is_done = False
        self._audited: int | None = None
        self._session: Any = None

    def listen(self, told: TextIO) -> None:
        """Take the key, and hear from a thread of its own when the run is over, or gone."""
        self._key = bytes.fromhex(told.readline()) or None
        Thread(target=self._hear, args=(told,), name="run", daemon=True).start()

    def _hear(self, told: TextIO) -> None:
        for line in told:
            if line.strip() == OVER:
                self._over.set()
        if self._is_done:
            return
        shutil.rmtree(self._temporary, ignore_errors=True)
        if os.getpgrp() == os.getpid():
            # While it starts, Java does not notice by itself that nobody waits for it.
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def every_cut(self) -> None:
        """Audit cuts as they appear, the latest first when there are several, then the last one."""
        self._is_each = True
        self._spark()
        while not self._over.wait(LOOK_S):
            cuts = self._cuts()
            if cuts and cuts[-1] > self._seen:
                self._skip_before(cuts[-1])
                self._audit_held(cuts[-1])
        self.last_cut()

    def last_cut(self) -> None:
        """When the run is over, audit its last cut."""
        self._over.wait()
        cuts = self._cuts()
        if not cuts:
            raise UnreadableError(f"the run has left no complete cut in {self._path}: there is nothing to audit")
        if cuts[-1] != self._audited:
            self._skip_before(cuts[-1])
            self._audit(self._path, cuts[-1])
        self._is_done = True
        self._say({"over": True})

    def close(self) -> None:
        """End Spark, and leave nothing behind."""
        self._is_done = True
        if self._session is not None:
            close_session(self._session)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _cuts(self) -> list[int]:
        # The folder is not there before the run has begun.
        return JobFolder.open(self._path, self._key).cuts() if os.path.isfile(os.path.join(self._path, JOB)) else []

    def _audit_held(self, epoch: int) -> None:
        try:
            hold(self._path, self._held, epoch, self._key)
        except (UnreadableError, OSError):
            if epoch in self._cuts():
                raise
            self._skip([epoch])
            return
        self._audit(self._held, epoch)
        for other in set(JobFolder.open(self._held, self._key).cuts()) - {epoch}:
            shutil.rmtree(os.path.join(self._held, epoch_folder(Epoch(other))))

    def _audit(self, path: str, epoch: int) -> None:
        # The cut before is held, too: from one to the next nothing may go back.
        verdict = audit(self._spark(), JobFolder.open(path, self._key), [epoch])
        self._audited = epoch
        line = verdict.failures[0] if verdict.failures else verdict.lines()[-1].strip()
        self._say({"epoch": epoch, "consistent": verdict.consistent, "line": line})

    def _spark(self) -> Any:
        if self._session is None:
            self._session = open_session("backedge audit")
        return self._session

    def _skip_before(self, epoch: int) -> None:
        """The run goes faster than the audit: leave out what has come since, some of which is gone already."""
        entries = [link.entry for link in JobFolder.open(self._path, self._key).links()]
        complete = sorted({int(entry.epoch) for entry in entries if isinstance(entry, Manifest)})
        self._skip([other for other in complete if self._is_each and self._seen < other < epoch])
        self._seen = epoch

    def _skip(self, epochs: list[int]) -> None:
        if epochs:
            self._say({"skipped": len(epochs), "from": epochs[0], "to": epochs[-1]})

    def _say(self, fact: dict[str, Any]) -> None:
        print(json.dumps(fact), file=self._said, flush=True)


def hold(path: str, held: str, epoch: int, key: bytes | None = None) -> None:
    """Have what belongs to a cut of a job in another folder, too: by links where the disk is the same.

    `OSError` or `UnreadableError` if some of it has just been removed.
    """
    folder = JobFolder.open(path, key)
    attempts = {link.entry.attempt for link in folder.links()}
    document = folder.manifest(epoch)
    # What is past comes after the chain: it covers what is removed from the chain meanwhile.
    parts: list[Parts] = [(JOB,), (CHAIN,), (PAST,), graph_file(document["graph_hash"]), (epoch_folder(Epoch(epoch)),)]
    parts += [attempt_folder(attempt, None) for attempt in attempts]
    for names in parts:
        _link(os.path.join(path, *names), os.path.join(held, *names))


def _link(source: str, target: str) -> None:
    if os.path.isfile(target):
        return
    if os.path.isfile(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
        return
    with suppress(FileNotFoundError):
        for entry in os.scandir(source):
            _link(entry.path, os.path.join(target, entry.name))


def watch(path: str, mode: str, since: int, temporary: str, said: TextIO, told: TextIO) -> int:
    """Do what `mode` says: "every-cut" or "final". 0 when it could be done, whatever came of it.

    `temporary` is a folder for what Spark keeps meanwhile, too. It is removed.
    """
    tempfile.tempdir = temporary
    watched = Watch(path, since, temporary, said)
    watched.listen(told)
    try:
        if mode == "every-cut":
            watched.every_cut()
        else:
            watched.last_cut()
    except (SparkJobError, PySparkException, OSError) as error:
        print(json.dumps({"error": reason_of(error)}), file=said, flush=True)
        return 1
    finally:
        watched.close()
    return 0
