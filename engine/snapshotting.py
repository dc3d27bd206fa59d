"""The snapshots of one task on their way to the store: captured, encoded piece by piece, written, acknowledged.

A capture is kept until its file is written, for a write that fails may be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.capture import Capture
from engine.driver_ports import SnapshotWriter
from graphs.ids import Attempt, Epoch, TaskId
from recovery.channels import Stored
from recovery.cut import InputRecord, TaskSnapshot
from recovery.effects import TaskRecord

ENCODED_ENTRIES = 2_000
ENCODED_NS = 2_000_000


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """All that makes a snapshot. Calling it puts it together, in any thread, with what was spilled read back."""

    task: TaskId
    epoch: Epoch
    attempt: Attempt
    capture: Capture
    record: TaskRecord

    def __call__(self) -> TaskSnapshot:
        """The snapshot."""
        record, states = self.record, self.capture.states
        inputs = tuple(map(_loaded, record.inputs))
        return TaskSnapshot(
            self.task,
            self.epoch,
            self.attempt,
            states,
            inputs,
            record.outputs,
            record.ended,
            record.rounds,
            record.overtook,
            self.capture.base,
        )


class Snapshotting:
    """Open captures of one task. The key None is its last state.

    - captures: from the capture until it is written. encoded: those of them that are encoded.
    - records: what the core adds, once the log is sealed, with the epoch to file it under; until it is given to the
      writer.
    - files: what the writer said of each snapshot that is written and not yet acknowledged.
    - pieces: how many pieces were encoded in all, so that a slow encoding shows as progress.
    """

    def __init__(self, task: TaskId, attempt: Attempt, writer: SnapshotWriter) -> None:
        self.task = task
        self.attempt = attempt
        self.writer = writer
        self.captures: dict[Epoch | None, Capture] = {}
        self.encoded: set[Epoch | None] = set()
        self.records: dict[Epoch | None, tuple[TaskRecord, Epoch]] = {}
        self.files: dict[Epoch | None, Any] = {}
        self.pieces = 0

    def captured(self, epoch: Epoch | None, capture: Capture) -> None:
        """The state at this moment."""
        self.captures[epoch] = capture

    def to_encode(self) -> list[Epoch | None]:
        """The captures that are not encoded yet, oldest first."""
        return [epoch for epoch in self.captures if epoch not in self.encoded]

    def has_to_encode(self) -> bool:
        """Whether there is a capture that is not encoded yet."""
        return len(self.captures) > len(self.encoded)

    def encode_piece(self, epoch: Epoch | None, entries_max: int) -> bool:
        """Encode a piece of a capture; returns whether it is encoded now."""
        if not self.captures[epoch].encode_some(entries_max):
            return False
        self.encoded.add(epoch)
        self._write_if_complete(epoch)
        return True

    def encode_some(self, clock_ns: Callable[[], int]) -> bool:
        """Encode pieces of the oldest capture for a while; returns whether there was one."""
        for epoch in self.to_encode():
            self.pieces += 1
            until_ns = clock_ns() + ENCODED_NS
            while not self.encode_piece(epoch, ENCODED_ENTRIES) and clock_ns() < until_ns:
                continue
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
        self.writer.discard(self.attempt, epoch, self.task)

    def _write_if_complete(self, epoch: Epoch | None) -> None:
        if epoch not in self.encoded or epoch not in self.records:
            return
        record, captured = self.records.pop(epoch)
        parts = SnapshotParts(
            self.task, captured if epoch is None else epoch, self.attempt, self.captures[epoch], record
        )
        self.writer.write(self.attempt, epoch, self.task, parts)


def _loaded(record: InputRecord) -> InputRecord:
    """The log with its bytes, wherever they are."""
    if not any(isinstance(entry.payload, Stored) for entry in record.log):
        return record
    log = (entry._replace(payload=_bytes(entry.payload)) for entry in record.log)
    return replace(record, log=tuple(log))


def _bytes(payload: bytes | Stored) -> bytes:
    return payload.load() if isinstance(payload, Stored) else payload
