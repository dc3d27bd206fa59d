"""The way from a capture to its acknowledgement: what a task has captured and not yet acknowledged (rules 5 and 7).

- A snapshot is written when its log is sealed, and acknowledged when it is written. A probe is acknowledged when its
  log is sealed, because it is counted, not stored.
- The last state of an ended task acknowledges every epoch that the task had not captured. It is reported again whenever
  an epoch is aborted, in case the report was lost.
- A head ends before its loop does. Its last state stands for an epoch only once every back edge has given its barrier,
  or END: only then is it certain that everything sent was received, and that no on_end hook in the loop has sent
  anything back. It is reported again whenever it stands for more epochs.
- Completing an epoch discards earlier open epochs. Discarding removes files; prepared transactions stay.
"""

from __future__ import annotations

from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.alignment import Alignment
from backedge.recovery.protocol.channel_log import ChannelLogs, OpenEpoch
from backedge.recovery.protocol.effects import (
    Acknowledge,
    AcknowledgeEnd,
    Commit,
    Committed,
    Decline,
    Discard,
    Effect,
    Write,
)
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.protocol_errors import ProtocolError


class Snapshots:
    """The open epochs of one task, and its last state."""

    def __init__(self, task: TaskId, logs: ChannelLogs, alignment: Alignment) -> None:
        self.task = task
        self.logs = logs
        self.alignment = alignment
        self.last: OpenEpoch | None = None
        self.last_is_durable = False
        # The epoch and the probe up to which the inputs are known to be complete; None means to their ends.
        self.verified: tuple[Epoch, Epoch] | None = None

    def seal(self, log: OpenEpoch) -> list[Effect]:
        """Every logged channel has given its barrier."""
        if log.exceeds_budget:
            return []
        if log.mode.is_probe:
            self.logs.drop(log.epoch)
            return [Acknowledge(log.epoch, log.report())]
        return [Write(log.epoch, log.task_record(ended=False))]

    def end_with(self, last: OpenEpoch) -> list[Effect]:
        """The task has ended, in this state."""
        self.last = last
        return [Write(None, last.task_record(ended=True))]

    def on_captured(self, epoch: Epoch | None, transactions: tuple[str, ...], base: Epoch | None, keys: int) -> None:
        """The operators' state is captured, and these transactions are prepared.

        `base` is the cut since which keyed state was captured, None if all was; `keys` how many entries that is.
        """
        captured = self._last_state() if epoch is None else self.logs.epochs.get(epoch)
        if captured is None:
            raise ProtocolError(f"task {self.task}: epoch {epoch} is not open, so its state cannot be captured")
        captured.transactions = transactions
        captured.base, captured.keys = base, keys

    def on_written(self, epoch: Epoch | None, size: int) -> list[Effect]:
        """The files are durable; those with keyed state have `size` bytes."""
        if epoch is None:
            self._last_state().size = size
            self.last_is_durable = True
            return self._acknowledge_end()
        written = self.logs.epochs.get(epoch)
        if written is None:
            return [Discard(epoch)]
        if written.open:
            raise ProtocolError(f"task {self.task}: the log of epoch {epoch} is not sealed, so it cannot be durable")
        self.logs.drop(epoch)
        written.size = size
        return [Acknowledge(epoch, written.report())]

    def on_write_failed(self, epoch: Epoch | None, reason: str) -> list[Effect]:
        if epoch is None:
            return [Write(None, self._last_state().task_record(ended=True))]
        return [Discard(epoch), Decline(epoch, reason)] if self.logs.drop(epoch) else [Discard(epoch)]

    def on_abort(self, epoch: Epoch, mode: Mode) -> list[Effect]:
        effects: list[Effect] = []
        self.logs.drop(epoch)
        if epoch <= self.alignment.captured[mode.is_probe] and not mode.is_probe:
            effects.append(Discard(epoch))
        return effects + self._acknowledge_end()

    def on_verified(self, verified: tuple[Epoch, Epoch] | None) -> list[Effect]:
        """The inputs of an ended task are known to be complete up to this epoch and probe."""
        if verified == self.verified:
            return []
        self.verified = verified
        return self._acknowledge_end()

    def on_complete(self, epoch: Epoch, names: tuple[str, ...]) -> list[Effect]:
        """The cut is complete, and lists these transactions of the task."""
        earlier = [log.epoch for log in self.logs.epochs.values() if log.epoch < epoch and not log.mode.is_probe]
        for open_epoch in earlier:
            self.logs.drop(open_epoch)
        return [*(Discard(open_epoch) for open_epoch in earlier), Commit(epoch, names) if names else Committed(epoch)]

    def _last_state(self) -> OpenEpoch:
        if self.last is None:
            raise ProtocolError(f"task {self.task} has not ended, so it has no last state")
        return self.last

    def _acknowledge_end(self) -> list[Effect]:
        if not self.last_is_durable:
            return []
        captured = self.alignment.captured
        return [AcknowledgeEnd(self._last_state().report(), captured[False], captured[True], self.verified)]
