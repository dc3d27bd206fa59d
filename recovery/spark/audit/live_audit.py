"""Audits the cuts of a run while it is running, in a separate process with one session: what `run(audit=...)` starts.

The run writes to this process's stdin: first the snapshot key in hexadecimal, or an empty line; then a line when the
run is over. If stdin closes earlier, the run is gone, and this process ends together with its Java process. This
process writes JSON objects to stdout, one per line:

    {"epoch": 7, "consistent": true, "line": "..."}    a cut was audited
    {"skipped": 2, "from": 5, "to": 6}                 cuts were skipped: a later one was complete, or they were removed
    {"over": true}                                     the audit is finished
    {"error": "..."}                                   the audit failed

Before a cut is audited it is hard-linked (or copied, on another disk), because retention may remove it meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TextIO

from pyspark.errors import PySparkException

from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import files_in
from backedge.recovery.spark.sessions.spark_session import close_session, open_session, reason_of
from backedge.recovery.spark.spark_errors import SparkJobError, UnreadableError
from backedge.recovery.stores.names import CHAIN, JOB, PAST, graph_file, path_of

OVER = "over"
LOOK_S = 0.1


class Watch:
    """Audits the cuts of one job that are later than epoch `since`."""

    def __init__(self, path: str, since: int, temporary: str, reports: TextIO) -> None:
        self._path = path
        self._said = reports
        self._over = Event()
        self._temporary = temporary
        self._held = tempfile.mkdtemp(dir=temporary)
        self._key: bytes | None = None
        self._since = since
        self._seen: dict[str | None, int] = {}
        self._is_each = False
        self._is_done = False
        self._audited: set[int] = set()
        # Pipeline -> the files of its last cut that was held, with which the next one is compared.
        self._named: dict[str | None, frozenset[str]] = {}
        self._session: Any = None

    def listen(self, commands: TextIO) -> None:
        """Read the key, then wait in a separate thread for the run to end or to disappear."""
        self._key = bytes.fromhex(commands.readline()) or None
        Thread(target=self._hear, args=(commands,), name="run", daemon=True).start()

    def _hear(self, commands: TextIO) -> None:
        for line in commands:
            if line.strip() == OVER:
                self._over.set()
        if self._is_done:
            return
        shutil.rmtree(self._temporary, ignore_errors=True)
        if os.getpgrp() == os.getpid():
            # A Java process that is still starting does not notice that its parent is gone.
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def every_cut(self) -> None:
        """Audit cuts as they appear, skipping to the latest if there are several; finally audit the last cut."""
        self._is_each = True
        self._spark()
        while not self._over.wait(LOOK_S):
            for pipeline, epoch in self._last_cuts().items():
                if epoch > self._seen_of(pipeline):
                    self._skip_before(pipeline, epoch)
                    self._audit_held(pipeline, epoch)
        self.last_cut()

    def last_cut(self) -> None:
        """Wait for the run to end, then audit its last cut, or that of each pipeline."""
        self._over.wait()
        last = self._last_cuts()
        if not last:
            raise UnreadableError(f"the run completed no cut in {self._path}, so there is nothing to audit")
        for pipeline, epoch in last.items():
            if epoch not in self._audited:
                self._skip_before(pipeline, epoch)
                self._audit(self._path, epoch)
        self._is_done = True
        self._report({"over": True})

    def close(self) -> None:
        """Stop Spark and remove temporary files."""
        self._is_done = True
        if self._session is not None:
            close_session(self._session)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _last_cuts(self) -> dict[str | None, int]:
        # The run may not have created its folder yet.
        has_begun = os.path.isfile(os.path.join(self._path, JOB))
        return JobFolder.open(self._path, self._key).last_cuts() if has_begun else {}

    def _seen_of(self, pipeline: str | None) -> int:
        """The last cut of a pipeline that was audited or skipped."""
        return self._seen.get(pipeline, self._since)

    def _audit_held(self, pipeline: str | None, epoch: int) -> None:
        try:
            named = hold_cut(self._path, self._held, epoch, self._key)
        except (UnreadableError, OSError):
            if epoch in JobFolder.open(self._path, self._key).cuts():
                raise
            self._skip([epoch])
            return
        self._audit(self._held, epoch)
        before = self._named.get(pipeline, frozenset())
        self._named[pipeline] = named
        for name in before.difference(*self._named.values()):
            os.remove(os.path.join(self._held, name))

    def _audit(self, path: str, epoch: int) -> None:
        # The previous cut is held as well: statement 8 compares with it. The journal is not.
        has_journal = path == self._path
        verdict = audit(self._spark(), JobFolder.open(path, self._key), [epoch], has_journal=has_journal)
        self._audited.add(epoch)
        line = verdict.failures[0] if verdict.failures else verdict.lines()[-1].strip()
        self._report({"epoch": epoch, "consistent": verdict.consistent, "line": line})

    def _spark(self) -> Any:
        if self._session is None:
            self._session = open_session("backedge audit")
        return self._session

    def _skip_before(self, pipeline: str | None, epoch: int) -> None:
        """Skip the cuts before `epoch`: the run is faster than the audit, and some are removed already."""
        entries = [link.entry for link in JobFolder.open(self._path, self._key).links()]
        of_pipeline = (entry for entry in entries if isinstance(entry, Manifest) and entry.pipeline == pipeline)
        complete = sorted({int(entry.epoch) for entry in of_pipeline})
        self._skip([other for other in complete if self._is_each and self._seen_of(pipeline) < other < epoch])
        self._seen[pipeline] = epoch

    def _skip(self, epochs: list[int]) -> None:
        if epochs:
            self._report({"skipped": len(epochs), "from": epochs[0], "to": epochs[-1]})

    def _report(self, fact: dict[str, Any]) -> None:
        print(json.dumps(fact), file=self._said, flush=True)


def hold_cut(path: str, held: str, epoch: int, key: bytes | None = None) -> frozenset[str]:
    """Link everything that belongs to a cut into another folder, or copy it if that is on another disk.

    Returns the names of its manifest and of all files that this names, also of earlier cuts. Raises `OSError` or
    `UnreadableError` if part of the cut has just been removed.
    """
    folder = JobFolder.open(path, key)
    document = folder.manifest(epoch)
    links = (link for link in folder.links() if isinstance(link.entry, Manifest) and link.entry.epoch == epoch)
    manifests = {link.manifest.name for link in links if link.manifest is not None}
    named = manifests.union(file["name"] for file in files_in(document))
    with suppress(FileNotFoundError):
        _link(path, held, path_of(graph_file(document["graph_hash"])))
    for name in (JOB, *named):
        _link(path, held, name)
    while not _hold_chain(path, held):
        continue
    return frozenset(named)


def _hold_chain(path: str, held: str) -> bool:
    """Link the chain as it is now, and nothing else of it. False if it was shortened meanwhile."""
    # PAST after CHAIN: it covers entries that are removed from the chain between the two.
    names = [*_below(path, CHAIN), *_below(path, PAST)]
    try:
        for name in names:
            _link(path, held, name)
    except FileNotFoundError:
        return False
    for name in {*_below(held, CHAIN), *_below(held, PAST)}.difference(names):
        os.remove(os.path.join(held, name))
    return True


def _below(path: str, folder: str) -> Iterator[str]:
    """The files of a folder of the job, which may not exist; those that are being written are left out."""
    with suppress(FileNotFoundError):
        names = os.listdir(os.path.join(path, folder))
        yield from (f"{folder}/{name}" for name in names if not name.startswith("."))


def _link(path: str, held: str, name: str) -> None:
    source, target = os.path.join(path, name), os.path.join(held, name)
    if os.path.isfile(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def watch(path: str, mode: str, since: int, temporary: str, reports: TextIO, commands: TextIO) -> int:
    """Audit each cut (`mode` "every-cut") or only the last ("final"). Returns 0 if the audit ran, whatever it found.

    `temporary` also holds Spark's temporary files, and is removed.
    """
    tempfile.tempdir = temporary
    watched = Watch(path, since, temporary, reports)
    watched.listen(commands)
    try:
        if mode == "every-cut":
            watched.every_cut()
        else:
            watched.last_cut()
    except (SparkJobError, PySparkException, OSError) as error:
        print(json.dumps({"error": reason_of(error)}), file=reports, flush=True)
        return 1
    finally:
        watched.close()
    return 0
