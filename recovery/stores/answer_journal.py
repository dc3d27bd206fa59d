"""The journal of answers to `map_async`, in segments, below the folder `answers` of a job.

    answers/epoch=7/ask.2-1f0c9a-c0de.answers    what a process of attempt 2 has kept after epoch 7, by its digest

A group is a sealed document of one line, and then bytes whose SHA-256 it names: nothing is decoded before it is
verified. It is durable when it is written, and no manifest names it. What belongs to a segment, and when it goes, is
said in `recovery/protocol/answers.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.answers import Known, Question, Segments
from backedge.recovery.stores.documents import opened_content, sealed_content, sha256
from backedge.recovery.stores.names import (
    ANSWERS,
    answer_group,
    answer_groups_of,
    attempt_of_group,
    epoch_folder,
    number_in,
    path_of,
)
from backedge.recovery.stores.schema import ANSWER_GROUP
from backedge.recovery.stores.store_calls import each, full_name, remove_below
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store

R = TypeVar("R")

WRITER_BYTES = 6
DIGEST_DIGITS = 32


class AnswerGroup(NamedTuple):
    """A verified group. `content`: what the store has under its name."""

    name: str
    segment: Epoch
    operator: str
    attempt: Attempt
    content: bytes


def answers_in(content: bytes) -> Iterator[Known]:
    """The answers in a group whose bytes were verified."""
    _, _, data = content.partition(b"\n")
    for key, identity, number, answer, cost in msgspec.msgpack.decode(data, type=list[_Entry]):
        yield Known(Question(key, identity, number), answer, cost)


_Entry = tuple[int, str, int, bytes, float | None]


class AnswerJournal:
    """The journal of one job, as one process writes and reads it."""

    segments = Segments()

    def __init__(self, store: Store, job_id: str, key: bytes | None) -> None:
        self._store = store
        self.job_id = job_id
        self._key = key
        self._writer = secrets.token_hex(WRITER_BYTES)
        # The oldest cut when segments were removed last.
        self._oldest: Epoch | None = None

    def write(self, segment: Epoch, attempt: Attempt, operator: str, answers: Sequence[Known]) -> None:
        """Write answers of an operator as one group, durably.

        Written again after an error, it has the same name: the file may have been created after all.
        """
        data = msgspec.msgpack.encode([(*known.question, known.answer, known.cost) for known in answers])
        name = path_of(answer_group(segment, operator, f"{attempt}-{self._writer}-{sha256(data)[:DIGEST_DIGITS]}"))
        document = {"job_id": self.job_id, "name": name, "operator": operator}
        if not self._store.create(name, sealed_content(document, data, self._key, ANSWER_GROUP)):
            self._store.make_durable([name])

    def read(self, operator: str, restored: Epoch) -> Iterator[tuple[Epoch, Known]]:
        """The answers of an operator that a restore of this cut reads, each with its segment, the first ones first."""
        for group in self.each_group(restored, lambda group: group, operator):
            for known in answers_in(group.content):
                yield group.segment, known

    def each_group(self, restored: Epoch, of: Callable[[AnswerGroup], R], operator: str | None = None) -> list[R]:
        """The result of a call for each group that a restore of this cut reads, of one operator or of all."""
        found = [
            (segment, name)
            for segment in self._segments()
            if self.segments.are_read(segment, restored)
            for name in self._store.list(f"{ANSWERS}/{epoch_folder(segment)}")
            if operator is None or answer_groups_of(operator, name)
        ]

        def call(one: tuple[Epoch, str]) -> R | None:
            group = self._group(*one)
            return None if group is None else of(group)

        results = each(self._store.reads_at_once, call, sorted(found))
        return [result for result in results if result is not None]

    def _group(self, segment: Epoch, name: str) -> AnswerGroup | None:
        path = full_name(self._store, name)
        try:
            content = self._store.read(name)
        except FileNotFoundError:  # listed, and removed since: no cut that may be restored needs it
            return None
        document, _ = opened_content(content, self._key, path, ANSWER_GROUP)
        operator: str = document["operator"]
        if (document["job_id"], document["name"]) != (self.job_id, name) or not answer_groups_of(operator, name):
            raise SnapshotCorruptError(f"{path} was written as another group of answers: restore the original file")
        return AnswerGroup(name, segment, operator, attempt_of_group(name), content)

    def remove(self, oldest: Epoch) -> None:
        """Remove the segments that no restore will read, if this is the oldest cut that may be restored.

        As long as that is the same one, a savepoint perhaps, no more can go, and there may be one for each cut since.
        """
        if oldest == self._oldest:
            return
        for segment in self._segments():
            if self.segments.are_removed(segment, oldest):
                remove_below(self._store, f"{ANSWERS}/{epoch_folder(segment)}")
        self._oldest = oldest

    def _segments(self) -> list[Epoch]:
        numbers = (number_in(folder, "epoch") for folder in self._store.folders(ANSWERS))
        return sorted(Epoch(number) for number in numbers if number is not None)
