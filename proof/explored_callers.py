"""A task whose calls keep their answers, as the walk of `explored_answers.py` has it: plain values between two steps.

`Questions`, `Segments` and `OpenCalls` are those of every run. A `Caller` stands for what is around them: the state
that captures hold, the operator, and the calls of the process, which it joins as `LastingCalls` does on Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from backedge.engine.operators.runtime import KeptAnswer
from backedge.engine.simulation.world.world_options import Parts
from backedge.engine.task.open_calls import OpenCalls
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.answers import Question, Questions, Segments

OPERATOR, KEY, TASK = "ask", 7, TaskId("ask", 0)

Event = tuple[str, ...]
Values = tuple[tuple[int, tuple[tuple[str, Any], ...]], ...]
Sent = frozenset[tuple[int, Question]]
"""The records whose answers were sent, each with its question."""


class Rules(NamedTuple):
    """What is walked. `records`: the identity of each. `forgets`: each capture forgets what is settled."""

    records: str
    forgets: bool = False
    questions: type[Questions] = Questions
    calls: type[OpenCalls] = OpenCalls
    segments: type[Segments] = Segments

    def with_parts(self, parts: Parts) -> Rules:
        """With the classes that a world is built from."""
        questions = getattr(parts.runtime, "questions_class", Questions)
        return self._replace(questions=questions, calls=parts.driver.calls_class, segments=parts.segments)


class Cut(NamedTuple):
    """A capture: the state of the questions. `sent` is captured with it, to see what is used twice."""

    epoch: Epoch = Epoch(0)
    values: Values = ()
    first: int = 0
    sent: Sent = frozenset()


class Process(NamedTuple):
    """The task in its process.

    - values, first, sent: as in a cut. segment, durable: of its questions.
    - running: the records whose calls it has made. in_flight: the calls that run in the process, also of earlier
      attempts. arrived: the answers of such calls that it has not looked at.
    - unwritten: answers on their way to the journal. told: those that it has, and of which the task has not heard.
    - heard: the questions whose answers the process knows, and the journal does not have for every cut.
    """

    values: Values
    first: int
    sent: Sent
    in_flight: frozenset[Question] = frozenset()
    arrived: frozenset[Question] = frozenset()
    heard: frozenset[Question] = frozenset()
    segment: Epoch = Epoch(0)
    durable: frozenset[Question] = frozenset()
    running: frozenset[int] = frozenset()
    unwritten: frozenset[KeptAnswer] = frozenset()
    told: frozenset[KeptAnswer] = frozenset()

    def written(self) -> Process:
        """The journal has what was unwritten."""
        heard = self.heard.difference(kept.known.question for kept in self.unwritten)
        return self._replace(unwritten=frozenset[KeptAnswer](), told=self.told | self.unwritten, heard=heard)


def answer_to(question: Question) -> bytes:
    """What a call returns."""
    return str(question).encode()


class Caller:
    """A task that takes a step: the state, the runtime and the ports of its `Questions` and `OpenCalls`.

    - begun: the question whose call the step begins. joins: whether it joins one. wrong: what no step may do.
    """

    def __init__(self, process: Process, rules: Rules) -> None:
        self.process = process
        self.records = rules.records
        self.values: dict[int, dict[str, Any]] = {key: dict(kept) for key, kept in process.values}
        self.questions = rules.questions(self, process.segment, process.first)
        self.questions.durable |= process.durable
        if rules.forgets:
            self.questions.settled_max = 0
        self.sent, self.on_the_way, self.told = set(process.sent), set(process.unwritten), process.told
        self.in_flight, self.arrived, self.heard = set(process.in_flight), set(process.arrived), set(process.heard)
        self.begun: Question | None = None
        self.joins = False
        self.wrong = ""
        runtime: Any = self
        ports: Any = SimpleNamespace(calls=SimpleNamespace(call=self._call, keep=self._keep), observer=self)
        self.calls = rules.calls(TASK, runtime, ports, len(rules.records), lambda _: None)
        self.calls.running |= process.running

    def frozen(self) -> Process:
        return Process(
            values=tuple(sorted((key, tuple(sorted(kept.items()))) for key, kept in self.values.items())),
            first=self.questions.first,
            sent=frozenset(self.sent),
            in_flight=frozenset(self.in_flight),
            arrived=frozenset(self.arrived),
            heard=frozenset(self.heard),
            segment=self.questions.segment,
            durable=frozenset(self.questions.durable),
            running=frozenset(self.calls.running),
            unwritten=frozenset(self.on_the_way),
            told=self.told,
        )

    def events(self) -> Iterator[Event]:
        asked = self.asked()
        known = asked.keys() | {record for record, _ in self.sent}
        for identity in sorted(set(self.records)):
            new = [record for record, own in enumerate(self.records) if own == identity and record not in known]
            yield from (("ask", str(record)) for record in new[:1])
        for record in asked:
            if self.sendable(record) if self.has_answer(record) else record not in self.calls.running:
                yield "make", str(record)
        yield from (("ends", *map(str, question)) for question in sorted(self.in_flight))
        yield from (("looks", *map(str, question)) for question in sorted(self.arrived))
        if self.told:
            yield ("told",)

    def act(self, event: Event) -> None:
        what, *of = event
        match what:
            case "ask":
                self.questions.ask(KEY, self.records[int(of[0])], of[0].encode())
            case "make":
                self.calls.make(int(of[0]))
            case "ends":
                self._end(_question(of))
            case "looks":
                self.arrived.remove(_question(of))
                self.heard.add(_question(of))
                self.calls.on_outlived(OPERATOR, _question(of), answer_to(_question(of)), None)
            case _:
                told, self.told = sorted(self.told), frozenset[KeptAnswer]()
                self.calls.on_kept(told)

    def _end(self, question: Question) -> None:
        """A call ends. If no record of this attempt has made it, or joined it, the task looks at the answer later."""
        self.in_flight.remove(question)
        record = self._asker(question)
        if record in self.calls.running:
            self.heard.add(question)
            self.calls.on_answer(record, answer_to(question), None)
        else:
            self.arrived.add(question)

    # -- state ---------------------------------------------------------------------------------------------------------

    def replace(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def remove(self, key: Any) -> None:
        del self.values[key]

    # -- the runtime, whose calls have the numbers of their records ----------------------------------------------------

    def asked(self) -> dict[int, Question]:
        """The records that wait, each with its question."""
        return {int(record): question for question, record in self.questions.waiting()}

    def _asker(self, question: Question) -> int | None:
        return next((record for record, its in self.asked().items() if its == question), None)

    @property
    def unanswered(self) -> Sequence[int]:
        return tuple(self.asked())

    def call(self, record: int) -> Question:
        return self.asked()[record]

    def count(self, record: int, what: str) -> None:
        """Nothing is counted."""

    def has_answer(self, record: int) -> bool:
        return self.questions.has_answer(self.call(record))

    def is_over_budget(self, record: int) -> bool:
        return False

    def keep(self, record: int, result: bytes, error: None) -> KeptAnswer | None:
        return self.keep_outlived(OPERATOR, self.call(record), result, error)

    def keep_outlived(self, operator: str, question: Question, result: bytes, error: None) -> KeptAnswer | None:
        entry = self.questions.on_answer(question, result)
        return None if entry is None else KeptAnswer(operator, self.questions.segment, entry)

    def unwritten(self) -> list[KeptAnswer]:
        return [KeptAnswer(OPERATOR, self.questions.segment, entry) for entry in self.questions.unwritten()]

    def on_durable(self, kept: KeptAnswer) -> int | None:
        question = kept.known.question
        return self._asker(question) if self.questions.on_durable(question) else None

    def sendable(self, record: int) -> tuple[bytes, None] | None:
        answer = self.questions.sendable(self.call(record))
        return None if answer is None else (answer, None)

    def on_answer(self, record: int, result: bytes, error: None) -> None:
        question = self.call(record)
        if result != answer_to(question):
            self.wrong = f"record {record} asks question {question}, and gets the answer {result.decode()}"
        if any(question == its for _, its in self.sent):
            self.wrong = f"the answer to question {question} is used twice"
        self.sent.add((record, question))
        self.questions.on_sent(question)

    # -- the ports -----------------------------------------------------------------------------------------------------

    def on_run(self, *_: Any) -> None:
        """Nothing is observed."""

    def _keep(self, task: TaskId, answers: Sequence[KeptAnswer]) -> None:
        self.on_the_way.update(answers)

    def _call(self, task: TaskId, record: int, question: Question) -> bool:
        """A call begins, or joins one of an earlier attempt that runs or has just ended."""
        if question in self.in_flight or question in self.arrived:
            self.joins = True
            return False
        if question in self.heard:
            self.wrong = f"question {question} is asked again, and the process knows the answer"
        self.in_flight.add(question)
        self.begun = question
        return True


def _question(words: Sequence[str]) -> Question:
    key, identity, number = words
    return Question(int(key), identity, int(number))


def restored(
    cut: Cut, journal: Sequence[KeptAnswer], begun: Epoch, before: Process | None, rules: Rules
) -> tuple[Process, int]:
    """The task of the next attempt, and the number of answers that it has read.

    `before`: what it was before, if its process survives and its calls go on.
    """
    in_flight, arrived = (before.in_flight, before.arrived) if before else (frozenset[Question](),) * 2
    caller, segments = Caller(Process(cut.values, cut.first, cut.sent, in_flight, arrived), rules), rules.segments()
    caller.questions.segment = segments.at_start(begun, cut.epoch)
    read = [kept for kept in journal if segments.are_read(kept.segment, cut.epoch)]
    for kept in read:
        caller.questions.load(kept.known, kept.segment)
        if kept.segment < begun:
            caller.heard.add(kept.known.question)
    caller.calls.on_start()
    return caller.frozen(), len(read)
