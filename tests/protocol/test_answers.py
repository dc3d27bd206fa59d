"""The questions of an operator whose answers are kept: their names, what may be sent, and what is forgotten."""

from __future__ import annotations

from typing import Any

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.answers import SPARE_CUTS, Known, Question, Questions

KEY = 7
FIRST, SECOND = Question(KEY, "why", 0), Question(KEY, "why", 1)


class State:
    """Values by key, as every capture holds them."""

    def __init__(self, values: dict[Any, Any] | None = None) -> None:
        self.values = values or {}

    def replace(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def remove(self, key: Any) -> None:
        del self.values[key]


def asked(*records: bytes, identity: str = "why") -> Questions:
    questions = Questions(State(), Epoch(0))
    for record in records:
        questions.ask(KEY, identity, record)
    return questions


def restored(questions: Questions, *journal: Known) -> Questions:
    """The same state in the next attempt, which reads this from the journal."""
    found = Questions(State(dict(questions.state.values)), Epoch(0), questions.first)
    for known in journal:
        found.load(known, Epoch(0))
    return found


def finish(questions: Questions, question: Question, answer: bytes = b"because") -> None:
    questions.on_answer(question, answer)
    questions.on_durable(question)
    questions.on_sent(question)


def test_equal_questions_have_numbers_and_answers_of_their_own():
    questions = asked(b"first", b"second")
    assert list(questions.waiting()) == [(FIRST, b"first"), (SECOND, b"second")]
    questions.on_answer(SECOND, b"because")
    assert questions.has_answer(SECOND)
    assert not questions.has_answer(FIRST)


def test_an_answer_is_sendable_only_when_the_journal_has_it():
    questions = asked(b"first")
    questions.on_answer(FIRST, b"because")
    assert questions.sendable(FIRST) is None
    assert questions.on_durable(FIRST)
    assert questions.sendable(FIRST) == b"because"


def test_an_answer_that_a_cut_alone_holds_is_written_first():
    questions = asked(b"first")
    questions.on_answer(FIRST, b"because")
    after = restored(questions)
    assert after.sendable(FIRST) is None
    assert after.unwritten() == [Known(FIRST, b"because")]
    assert restored(questions, Known(FIRST, b"because")).unwritten() == []


def test_an_answer_that_a_later_cut_does_not_read_is_written_again():
    after = Questions(State(), Epoch(2))
    after.load(Known(FIRST, b"because"), Epoch(1))
    assert after.ask(KEY, "why", b"record") == FIRST
    assert after.sendable(FIRST) is None
    assert after.unwritten() == [Known(FIRST, b"because")]
    after.load(Known(FIRST, b"because"), Epoch(2))
    assert after.sendable(FIRST) == b"because"
    assert after.unwritten() == []


def test_an_answer_is_known_once_wherever_it_is_read():
    questions = asked(b"first")
    finish(questions, FIRST)
    after = restored(questions, Known(FIRST, b"because"), Known(FIRST, b"because"))
    assert after.ask(KEY, "why", b"second") == SECOND
    assert not after.has_answer(SECOND)
    assert after.on_answer(FIRST, b"late") is None


def test_a_record_takes_a_spare_answer_before_a_number_of_its_own():
    after = restored(asked(), Known(SECOND, b"because"))
    assert after.ask(KEY, "why", b"record") == SECOND
    assert after.sendable(SECOND) == b"because"
    assert after.ask(KEY, "why", b"another") == FIRST


class Compared(int):
    """A number that counts how often one is compared with another."""

    times = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return int.__eq__(self, other)  # type: ignore[arg-type]


def test_many_equal_records_take_their_spare_answers_without_comparing_each_with_all():
    """The call of the first one is lost, so the others are taken one by one beyond it."""
    count = 60
    journal = (Known(Question(KEY, "why", Compared(number)), b"because") for number in range(1, count + 1))
    after = restored(asked(), *journal)
    Compared.times = 0
    assert [after.ask(KEY, "why", b"record").number for _ in range(count)] == list(range(1, count + 1))
    assert Compared.times <= count**2


def test_answers_belong_to_the_segment_of_the_last_capture():
    questions = asked()
    questions.segment = Epoch(5)
    questions.on_capture(Epoch(3))
    assert questions.segment == 5
    questions.on_capture(Epoch(6))
    assert questions.segment == 6


def test_spare_answers_are_dropped_after_many_captures():
    after = restored(asked(), Known(FIRST, b"because"))
    for epoch in range(SPARE_CUTS):
        assert after.has_answer(FIRST)
        after.on_capture(Epoch(epoch + 1))
    assert not after.has_answer(FIRST)


def test_what_is_forgotten_first_does_not_depend_on_spare_answers_that_were_dropped():
    questions = Questions(State(), Epoch(0))
    questions.load(Known(Question(KEY, "never", 0), b"because"), Epoch(0))
    early, late = (questions.ask(KEY, identity, b"record") for identity in ("early", "late"))
    finish(questions, late)
    finish(questions, early)
    for epoch in range(SPARE_CUTS):
        questions.on_capture(Epoch(epoch + 1))
    questions.settled_max = 2
    questions.on_capture(Epoch(SPARE_CUTS + 1))
    assert questions.state.values[KEY].keys() == {"never", "early"}, "the late one was answered first"


def test_a_question_that_was_forgotten_gets_a_number_that_it_never_had():
    questions = asked(b"first", b"second")
    questions.settled_max = 0
    finish(questions, FIRST)
    finish(questions, SECOND)
    questions.on_capture(Epoch(1))
    assert questions.state.values == {}
    assert questions.ask(KEY, "why", b"third").number == 2
    assert restored(asked(), Known(FIRST, b"because")).first == 0


def test_without_captures_questions_are_forgotten_too():
    questions = asked(b"first", b"second")
    questions.settled_between_cuts_max = 1
    finish(questions, FIRST)
    finish(questions, SECOND)
    other = questions.ask(KEY, "where", b"third")
    assert len(questions.state.values[KEY]) == 2
    finish(questions, other)
    assert questions.state.values[KEY].keys() == {"where"}


def test_a_question_is_not_forgotten_while_a_call_for_an_equal_one_may_run():
    after = restored(asked(), Known(SECOND, b"because"))
    after.settled_max = 0
    assert after.ask(KEY, "why", b"first") == SECOND
    after.on_sent(SECOND)
    after.on_capture(Epoch(1))
    assert after.on_answer(FIRST, b"because") is not None
    assert after.ask(KEY, "why", b"second") == FIRST
