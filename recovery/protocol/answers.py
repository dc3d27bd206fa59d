"""The questions of an operator that calls outside, and their answers. No finished call is made twice.

A question is a record that waits for an answer. Equal questions have one identity, and a number each: the lowest that
none of them has. Identity and number name a question in every attempt, because they are part of the state. A journal
keeps answers, in segments.

1. An answer is sent only when the journal has it. A complete cut that holds it is not enough: an older cut is kept, and
   may be restored. So an answer that is known from a cut alone is written to the journal first.
2. An answer says which question it answers. Read twice, from a cut and from the journal or from two attempts, it counts
   once.
3. A capture holds the numbers that are taken and every answer that is known, also of questions that no record has asked
   yet. Those come from the journal: a record was asked in an attempt that failed, and it comes again.
4. The journal's segment is the highest epoch that the run has begun: when a task captures, and when an attempt begins,
   whichever cut it restores.
5. A restore of a cut reads the segments from its epoch on, of every attempt. If a run goes back, later cuts are kept,
   whose restore does not read the first of these segments: an answer from there is written again before it is sent.
6. Each of several equal questions takes an answer of its own.
7. A process that survives the end of an attempt first writes the answers that it still has. Calls that run go on. The
   question that the next attempt gives the same name joins the call; if none comes, the answer is kept like any other.
8. A segment is removed when every cut that may be restored is later, after the manifest that ends the retention of the
   last other one is durable. A pipeline that has no cut yet may begin from nothing: then none is removed.
9. What an attempt that is over still writes was paid for. A restore that reads it uses it; nothing else does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from backedge.graphs.ids import Epoch

SETTLED_MAX = 10_000
SETTLED_BETWEEN_CUTS_MAX = 100_000
SPARE_CUTS = 1_000

SPENT = "spent"
"""What is kept under a key beside questions, by their identities: the sum that its answers have cost."""


class Question(NamedTuple):
    """The name of a question. `key`: what its state is kept under, which is in the key group of its task."""

    key: int
    identity: str
    number: int

    def __str__(self) -> str:
        return f"{self.identity}-{self.number}"


class Known(NamedTuple):
    """What the journal keeps of a call: its question, the encoded answer, and what the call has cost.

    `cost` is None for an answer that was known from a cut, and is written to the journal again: no call was made.
    """

    question: Question
    answer: bytes
    cost: float | None = None


class Segments:
    """Which segment of the journal answers belong to, and which ones a restore reads."""

    def at_start(self, begun: Epoch, restored: Epoch) -> Epoch:
        """That of an attempt, until it captures. `begun`: the highest epoch that the chain says has begun."""
        return begun

    def are_read(self, segment: Epoch, restored: Epoch) -> bool:
        """Whether a restore of this cut reads the segment."""
        return segment >= restored

    def are_removed(self, segment: Epoch, oldest: Epoch) -> bool:
        """Whether a segment is removed, if this is the oldest cut that may be restored."""
        return segment < oldest


class Equals(NamedTuple):
    """Equal questions, as they are kept in the state.

    - next, beyond: every number below `next` is taken, and these.
    - waiting: the questions whose answer has not been sent, each with its encoded record.
    - answers: those that are known and have not been sent.
    """

    next: int
    beyond: tuple[int, ...] = ()
    waiting: tuple[tuple[int, bytes], ...] = ()
    answers: tuple[tuple[int, bytes], ...] = ()

    def is_taken(self, number: int) -> bool:
        return number < self.next or number in self.beyond

    def waits(self, number: int) -> bool:
        """Whether a record waits for this answer."""
        return any(number == one for one, _ in self.waiting)

    def answer(self, number: int) -> bytes | None:
        """The answer to a question, if it is known and has not been sent."""
        return dict(self.answers).get(number)

    def taking(self, number: int, record: bytes) -> Equals:
        """With another question of this number."""
        beyond, next = {*self.beyond, number}, self.next
        while next in beyond:
            beyond.remove(next)
            next += 1
        return self._replace(next=next, beyond=tuple(sorted(beyond)), waiting=(*self.waiting, (number, record)))

    def knowing(self, number: int, answer: bytes) -> Equals:
        return self._replace(answers=(*self.answers, (number, answer)))

    def without(self, number: int) -> Equals:
        """The answer to this question is sent."""
        waiting = tuple(one for one in self.waiting if one[0] != number)
        return self._replace(waiting=waiting, answers=tuple(one for one in self.answers if one[0] != number))

    def is_settled(self) -> bool:
        """Whether all answers are sent. If a lower number is not taken, its call may still run."""
        return not (self.waiting or self.answers or self.beyond)

    def spare(self) -> list[int]:
        """The numbers of the answers that no record has asked for yet."""
        beyond = set(self.beyond)
        return [number for number, _ in self.answers if number >= self.next and number not in beyond]


class KeptByKey(Protocol):
    """Values that are part of every capture: `KeyedState`."""

    @property
    def values(self) -> dict[Any, Any]: ...

    def replace(self, key: Any, value: Any) -> None: ...

    def remove(self, key: Any) -> None: ...


class Questions:
    """The questions of one operator in one task.

    - state: by key, and then by identity, what is known of equal questions.
    - segment: of the journal, for answers that arrive now.
    - first: the first number of a question that nothing is known of. All that were forgotten had lower ones.
    - durable: the questions whose answers the journal has for every cut, as long as they are not sent.
    - settled: equal questions whose answers are all sent, the oldest first. A capture leaves `settled_max` of them.
      More are forgotten between two captures only if there are too many, as in a run without cuts: the numbers of
      later questions depend on when that is done.
    - captures: their number since the restore. After `SPARE_CUTS` of them, spare answers are dropped.
    """

    settled_max = SETTLED_MAX
    settled_between_cuts_max = SETTLED_BETWEEN_CUTS_MAX

    def __init__(self, state: KeptByKey, segment: Epoch, first: int = 0) -> None:
        self.state = state
        self.segment = segment
        self.first = first
        self.durable: set[Question] = set()
        self.captures = 0
        # Of a dict, the first one is found slowly when others before it were removed.
        self.settled = OrderedDict(
            ((key, identity), None) for key, identity, equals in self._each() if equals.is_settled()
        )

    # -- a restore -----------------------------------------------------------------------------------------------------

    def load(self, known: Known, segment: Epoch) -> bool:
        """An answer of a segment that belongs to the restored cut. Returns whether it was not known."""
        is_new = self._know(known)
        if segment >= self.segment and self.has_answer(known.question):
            self.durable.add(known.question)
        return is_new

    def waiting(self) -> Iterator[tuple[Question, bytes]]:
        """The questions that wait, each with its record."""
        for key, identity, equals in self._each():
            for number, record in equals.waiting:
                yield Question(key, identity, number), record

    def unwritten(self) -> list[Known]:
        """The answers that are known, and which the restore of a later cut might not find."""
        known = [
            Known(Question(key, identity, number), answer)
            for key, identity, equals in self._each()
            for number, answer in equals.answers
        ]
        return [entry for entry in known if entry.question not in self.durable]

    # -- a question and its answer -------------------------------------------------------------------------------------

    def ask(self, key: int, identity: str, record: bytes) -> Question:
        """A record asks: it takes a known answer that is spare, or a new number."""
        equals = self._equals(key, identity)
        spare = equals.spare()
        number = min(spare) if spare else equals.next
        self._put(key, identity, equals.taking(number, record))
        return Question(key, identity, number)

    def on_answer(self, question: Question, answer: bytes) -> Known | None:
        """A call was answered: the entry to write, or None if its question has an answer already.

        If no record has asked its question again since the attempt that made the call, the answer is spare.
        """
        entry = Known(question, answer)
        return entry if self._know(entry) else None

    def on_durable(self, question: Question) -> bool:
        """The journal has the answer. Returns whether a record waits for it."""
        if not self.has_answer(question):
            return False
        self.durable.add(question)
        return self._equals(question.key, question.identity).waits(question.number)

    def answer(self, question: Question) -> bytes | None:
        """The answer, if it is known and has not been sent."""
        return self._equals(question.key, question.identity).answer(question.number)

    def has_answer(self, question: Question) -> bool:
        return self.answer(question) is not None

    def sendable(self, question: Question) -> bytes | None:
        """The answer, if it may be sent: the journal has it."""
        return self.answer(question) if question in self.durable else None

    def on_sent(self, question: Question) -> None:
        key, identity, number = question
        self._put(key, identity, self._equals(key, identity).without(number))
        self.durable.discard(question)
        self._forget_beyond(self.settled_between_cuts_max)

    # -- costs ---------------------------------------------------------------------------------------------------------

    def spent(self, key: int) -> float:
        """What the answers of a key have cost."""
        return self.state.values.get(key, {}).get(SPENT, 0)

    def spend(self, key: int, cost: float) -> None:
        """An answer has become known that a record waits for. Cuts have both, so a restored run counts it once."""
        self.state.replace(key, {**self.state.values.get(key, {}), SPENT: self.spent(key) + cost})

    # -- captures ------------------------------------------------------------------------------------------------------

    def on_capture(self, epoch: Epoch) -> None:
        """The state is about to be captured: answers that arrive later belong to the segment of that epoch."""
        self.segment = max(self.segment, epoch)
        self.captures += 1
        if self.captures == SPARE_CUTS:
            self._drop_spare()
        self._forget_beyond(self.settled_max)

    def _drop_spare(self) -> None:
        for key, identity, equals in list(self._each()):
            for number in equals.spare():
                equals = equals.without(number)
                self.durable.discard(Question(key, identity, number))
                self._put(key, identity, equals)

    def _forget_beyond(self, settled_max: int) -> None:
        while len(self.settled) > settled_max:
            self._forget(*next(iter(self.settled)))

    def _forget(self, key: int, identity: str) -> None:
        """Forget equal questions whose answers are sent. A later one has a number that none of these had."""
        equals = self._equals(key, identity)
        self.first = max(self.first, equals.next)
        del self.settled[key, identity]
        others = {one: kept for one, kept in self.state.values[key].items() if one != identity}
        if others:
            self.state.replace(key, others)
        else:
            self.state.remove(key)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _know(self, entry: Known) -> bool:
        """Note an answer; False if it is known, was sent, or its question is forgotten."""
        (key, identity, number), answer, _ = entry
        equals = self._equals(key, identity)
        is_over = equals.is_taken(number) and not equals.waits(number)
        if is_over or equals.answer(number) is not None:
            return False
        self._put(key, identity, equals.knowing(number, answer))
        return True

    def _equals(self, key: int, identity: str) -> Equals:
        kept: Mapping[str, Any] = self.state.values.get(key, {})
        return Equals(*kept[identity]) if identity in kept else Equals(self.first)

    def _put(self, key: int, identity: str, equals: Equals) -> None:
        # Plain values: readers of cuts know no class of ours.
        self.state.replace(key, {**self.state.values.get(key, {}), identity: tuple(equals)})
        self.settled.pop((key, identity), None)
        if equals.is_settled():
            self.settled[key, identity] = None

    def _each(self) -> Iterator[tuple[int, str, Equals]]:
        for key, kept in self.state.values.items():
            for identity, equals in kept.items():
                if identity != SPENT:
                    yield key, identity, Equals(*equals)
