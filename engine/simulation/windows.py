"""A world in which regular channels are bounded by credit, which may be lost or late on its way (`recovery/credit.py`).

Sizes are batches. The schedule changes windows at any time; how they follow the pace is no matter of the protocol.
"""

from __future__ import annotations

from typing import Any

from engine.simulation.host import Host
from engine.simulation.lossy_lines import LinedWorld
from engine.simulation.world import Happening
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.credit import Allowance, Credit, Grant, Room
from recovery.messages import Barrier, Data, Item
from recovery.orders import Abort, Complete, Order

REPEAT_MS = 60
NEEDS_ROOM = ("take", "part", "produce")


class WindowedWorld(LinedWorld):
    """`allowances` are the senders' ends of the channels of one attempt, `grants` the receivers'.

    `credits` holds the messages of credit that are on their way. Windows start as `options.window`; None: no channel is
    ever full.
    """

    def __init__(self, *arguments: Any) -> None:
        self.windows_of: Attempt | None = None
        self.allowances: dict[ChannelId, Allowance] = {}
        self.grants: dict[ChannelId, Grant] = {}
        self.rooms: dict[TaskId, Room] = {}
        self.credits: dict[ChannelId, list[Credit]] = {}
        super().__init__(*arguments)

    def _place(self, attempt: Attempt, epoch: Epoch | None, unpublished: tuple[str, ...]) -> None:
        """Each attempt has new ends: what they counted in another one is no matter."""
        super()._place(attempt, epoch, unpublished)
        window = self.options.window
        if window is None:
            return
        self.windows_of = attempt
        channels = self.deployment.channels.values()
        self.allowances = {channel.id: Allowance(window) for channel in channels}
        self.grants = {channel.id: self.parts.grant(window, REPEAT_MS) for channel in channels}
        self.rooms = {task: self.parts.room() for task in self.deployment.tasks}
        self.credits = {}
        for channel in channels:
            self.rooms[channel.id.sender].add(channel, self.allowances[channel.id])

    # -- the sender's side ---------------------------------------------------------------------------------------

    def send(self, attempt: Attempt, channel: ChannelId, item: Item) -> None:
        """Put something on the wire, and count it."""
        super().send(attempt, channel, item)
        if attempt != self.windows_of:
            return
        if isinstance(item, Data):
            self.allowances[channel].sent += 1
        elif isinstance(item, Barrier):
            self.rooms[channel.sender].on_sent(item)

    def _opened_order(self, host: Host, message: Any, *, is_abort: bool = False) -> Order | None:
        order = super()._opened_order(host, message, is_abort=is_abort)
        if isinstance(order, Abort | Complete) and host.attempt == self.windows_of:
            self.rooms[host.id].on_over(order.epoch)
        return order

    def _enabled_at(self, task: TaskId, host: Host) -> list[Happening]:
        found = super()._enabled_at(task, host)
        if host.attempt != self.windows_of:
            return found
        room = self.rooms[task]
        if room.is_full():
            possible = [event for event in found if event[0] not in NEEDS_ROOM]
            self.counts["full_channels"] += len(possible) < len(found)
            return possible
        if room.drain is not None:
            return [event for event in found if event[0] != "produce"]
        return found

    def enabled(self) -> list[Happening]:
        """Everything that can happen next. Credit may overtake credit."""
        found = super().enabled()
        for channel, waiting in self.credits.items():
            if waiting:
                found.append(("credit", channel, 0))
            if len(waiting) > 1:
                found.append(("credit", channel, len(waiting) - 1))
        return found

    def _do_credit(self, channel: ChannelId, place: int) -> None:
        credit, allowance = self.credits[channel].pop(place), self.allowances[channel]
        self.counts["late_credit"] += credit.number < allowance.number
        if allowance.on_credit(credit) and channel.sender in self.hosts:
            self.hosts[channel.sender].offers = None

    # -- the receiver's side -------------------------------------------------------------------------------------

    def _do_take(self, task: TaskId, channel: ChannelId) -> None:
        consumed = self.hosts[task].core.inboxes[channel].consumed
        super()._do_take(task, channel)
        self._on_taken(task, channel, consumed)

    def _do_part(self, task: TaskId, channel: ChannelId) -> None:
        consumed = self.hosts[task].core.inboxes[channel].consumed
        super()._do_part(task, channel)
        self._on_taken(task, channel, consumed)

    def _on_taken(self, task: TaskId, channel: ChannelId, before: int) -> None:
        host, grant = self.hosts[task], self.grants.get(channel)
        if grant is not None and host.attempt == self.windows_of:
            grant.consumed += host.core.inboxes[channel].consumed - before
            self._say_if_due(channel, grant)

    def _do_window(self, channel: ChannelId, window: int) -> None:
        """A receiver has become faster or slower."""
        self.grants[channel].window = window
        self._say_if_due(channel, self.grants[channel])

    def _say_if_due(self, channel: ChannelId, grant: Grant) -> None:
        if grant.is_due():
            self.credits.setdefault(channel, []).append(grant.say())

    def _do_lose_credit(self, channel: ChannelId, place: int) -> None:
        del self.credits[channel][place]

    def _do_tick(self) -> None:
        super()._do_tick()
        # As with orders: steps are not bound to time, and nothing is repeated while something is on its way.
        for channel, grant in self.grants.items():
            if not self.credits.get(channel) and channel.receiver in self.hosts and grant.repeats_at(self.now_ms):
                self.credits.setdefault(channel, []).append(grant.say())
                self.counts["credit_sent_again"] += 1
