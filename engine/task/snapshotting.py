"""The snapshots of one task on their way to the store: captured, encoded piece by piece, written, acknowledged.

A capture is kept until its file is written, because a failed write may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backedge.engine.state.capture import Capture
from backedge.engine.task.ports import SnapshotWriter
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, TaskSnapshot
from backedge.recovery.protocol.channels import Stored
from backedge.recovery.protocol.effects import TaskRecord

ENCODED_ENTRIES = 2_000
ENCODED_NS = 2_000_000


class SnapshotParts(Struct, frozen=True):
    """All parts of a snapshot. Calling it, in any thread, reads spilled batches and assembles the snapshot."""

    task: TaskId
    epoch: Epoch
    attempt: Attempt
    capture: Capture
    record: TaskRecord

    def __call__(self) -> TaskSnapshot:
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
    """Open captures of one task, by epoch. The key None stands for the task's last state.

    - captures: those that are not written yet. encoded: the epochs of those that are encoded.
    - records: the core's part of each snapshot and the task's last epoch, from the sealing of the log until the
      snapshot goes to the writer.
    - files: the writer's result for each snapshot that is written but not acknowledged; that of the last state stays.
    - pieces: number of pieces encoded so far, so that a slow encoding shows as progress.
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

    def to_encode(self) -> list[Epoch | None]:
        """Epochs of the captures that are not encoded yet, oldest first."""
        return [epoch for epoch in self.captures if epoch not in self.encoded]

    def has_to_encode(self) -> bool:
        return len(self.captures) > len(self.encoded)

    def encode_piece(self, epoch: Epoch | None, entries_max: int) -> bool:
        """Encode a piece of a capture; return whether that was the last one."""
        if not self.captures[epoch].encode_some(entries_max):
            return False
        self.encoded.add(epoch)
        self._write_if_complete(epoch)
        return True

    def encode_some(self, clock_ns: Callable[[], int]) -> bool:
        """Encode pieces of the oldest capture for a limited time; return whether there was a capture."""
        for epoch in self.to_encode():
            self.pieces += 1
            until_ns = clock_ns() + ENCODED_NS
            while not self.encode_piece(epoch, ENCODED_ENTRIES) and clock_ns() < until_ns:
                continue
            return True
        return False

    def write(self, epoch: Epoch | None, record: TaskRecord, captured: Epoch) -> None:
        """Write a snapshot whose log is sealed as soon as its state is encoded. `captured` is the task's last epoch."""
        self.records[epoch] = record, captured
        self._write_if_complete(epoch)

    def written(self, epoch: Epoch | None, files: Any) -> None:
        """Record that a snapshot is written, and drop its capture with all that is encoded."""
        self.files[epoch] = files
        if (capture := self.captures.pop(epoch, None)) is not None:
            capture.discard()
        self.encoded.discard(epoch)

    def discard(self, epoch: Epoch) -> None:
        """Drop everything that belongs to an aborted epoch."""
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
    """Load the batches of a log into memory."""
    log = (e._replace(payload=e.payload.load()) if isinstance(e.payload, Stored) else e for e in record.log)
    return replace(record, log=tuple(log))
