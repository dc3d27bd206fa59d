"""Answers whose journal cannot be written wait for it, also over the end of their attempt."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from backedge.engine.on_ray.actor import journal_writer
from backedge.engine.on_ray.actor.background import Background, Outlived
from backedge.engine.on_ray.actor.journal_writer import JournalWriter, Kept
from backedge.engine.operators.kept_answers import SET_ASIDE
from backedge.engine.operators.runtime import KeptAnswer
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.answers import Known, Question
from tests.gates import HANG_S, wait_for

TASK = TaskId("ask", 0)
WHY = Known(Question(7, "why", 0), pickle.dumps(42))
NEVER = Known(Question(8, "never", 0), SET_ASIDE)


class Failing:
    """A journal that fails in some way, and at some operators."""

    job_id = "job"

    def __init__(self, error: Exception, operators: str) -> None:
        self.error = error
        self.operators = {*operators.split()}
        self.written: list[tuple[str, Sequence[Known]]] = []
        self.has_failed = threading.Event()
        self.tries = 0

    def write(self, segment: Epoch, attempt: Attempt, operator: str, answers: Sequence[Known]) -> None:
        if operator in self.operators:
            self.has_failed.set()
            self.tries += 1
            raise self.error
        self.written.append((operator, answers))


def kept(*operators: str) -> Kept:
    return Kept(TASK, [KeptAnswer(operator, Epoch(1), WHY) for operator in operators])


def test_whatever_a_store_raises_answers_wait_and_each_is_written_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_writer, "RETRY_S", 0.001)
    journal, told = Failing(ValueError("of a store of others"), "second"), list[Kept]()
    writer = JournalWriter(journal, Attempt(1), told.append)  # type: ignore[arg-type]
    writer.keep(kept("first", "second"))
    assert journal.has_failed.wait(HANG_S)
    journal.operators.clear()
    wait_for(lambda: told, "they are written")
    assert (writer.close(), told) == ([], [kept("first", "second")])
    assert journal.written == [("first", [WHY]), ("second", [WHY])]


def test_a_journal_that_cannot_be_written_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(journal_writer, "RETRY_S", 0.0)
    monkeypatch.setattr(journal_writer, "TOLD_TRIES", 10)
    journal = Failing(OSError(28, "No space left on device"), "ask")
    writer = JournalWriter(journal, Attempt(1), print)  # type: ignore[arg-type]
    writer.keep(kept("ask"))
    wait_for(lambda: journal.tries > 20, "it is tried again and again")
    assert writer.close() == [("ask", WHY)]
    assert capsys.readouterr().err.count("No space left on device") == -(-journal.tries // 10)


def test_the_next_attempt_has_the_answers_that_a_full_disk_has_kept_from_the_journal():
    journal = Failing(OSError(28, "No space left on device"), "ask")
    first = Background(SimpleNamespace(answers=journal), lambda: None)  # type: ignore[arg-type]
    first.keep(TASK, [KeptAnswer("ask", Epoch(1), WHY), KeptAnswer("ask", Epoch(1), NEVER)])
    first.close()
    assert journal.has_failed.is_set()
    second = Background(None, lambda: None)
    why, never = second.done
    second.done.clear()
    second.close()
    assert why == Outlived("ask", WHY.question, 42, None)
    assert isinstance(never, Outlived)
    assert (never.question, type(never.error).__name__) == (NEVER.question, "SetAsideError")
