"""Writes the answers of an actor's calls to the journal, many at once, in a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from backedge.engine.operators.runtime import KeptAnswer
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.task_errors import describe
from backedge.recovery.protocol.answers import Known
from backedge.recovery.stores.answer_journal import AnswerJournal

GATHER_S = 0.01
"""How long answers wait for others, which are written with them."""

RETRY_S = 1.0
TOLD_TRIES = 60
"""A message follows after this many failures."""

Unwritten = dict[tuple[Epoch, str], list[Known]]
"""By segment and operator."""


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
        self._left: list[tuple[str, Known]] = []
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
        answers: Unwritten = {}
        for kept in group:
            for answer in kept.answers:
                answers.setdefault((answer.segment, answer.operator), []).append(answer.known)
        tries = 0
        while (error := self._try(journal, answers)) is not None:
            if tries % TOLD_TRIES == 0:
                told = f"backedge: answers cannot be written, and wait until they can be: {describe(error)}"
                print(told, file=sys.stderr)
            tries += 1
            if self._is_closed.wait(RETRY_S):
                self._left += [(operator, known) for (_, operator), of_one in answers.items() for known in of_one]
                return
        for kept in group:
            self._tell(kept)

    def _try(self, journal: AnswerJournal, answers: Unwritten) -> Exception | None:
        """Write what is left of these, until an error. What was written is not written again."""
        try:
            for segment, operator in list(answers):
                journal.write(segment, self._attempt, operator, answers[segment, operator])
                del answers[segment, operator]
        except Exception as error:  # noqa: BLE001  # a store of others may raise anything, and answers wait for this
            return error
        return None

    def close(self) -> list[tuple[str, Known]]:
        """Write what is left. Returns what could not be written, each with its operator."""
        self._is_closed.set()
        self._thread.shutdown(wait=True)
        return self._left
