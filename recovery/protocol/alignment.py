"""Decides when a task captures: which channels are held, which epochs are over (rules 1, 3 and 4).

- A regular channel whose barrier has arrived is held until every live regular channel has given the same barrier.
- A channel that has ended counts as having given every barrier.
- The coordinator's trigger is a regular input of every source and every loop head.
- A head does not wait for its back edges: only its own barrier can bring a barrier back. If one comes back before the
  head has captured, its channel is held as well: nothing behind it may be processed.
- An abort is never held up. It may come before, between or after trigger and barriers; an aborted epoch is never
  captured, and its later barriers are consumed without effect.
- An aligned epoch may have a patience: once the trigger or the first barrier is received, the task waits that long for
  the barriers behind the queues of its other inputs. Then it captures past the queues. The driver passes in the time.
  Cuts between two rounds and probes have no patience.
- Epoch numbers only increase; gaps are legal, so nothing may wait for the last number plus one.

Bookkeeping is per barrier, never per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.protocol.messages import Mode


class Alignment:
    """Barriers, triggers and aborts of one task."""

    def __init__(self, needs_trigger: bool) -> None:
        self.needs_trigger = needs_trigger
        self.held: dict[ChannelId, Epoch] = {}
        self.modes: dict[Epoch, Mode] = {}
        # Epoch -> the cut since which it writes what changed, from its first trigger or barrier until its capture.
        self.bases: dict[Epoch, Epoch] = {}
        # The time (`now_ms`) until which this task waits for its inputs.
        self.deadlines: dict[Epoch, int] = {}
        self.triggered: set[Epoch] = set()
        self.aborted: dict[bool, set[Epoch]] = {False: set(), True: set()}
        self.captured: dict[bool, Epoch] = {False: Epoch(0), True: Epoch(0)}

    def is_over(self, epoch: Epoch, mode: Mode) -> bool:
        """Whether the epoch was captured or aborted here, so that its barriers have no further effect."""
        return epoch <= self.captured[mode.is_probe] or epoch in self.aborted[mode.is_probe]

    def hold(self, channel: ChannelId, epoch: Epoch, mode: Mode) -> None:
        """Hold the channel: the barrier of an epoch that is not over is at its front."""
        self.held[channel] = epoch
        self.modes[epoch] = mode

    def expect(self, epoch: Epoch, mode: Mode, patience_ms: int | None, now_ms: int) -> None:
        """Start the patience: the trigger or a barrier was received, perhaps behind a long queue."""
        if patience_ms is None or mode is not Mode.ALIGNED or self.is_over(epoch, mode):
            return
        due_ms = now_ms + patience_ms
        self.deadlines[epoch] = min(due_ms, self.deadlines.get(epoch, due_ms))
        self.modes[epoch] = mode

    def overdue(self, now_ms: int) -> list[Epoch]:
        """The epochs to capture past the queues now, lowest first: those out of patience, and any before them."""
        last = max((epoch for epoch, due_ms in self.deadlines.items() if due_ms <= now_ms), default=None)
        return [] if last is None else sorted(epoch for epoch in self.deadlines if epoch <= last)

    def patience_left_ms(self, epoch: Epoch, now_ms: int) -> int | None:
        """The patience left for the next task; None if the epoch has none."""
        due_ms = self.deadlines.get(epoch)
        return None if due_ms is None else max(0, due_ms - now_ms)

    def name_base(self, epoch: Epoch, mode: Mode, base: Epoch | None) -> None:
        """The trigger or a barrier names the base of the epoch."""
        if base is not None and not self.is_over(epoch, mode):
            self.bases[epoch] = base

    def trigger(self, epoch: Epoch, mode: Mode) -> None:
        """The coordinator starts the epoch here."""
        if not self.is_over(epoch, mode):
            self.triggered.add(epoch)
            self.modes[epoch] = mode

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is under way here: neither triggered nor started by a barrier."""
        return not self.held and not self.triggered

    def due(self, live_regular: Iterable[ChannelId]) -> Epoch | None:
        """The epoch that can be captured now, the lowest if there are several."""
        live = list(live_regular)
        candidates = self.triggered.union(self.held[channel] for channel in live if channel in self.held)
        for epoch in sorted(candidates):
            if self.needs_trigger and epoch not in self.triggered:
                continue
            if all(self.held.get(channel) == epoch for channel in live):
                return epoch
        return None

    def capture(self, epoch: Epoch, mode: Mode) -> list[ChannelId]:
        """Record the capture; return the channels that it releases."""
        self.captured[mode.is_probe] = epoch
        self.aborted[mode.is_probe] = {e for e in self.aborted[mode.is_probe] if e > epoch}
        if not mode.is_probe:
            self.bases = {e: base for e, base in self.bases.items() if e > epoch}
        return self._forget(lambda e, m: e == epoch or (m.is_probe == mode.is_probe and e < epoch))

    def abort(self, epoch: Epoch, mode: Mode) -> list[ChannelId]:
        """Record the abort, which may be repeated; return the channels that it releases."""
        if not self.is_over(epoch, mode):
            self.aborted[mode.is_probe].add(epoch)
            self.bases.pop(epoch, None)
        return self._forget(lambda e, m: e == epoch)

    def _forget(self, is_past: Callable[[Epoch, Mode], bool]) -> list[ChannelId]:
        past = {epoch for epoch, mode in self.modes.items() if is_past(epoch, mode)}
        released = [channel for channel, epoch in self.held.items() if epoch in past]
        for channel in released:
            del self.held[channel]
        for epoch in past:
            del self.modes[epoch]
            self.deadlines.pop(epoch, None)
        self.triggered -= past
        return released
