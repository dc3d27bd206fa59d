"""Answers that are kept: when they are sent, what a capture holds, and which segments of the journal are read."""

from __future__ import annotations

from typing import Any

from backedge.engine.operators.kept_answers import KeptAnswersOperator
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.open_calls import OpenCalls
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.answers import Known, Question, Questions, Segments


class _SendsBeforeDurable(OpenCalls):
    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        super().on_answer(call_id, result, error)
        if call_id in self._runtime.unanswered:
            self._send(call_id, result, error)


class SendsBeforeDurable(TaskDriver):
    calls_class = _SendsBeforeDurable


class _ForgetsOutlivedCalls(OpenCalls):
    def on_outlived(self, operator: str, question: Question, result: Any, error: BaseException | None) -> None:
        pass


class ForgetsOutlivedCalls(TaskDriver):
    calls_class = _ForgetsOutlivedCalls


class _SendsWhatACutHolds(Questions):
    def unwritten(self) -> list[Known]:
        for known in super().unwritten():
            self.durable.add(known.question)
        return []


class _ReadsTwice(Questions):
    def load(self, known: Known, segment: Epoch) -> bool:
        key, identity, number = known.question
        while self._equals(key, identity).is_taken(number):
            number += 1
        return super().load(known._replace(question=Question(key, identity, number)), segment)


class _CapturesNoSpareAnswers(Questions):
    def on_capture(self, epoch: Epoch) -> None:
        super().on_capture(epoch)
        self._drop_spare()


class _CapturesNoAnswers(Questions):
    def on_capture(self, epoch: Epoch) -> None:
        super().on_capture(epoch)
        for key, identity, equals in list(self._each()):
            numbers = [number for number, _ in equals.answers]
            if all(Question(key, identity, number) not in self.durable for number in numbers):
                continue
            self._put(key, identity, equals._replace(answers=()))


class _SharesAnswers(Questions):
    def ask(self, key: int, identity: str, record: bytes) -> Question:
        known = self._equals(key, identity).answers
        question = super().ask(key, identity, record)
        if known and not self.has_answer(question):
            self.load(Known(question, known[0][1]), self.segment)
        return question


def _with(questions: type[Questions]) -> type[TaskRuntime]:
    class Broken(TaskRuntime):
        questions_class = questions

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            for operator in self._wiring.operators.values():
                if isinstance(operator, KeptAnswersOperator):
                    operator.questions_class = self.questions_class

    return Broken


class SegmentOfTheRestoredCut(Segments):
    def at_start(self, begun: Epoch, restored: Epoch) -> Epoch:
        return restored


class ReadsOneSegment(Segments):
    def are_read(self, segment: Epoch, restored: Epoch) -> bool:
        return segment == restored


class RemovesTooEarly(Segments):
    def are_removed(self, segment: Epoch, oldest: Epoch) -> bool:
        return segment <= oldest


def _break(meaning: str, **broken: Any) -> Break:
    return Break(meaning, topology="kept_answers", go_backs=3, **broken)


def _questions(meaning: str, questions: type[Questions]) -> Break:
    return _break(meaning, runtime=_with(questions))


ANSWERS = {
    "answer-sent-too-early": _break("an answer is sent before the journal has it", driver=SendsBeforeDurable),
    "outlived-call-forgotten": _break("the answer of a call that goes on is not kept", driver=ForgetsOutlivedCalls),
    "answer-of-a-cut-sent": _questions("an answer is sent that only a cut holds", _SendsWhatACutHolds),
    "answer-read-twice": _questions("an answer that was used is read as a spare one", _ReadsTwice),
    "spare-answer-not-captured": _questions("a capture lacks spare answers", _CapturesNoSpareAnswers),
    "answer-not-captured": _questions("a capture lacks answers of questions that wait", _CapturesNoAnswers),
    "answer-shared": _questions("two equal questions use one answer", _SharesAnswers),
    "segment-of-the-restored-cut": _break("an attempt writes to its cut's segment", segments=SegmentOfTheRestoredCut),
    "one-segment-read": _break("a restore reads one segment", segments=ReadsOneSegment),
    "segment-removed-too-early": _break("a segment is removed while a cut needs it", segments=RemovesTooEarly),
}
