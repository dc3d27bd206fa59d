"""Rounds, and cuts between two of them (rule 11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.protocol.channels import Inbox, Queued
from backedge.recovery.protocol.coordinator import Coordinator, OpenCut
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.iteration import Iteration
from backedge.recovery.protocol.messages import Barrier, Mode, marker_in
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.task import TaskCore


class HoldAtRoundMarkers(TaskCore):
    """Has no patience, which would let the epoch complete without the round that it waits for."""

    def on_tick(self, now_ms: int) -> Sequence[Effect]:
        self.alignment.deadlines.clear()
        return super().on_tick(now_ms)

    def _hold(self, inbox: Inbox, barrier: Barrier) -> None:
        if not self._is_ahead(inbox):
            super()._hold(inbox, barrier)

    def _proceed(self, effects: list[Effect]) -> Sequence[Effect]:
        self._settle(self.inboxes.values(), effects)
        return super()._proceed(effects)

    def ready(self) -> list[ChannelId]:
        return [channel for channel in super().ready() if not self._is_ahead(self.inboxes[channel])]

    def _is_ahead(self, inbox: Inbox) -> bool:
        """Whether what comes next belongs to a later round."""
        rounds, live = self.rounds, inbox.live_id
        return rounds is not None and (live in rounds.aside or not rounds.is_readable(live))


class _WilfulIteration(Iteration):
    def takes_request(self, epoch: Epoch) -> bool:
        takes = super().takes_request(epoch)
        if takes:
            self.requested_cut = None
            self.rounds.cut_after = epoch
        return takes


class HeadsChooseTheCut(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.rounds is not None:
            self.iteration = _WilfulIteration(self.task, self.rounds, self.outlets.values(), self.alignment)


class EarlyBarrierDeclined(TaskCore):
    """Declines a cut between two rounds whose barrier comes back before this head's own capture."""

    def _decline_in_a_round(self, effects: list[Effect]) -> None:
        if self.rounds is not None and self.rounds.is_in_a_round():
            for epoch in set(self.alignment.held.values()):
                if self.alignment.modes[epoch] is Mode.BETWEEN_ROUNDS:
                    self._decline_between_rounds(epoch, effects)


class RequestOutlivesItsAttempt(TaskCore):
    def _take_back(self, restored: TaskRestore) -> None:
        super()._take_back(restored)
        for inbox in self.inboxes.values():
            if inbox.id.restored:
                inbox.queue = deque(_with_request(item) if isinstance(item, Queued) else item for item in inbox.queue)
        if self.rounds is not None:
            self.rounds.aside = {c: deque(map(_with_request, waiting)) for c, waiting in self.rounds.aside.items()}


class ProbeOvertakesACutBetweenRounds(Coordinator):
    def _delays_probes(self, cut: OpenCut) -> bool:
        return cut.mode.is_probe


def _with_request(queued: Queued) -> Queued:
    return queued._replace(marker=marker_in(queued.payload))


ROUNDS = {
    "hold-at-round-markers": Break("a channel that is ahead is held", core=HoldAtRoundMarkers),
    "heads-choose-the-cut-between-rounds": Break("each head cuts after a round of its own", core=HeadsChooseTheCut),
    "early-barrier-declined": Break(
        "a head declines a cut that it only had to wait for", core=EarlyBarrierDeclined, topology="rounds_in_lanes"
    ),
    "request-outlives-its-attempt": Break(
        "a restored marker requests a cut that the coordinator does not know", core=RequestOutlivesItsAttempt
    ),
    "probe-overtakes-a-cut-between-rounds": Break(
        "a probe begins while a cut between two rounds is open",
        coordinator=ProbeOvertakesACutBetweenRounds,
        topology="rounds_beside_loops",
    ),
}
