"""Writes the answers of an actor's calls to the journal, many at once, in a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from backedge.engine.operators.runtime import KeptAnswer
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.answers import Known
from backedge.recovery.stores.answer_journal import AnswerJournal
from backedge.recovery.stores.store_errors import StoreError

GATHER_S = 0.01
"""How long answers wait for others, which are written with them."""

RETRY_S = 1.0


class Kept(NamedTuple):
    """The journal has answers of a task."""

    task: TaskId
    answers: Sequence[KeptAnswer]


class JournalWriter:
    """The journal as one attempt writes it. `journal` is None for a run that keeps no snapshots, nor answers."""

    def __init__(self, journal: AnswerJournal | None, attempt: Attempt, tell: Callable[[Kept], None]) -> None:
        self._journal = journal
        self._attempt = attempt
        self._tell = tell
        self._lock = threading.Lock()
        self._unwritten: list[Kept] = []
        self._is_due = False
        self._is_closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, "answers")

    def keep(self, kept: Kept) -> None:
        """Write answers with those of the next moment."""
        if self._journal is None:
            self._tell(kept)
            return
        with self._lock:
            self._unwritten.append(kept)
            is_due, self._is_due = self._is_due, True
        if not is_due:
            self._thread.submit(self._write, self._journal)

    def _write(self, journal: AnswerJournal) -> None:
        self._is_closed.wait(GATHER_S)
        with self._lock:
            group, self._unwritten, self._is_due = self._unwritten, [], False
        while not self._try(journal, group):
            if self._is_closed.wait(RETRY_S):
                return
        for kept in group:
            self._tell(kept)

    def _try(self, journal: AnswerJournal, group: Sequence[Kept]) -> bool:
        files: dict[tuple[Epoch, str], list[Known]] = {}
        for kept in group:
            for answer in kept.answers:
                files.setdefault((answer.segment, answer.operator), []).append(answer.known)
        try:
            for (segment, operator), known in files.items():
                journal.write(segment, self._attempt, operator, known)
        except (OSError, StoreError) as error:
            print(f"backedge: answers cannot be written, and wait until they can be: {error}", file=sys.stderr)
            return False
        return True

    def close(self) -> None:
        """Write what is left, and return when that is done."""
        self._is_closed.set()
        self._thread.shutdown(wait=True)
