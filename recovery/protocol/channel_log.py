"""The loop log: the batches that were in a channel at the cut (rule 2).

At the capture of an epoch, the log takes the batches that each logged channel has received before the barrier and not
yet processed; then everything that is received on it until the barrier arrives. Each channel is sealed by its own
barrier. Epochs overlap: a batch goes into every log that is open on its channel.

The policy decides which channels are logged: the back edges under `aligned`; all channels that have not given the
barrier yet under `unaligned`, and in a task that captured past its queues.

The logs of one task in one epoch may have a budget of bytes. A log that exceeds it takes no further batch and is never
written; the task declines the epoch, and the abort that follows drops the log.
"""

from __future__ import annotations

from msgspec import Struct

from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.cut.cut import InputRecord, LogEntry, OutputRecord
from backedge.recovery.protocol.channels import Inbox, Queued
from backedge.recovery.protocol.effects import Report, TaskRecord
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.rounds import RoundsSnapshot


class OpenEpoch(Struct, eq=False):
    """One epoch of one task, from its capture until it is acknowledged.

    - entries, counts: the batches in each logged channel at the cut; a probe only counts them.
    - open: the channels whose barrier has not arrived, each with its inbox. Empty means that the log is sealed.
    - overtook: the task captured before all inputs had given the barrier.
    - log_bytes: the size of all entries. exceeds_budget: it is more than the budget, so the log is not complete.
    - base, keys: since which cut keyed state was captured (None: all of it), and how many entries that is. size: the
      bytes of its files, once they are written.
    """

    epoch: Epoch
    mode: Mode
    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    rounds: RoundsSnapshot | None
    overtook: bool = False
    log_bytes: int = 0
    exceeds_budget: bool = False
    busy: bool = False
    transactions: tuple[str, ...] = ()
    base: Epoch | None = None
    keys: int = 0
    size: int = 0
    entries: dict[ChannelId, list[LogEntry]] = {}
    counts: dict[ChannelId, int] = {}
    open: dict[ChannelId, Inbox] = {}

    def task_record(self, *, ended: bool) -> TaskRecord:
        """The channels at the capture, each with its logged batches."""
        inputs = tuple(
            InputRecord(r.channel, r.is_back, r.consumed, r.digest, tuple(self.entries.get(r.channel, ())), r.ended)
            for r in self.inputs
        )
        return TaskRecord(inputs, self.outputs, ended, self.rounds, self.overtook)

    def report(self) -> Report:
        """The content of the acknowledgement."""
        counts = self.counts if self.mode.is_probe else {c: len(entries) for c, entries in self.entries.items()}
        in_flight = {channel: count for channel, count in counts.items() if count}
        ended = frozenset(record.channel for record in self.inputs if record.ended)
        return Report(in_flight, ended, self.busy, self.transactions, self.base, self.keys, self.size)


class ChannelLogs:
    """The open logs of one task.

    - epochs: the epochs captured here and not acknowledged yet.
    - on: channel -> the logs open on it, with their entries for that channel. An inbox counts its open logs, so a batch
      only looks them up if there are any.
    - budget_bytes: the largest size of a task's logs in one epoch; None means no limit.
    """

    def __init__(self) -> None:
        self.budget_bytes: int | None = None
        self.epochs: dict[Epoch, OpenEpoch] = {}
        self.on: dict[ChannelId, list[tuple[OpenEpoch, list[LogEntry]]]] = {}

    def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
        """Log what is queued on each logged channel; channels whose barrier or END has arrived are sealed at once."""
        self.epochs[log.epoch] = log
        for inbox in logged:
            queued, is_complete = inbox.queued_before(log.epoch, log.mode)
            entries = log.entries[inbox.id] = []
            if log.mode.is_probe:
                log.counts[inbox.id] = len(queued)
            else:
                entries += map(inbox.log_entry, queued)
                if inbox.skip and entries:
                    entries[0] = entries[0]._replace(skip=inbox.skip)
                self._grow(log, sum(len(entry.payload) for entry in entries))
            if not is_complete:
                log.open[inbox.id] = inbox
                self.on.setdefault(inbox.id, []).append((log, entries))
                inbox.open_logs += 1

    def receive(self, inbox: Inbox, queued: Queued) -> list[OpenEpoch]:
        """Add a received batch to every log that is open on its channel; return those that exceed the budget by it."""
        exceeding: list[OpenEpoch] = []
        for log, entries in self.on[inbox.id]:
            if log.mode.is_probe:
                log.counts[inbox.id] += 1
            elif not log.exceeds_budget:
                entry = inbox.log_entry(queued)
                entries.append(entry)
                self._grow(log, len(entry.payload))
                if log.exceeds_budget:
                    exceeding.append(log)
        return exceeding

    def _grow(self, log: OpenEpoch, size: int) -> None:
        """Once the budget is exceeded, the log will not be written, and its entries need no memory any more."""
        log.log_bytes += size
        if self.budget_bytes is not None and log.log_bytes > self.budget_bytes:
            log.exceeds_budget = True
            for entries in log.entries.values():
                entries.clear()

    def seal(self, channel: ChannelId, epoch: Epoch) -> OpenEpoch | None:
        """The barrier has arrived: close the channel; return the log if this was its last open channel."""
        log = self.epochs.get(epoch)
        if log is None or channel not in log.open:
            return None
        return self._close(log, channel)

    def seal_all(self, inbox: Inbox) -> list[OpenEpoch]:
        """END has arrived, which counts as every barrier; return the logs that this completes."""
        done = [self._close(log, inbox.id) for log, _ in self.on.get(inbox.id, ())]
        return [log for log in done if log is not None]

    def _close(self, log: OpenEpoch, channel: ChannelId) -> OpenEpoch | None:
        self._stop(log, log.open.pop(channel))
        return None if log.open else log

    def drop(self, epoch: Epoch) -> bool:
        """Forget an epoch that was aborted or written. Returns whether it was known."""
        log = self.epochs.pop(epoch, None)
        if log is None:
            return False
        for inbox in log.open.values():
            self._stop(log, inbox)
        return True

    def _stop(self, log: OpenEpoch, inbox: Inbox) -> None:
        left = [(other, entries) for other, entries in self.on[inbox.id] if other is not log]
        inbox.open_logs = len(left)
        if left:
            self.on[inbox.id] = left
        else:
            del self.on[inbox.id]
