"""A world in which credit is in transit, and may be lost or late (`recovery/protocol/credit.py`)."""

from __future__ import annotations

from typing import Any

from backedge.engine.run.ports import Placed
from backedge.engine.simulation.world.lossy_lines import LinedWorld
from backedge.engine.simulation.world.simulated_store import SimulatedCut
from backedge.engine.simulation.world.world import Happening
from backedge.engine.task.channel_ends import Arrivals
from backedge.graphs.ids import Attempt, ChannelId
from backedge.recovery.protocol.credit import Credit


class WindowedWorld(LinedWorld):
    """`credits` holds the credit messages in transit in the attempt `credits_of`.

    Windows follow the pace of the receivers, and a schedule may change them at any time.
    """

    def __init__(self, *arguments: Any) -> None:
        self.credits_of: Attempt | None = None
        super().__init__(*arguments)

    def restore(self, attempt: Attempt, placed: Placed, cut: SimulatedCut | None) -> None:
        """Restore each task when the schedule says so. Each attempt has new channel ends, which count from 0."""
        super().restore(attempt, placed, cut)
        self.credits_of, self.credits = attempt, {}

    def send_credit(self, attempt: Attempt, channel: ChannelId, credit: Credit) -> None:
        if attempt == self.credits_of:
            self.credits.setdefault(channel, []).append(credit)

    def enabled(self) -> list[Happening]:
        """All events that can happen next. Credit may overtake credit."""
        found = super().enabled()
        for channel, waiting in self.credits.items():
            if waiting:
                found.append(("credit", channel, 0))
            if len(waiting) > 1:
                found.append(("credit", channel, len(waiting) - 1))
        return found

    def _do_credit(self, channel: ChannelId, place: int) -> None:
        credit, host = self.credits[channel].pop(place), self.hosts.get(channel.sender)
        if host is None or not host.is_started or host.attempt != self.credits_of:
            return
        self.counts["late_credit"] += not host.driver.outputs[channel].on_credit(credit)
        host.offers = None

    def windows(self) -> dict[ChannelId, Arrivals]:
        """The receiving ends of all regular channels."""
        hosts = [host for host in self.hosts.values() if host.attempt == self.credits_of]
        ends = {channel: end for host in hosts for channel, end in host.driver.arrivals.items()}
        return {channel: end for channel, end in ends.items() if not end.is_back}

    def _do_window(self, channel: ChannelId, window: int) -> None:
        """A receiver has become faster or slower."""
        end = self.windows()[channel]
        end.window = window
        end.tell_if_due()

    def _do_lose_credit(self, channel: ChannelId, place: int) -> None:
        del self.credits[channel][place]

    def _do_tick(self) -> None:
        super()._do_tick()
        # As with orders: steps are not bound to time, and nothing is repeated while something is in transit.
        for host in self.hosts.values():
            for channel, end in host.driver.arrivals.items():
                if not self.credits.get(channel) and end.repeat_credit(self.now_ms):
                    self.counts["credit_sent_again"] += bool(self.credits.get(channel))
