"""When tasks hold their inputs and capture (rules 1 and 3 to 5), and past their queues (rule 13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.protocol.alignment import Alignment
from backedge.recovery.protocol.channels import Inbox
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Effect, Send
from backedge.recovery.protocol.messages import Barrier, Mode
from backedge.recovery.protocol.task import NOTHING, TaskCore


class NoHoldBeforeCapture(TaskCore):
    def _hold(self, inbox: Inbox, barrier: Barrier) -> None:
        super()._hold(inbox, barrier)
        inbox.queue.remove(barrier)


class _WithAlignment(TaskCore):
    alignment_class: type[Alignment]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alignment = self.snapshots.alignment = self.alignment_class(self.alignment.needs_trigger)
        if self.iteration is not None:
            self.iteration.alignment = self.alignment


class CaptureBeforeAlignment(_WithAlignment):
    class alignment_class(Alignment):
        def due(self, live_regular: Iterable[ChannelId]) -> Epoch | None:
            live = [channel for channel in live_regular if channel in self.held]
            return super().due(live) if live or self.needs_trigger else None


class AbortIgnored(TaskCore):
    def on_abort(self, epoch: Epoch, mode: Mode) -> Sequence[Effect]:
        return NOTHING


class DuplicateBarrier(TaskCore):
    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        super()._capture(epoch, mode, effects, overtakes)
        effects += [e for e in effects if isinstance(e, Send) and isinstance(e.item, Barrier) and e.item.epoch == epoch]


class EndNotCountedAsBarrier(TaskCore):
    def _live_regular(self) -> list[ChannelId]:
        return [inbox.id for inbox in self.inboxes.values() if not inbox.is_back]


class WallClockCore(TaskCore):
    def on_trigger(
        self,
        epoch: Epoch,
        mode: Mode,
        patience_ms: int | None = None,
        base: Epoch | None = None,
    ) -> Sequence[Effect]:
        if mode.is_probe or self.ended or self.alignment.is_over(epoch, mode):
            return super().on_trigger(epoch, mode, patience_ms, base)
        effects: list[Effect] = []
        self._capture(epoch, mode, effects)
        return self._proceed(effects)


class WallClockCoordinator(Coordinator):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.senders = {}


class _BlockingAlignment(Alignment):
    def __init__(self, core: BlockingVariant) -> None:
        super().__init__(core.task.is_source or core.task.is_head)
        self.core = core

    def due(self, live_regular: Iterable[ChannelId]) -> Epoch | None:
        epoch = super().due(live_regular)
        if epoch is None or epoch not in self.core.sent_on:
            return epoch
        back = [inbox for inbox in self.core.inboxes.values() if inbox.is_back and not inbox.ended]
        return epoch if all(self.held.get(inbox.id) == epoch for inbox in back) else None


class BlockingVariant(TaskCore):
    """The head sends its barrier on, keeps its outside inputs blocked, processes the loop, and captures when the
    barrier returns, without a log. The literature describes this. It loses records that the body sent before its own
    capture and that the head sent on before the barrier returned.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent_on: set[Epoch] = set()
        self.alignment = self.snapshots.alignment = _BlockingAlignment(self)

    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        if not self.task.is_head or self.iteration is not None or mode is not Mode.ALIGNED or overtakes:
            super()._capture(epoch, mode, effects, overtakes)
            return
        if epoch not in self.sent_on:
            self.sent_on.add(epoch)
            effects += [Send(o.id, Barrier(epoch, mode, o.sent, o.digest)) for o in self.outlets.values()]
            return
        captured: list[Effect] = []
        super()._capture(epoch, mode, captured)
        effects += [e for e in captured if not (isinstance(e, Send) and isinstance(e.item, Barrier))]


class OvertakenBarrierCapturesAgain(_WithAlignment):
    class alignment_class(Alignment):
        def overdue(self, now_ms: int) -> list[Epoch]:
            epochs = super().overdue(now_ms)
            self.overtaken = set(epochs)
            return epochs

        def capture(self, epoch: Epoch, mode: Mode) -> list[ChannelId]:
            before = self.captured[mode.is_probe]
            released = super().capture(epoch, mode)
            overtaken: set[Epoch] = getattr(self, "overtaken", set[Epoch]())
            if epoch in overtaken:
                overtaken.remove(epoch)
                self.captured[mode.is_probe] = before
            return released


class Patient(TaskCore):
    def on_tick(self, now_ms: int) -> Sequence[Effect]:
        return NOTHING


ALIGNMENT = {
    "no-hold-before-capture": Break("a channel is read past its barrier", core=NoHoldBeforeCapture),
    "capture-before-alignment": Break("a task captures at the first barrier", core=CaptureBeforeAlignment),
    "abort-ignored": Break("a task keeps holding channels for an aborted epoch", core=AbortIgnored),
    "duplicate-barrier": Break("a barrier is sent twice", core=DuplicateBarrier),
    "end-not-counted-as-barrier": Break(
        "a task waits for the barrier of an ended channel", core=EndNotCountedAsBarrier
    ),
    "wall-clock-capture": Break(
        "tasks capture at an agreed time", core=WallClockCore, coordinator=WallClockCoordinator
    ),
    "blocking-variant": Break("the head captures when its barrier returns", core=BlockingVariant),
    "overtaken-barrier-captures-again": Break("a barrier takes effect twice", core=OvertakenBarrierCapturesAgain),
    "waits-behind-a-queue": Break("a barrier waits until its queue is done", core=Patient),
}
