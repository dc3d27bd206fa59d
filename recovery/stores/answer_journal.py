"""The journal of answers to `map_async`, in segments, below the folder `answers` of a job.

    answers/epoch=7/ask.2-1f0c9a-3.answers    what a process of attempt 2 has kept after epoch 7, its third group

A group is a sealed document of one line, and then bytes whose SHA-256 it names: nothing is decoded before it is
verified. It is durable when it is written, and no manifest names it. What belongs to a segment, and when it goes, is
said in `recovery/protocol/answers.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.answers import Known, Question, Segments
from backedge.recovery.stores.documents import opened, sealed, sha256
from backedge.recovery.stores.names import ANSWERS, answer_group, answer_groups_of, epoch_folder, number_in, path_of
from backedge.recovery.stores.schema import ANSWER_GROUP
from backedge.recovery.stores.store_calls import each, full_name, remove_below
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store

WRITER_BYTES = 6


class AnswerJournal:
    """The journal of one job, as one process writes and reads it."""

    segments = Segments()

    def __init__(self, store: Store, job_id: str, key: bytes | None) -> None:
        self._store = store
        self.job_id = job_id
        self._key = key
        self._writer = secrets.token_hex(WRITER_BYTES)
        self._numbers = count(1)

    def write(self, segment: Epoch, attempt: Attempt, operator: str, answers: Sequence[Known]) -> None:
        """Write answers of an operator as one group, durably."""
        name = path_of(answer_group(segment, operator, f"{attempt}-{self._writer}-{next(self._numbers)}"))
        data = msgspec.msgpack.encode([(*known.question, known.answer) for known in answers])
        document = {"job_id": self.job_id, "name": name, "operator": operator, "sha256": sha256(data)}
        self._store.create(name, sealed(document, self._key, ANSWER_GROUP) + data)

    def read(self, operator: str, restored: Epoch) -> Iterator[tuple[Epoch, Known]]:
        """The answers of an operator that a restore of this cut reads, each with its segment."""
        found = [
            (name, segment)
            for segment in self._segments()
            if self.segments.are_read(segment, restored)
            for name in self._store.list(f"{ANSWERS}/{epoch_folder(segment)}")
            if answer_groups_of(operator, name)
        ]
        for segment, group in each(self._store.reads_at_once, lambda one: self._group(*one, operator), sorted(found)):
            for key, identity, number, answer in group:
                yield segment, Known(Question(key, identity, number), answer)

    def _group(self, name: str, segment: Epoch, operator: str) -> tuple[Epoch, list[tuple[int, str, int, bytes]]]:
        try:
            line, end, data = self._store.read(name).partition(b"\n")
        except FileNotFoundError:  # listed, and removed since: no cut that may be restored needs it
            return segment, []
        path = full_name(self._store, name)
        document = opened(line + end, self._key, path, ANSWER_GROUP)
        if (document["job_id"], document["name"], document["operator"]) != (self.job_id, name, operator):
            raise SnapshotCorruptError(f"{path} was written as another group of answers: restore the original file")
        if sha256(data) != document["sha256"]:
            raise SnapshotCorruptError(f"{path} was changed: its SHA-256 is another one; restore it from a backup")
        return segment, msgspec.msgpack.decode(data, type=list[tuple[int, str, int, bytes]])

    def remove(self, oldest: Epoch) -> None:
        """Remove the segments that no restore will read, if this is the oldest cut that may be restored."""
        for segment in self._segments():
            if self.segments.are_removed(segment, oldest):
                remove_below(self._store, f"{ANSWERS}/{epoch_folder(segment)}")

    def _segments(self) -> list[Epoch]:
        numbers = (number_in(folder, "epoch") for folder in self._store.folders(ANSWERS))
        return sorted(Epoch(number) for number in numbers if number is not None)
