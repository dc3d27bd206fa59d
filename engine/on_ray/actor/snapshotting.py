"""The snapshots of one task on their way to the store: captured, encoded piece by piece, written, acknowledged.

A capture is kept until its file is written, for a write that fails may be asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from engine.capture import Capture
from graphs.ids import Attempt, Epoch, TaskId
from recovery.channels import Stored
from recovery.cut import InputRecord, TaskSnapshot
from recovery.effects import TaskRecord

ENCODED_ENTRIES = 2_000
ENCODED_NS = 2_000_000


class Writing(Protocol):
    """What writes snapshots, the large ones in the background."""

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Callable[[], TaskSnapshot]) -> None:
        """Put the snapshot together and write it, then say so to the task."""
        ...

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove what was written of an aborted epoch."""
        ...


class Snapshotting:
    """Open captures of one task. `None` is the last state."""

    def __init__(self, task: TaskId, attempt: Attempt, writing: Writing) -> None:
        self.task = task
        self.attempt = attempt
        self.writing = writing
        self.captures: dict[Epoch | None, Capture] = {}
        self.encoded: set[Epoch | None] = set()
        self.records: dict[Epoch | None, tuple[TaskRecord, Epoch]] = {}
        self.files: dict[Epoch | None, Any] = {}
        self.pieces = 0

    def captured(self, epoch: Epoch | None, capture: Capture) -> None:
        """The state at this moment."""
        self.captures[epoch] = capture

    def has_to_encode(self) -> bool:
        """Whether there is a capture that is not encoded yet."""
        return len(self.captures) > len(self.encoded)

    def encode_some(self) -> bool:
        """Encode a piece of the oldest capture; says whether there was one."""
        for epoch, capture in self.captures.items():
            if epoch not in self.encoded:
                until_ns = time.monotonic_ns() + ENCODED_NS
                while not (is_encoded := capture.encode_some(ENCODED_ENTRIES)) and time.monotonic_ns() < until_ns:
                    continue
                self.pieces += 1
                if is_encoded:
                    self.encoded.add(epoch)
                    self._write_if_complete(epoch)
                return True
        return False

    def write(self, epoch: Epoch | None, record: TaskRecord, captured: Epoch) -> None:
        """The log is sealed: write, once the state is encoded too. `captured` is the task's last epoch."""
        self.records[epoch] = record, captured
        self._write_if_complete(epoch)

    def written(self, epoch: Epoch | None, files: Any) -> None:
        """It is written."""
        self.files[epoch] = files
        self.captures.pop(epoch, None)
        self.encoded.discard(epoch)

    def discard(self, epoch: Epoch) -> None:
        """The epoch is aborted."""
        capture = self.captures.pop(epoch, None)
        if capture is not None:
            capture.discard()
        self.encoded.discard(epoch)
        self.records.pop(epoch, None)
        self.files.pop(epoch, None)
        self.writing.discard(self.attempt, epoch, self.task)

    def _write_if_complete(self, epoch: Epoch | None) -> None:
        if epoch not in self.encoded or epoch not in self.records:
            return
        record, captured = self.records.pop(epoch)
        capture = self.captures[epoch]
        at = captured if epoch is None else epoch

        def snapshot() -> TaskSnapshot:
            inputs, outputs, rounds = tuple(map(_loaded, record.inputs)), record.outputs, record.rounds
            states, ended, overtook = capture.states, record.ended, record.overtook
            return TaskSnapshot(self.task, at, self.attempt, states, inputs, outputs, ended, rounds, overtook)

        self.writing.write(self.attempt, epoch, self.task, snapshot)


def _loaded(record: InputRecord) -> InputRecord:
    """The log with its bytes, wherever they are."""
    if not any(isinstance(entry.payload, Stored) for entry in record.log):
        return record
    log = (entry._replace(payload=_bytes(entry.payload)) for entry in record.log)
    return replace(record, log=tuple(log))


def _bytes(payload: bytes | Stored) -> bytes:
    return payload.load() if isinstance(payload, Stored) else payload
