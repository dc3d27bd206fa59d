"""What the logs of channels hold, and when they are complete (rules 2 and 13)."""

from __future__ import annotations

from typing import Any

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.protocol.channel_log import ChannelLogs, OpenEpoch
from backedge.recovery.protocol.channels import Inbox, Stored
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.task import TaskCore


class _WithLogs(TaskCore):
    logs_class: type[ChannelLogs]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = self.logs_class()


class NoLoopLog(_WithLogs):
    class logs_class(ChannelLogs):
        def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
            # A probe that ignored circulating records would end the run early, which is a different error.
            super().start(log, logged if log.mode.is_probe else [])


class LogWithoutTheQueue(_WithLogs):
    class logs_class(ChannelLogs):
        def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
            super().start(log, logged)
            for entries in log.entries.values():
                entries.clear()


class LogStopsAtFirstBarrier(_WithLogs):
    class logs_class(ChannelLogs):
        def seal(self, channel: ChannelId, epoch: Epoch) -> OpenEpoch | None:
            log = self.epochs.get(epoch)
            sealed = None
            for open_channel in sorted(log.open) if log is not None else ():
                sealed = super().seal(open_channel, epoch)
            return sealed


class LogWithoutEnd(_WithLogs):
    class logs_class(ChannelLogs):
        def seal(self, channel: ChannelId, epoch: Epoch) -> OpenEpoch | None:
            return None


class TruncatedLogWritten(_WithLogs):
    class logs_class(ChannelLogs):
        def _grow(self, log: OpenEpoch, size: int) -> None:
            super()._grow(log, size)
            log.exceeds_budget = False


class SpilledBatchesUnlogged(_WithLogs):
    class logs_class(ChannelLogs):
        def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
            super().start(log, logged)
            for entries in log.entries.values():
                entries[:] = [entry for entry in entries if not isinstance(entry.payload, Stored)]


class PartialBatchDoubled(_WithLogs):
    class logs_class(ChannelLogs):
        def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
            super().start(log, logged)
            for entries in log.entries.values():
                entries[:1] = [entry._replace(skip=0) for entry in entries[:1]]


class PartialBatchLost(_WithLogs):
    class logs_class(ChannelLogs):
        def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
            super().start(log, logged)
            for entries in log.entries.values():
                entries[:1] = [entry for entry in entries[:1] if not entry.skip]


class OvertakesUnlogged(TaskCore):
    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        super()._capture(epoch, mode, effects)


LOGS = {
    "no-loop-log": Break("nothing is logged", core=NoLoopLog),
    "log-without-the-queue": Break("the log misses the batches queued at the capture", core=LogWithoutTheQueue),
    "truncated-log-written": Break("a log that exceeds its budget is written", core=TruncatedLogWritten),
    "log-stops-at-first-barrier": Break("one barrier seals all channels", core=LogStopsAtFirstBarrier),
    "log-without-end": Break("a barrier does not seal its channel", core=LogWithoutEnd),
    "spilled-batches-unlogged": Break("a log misses the batches on disk", core=SpilledBatchesUnlogged),
    "partial-batch-doubled": Break("a log includes the processed records of its first batch", core=PartialBatchDoubled),
    "partial-batch-lost": Break("a log misses the rest of a batch in progress", core=PartialBatchLost),
    "overtakes-unlogged": Break("a task captures past a queue and does not log it", core=OvertakesUnlogged),
}
