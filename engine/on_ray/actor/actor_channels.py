"""The channels of an actor's tasks: a queue between those of this actor, links to the other actors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from backedge.engine.on_ray.transport.control_messages import Begin
from backedge.engine.on_ray.transport.frames import pack_credit, pack_item, unpack_credit
from backedge.engine.on_ray.transport.mailbox import Link, Mailbox
from backedge.engine.task.channel_ends import Arrivals, SendCredit, SendItem
from backedge.engine.task.driver import TaskDriver
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.messages import Item

GOING_ROUND_BATCHES = 2

Receive = Callable[[Item], None]


class ActorChannels:
    """The ways of items and of credit, for the drivers of the tasks.

    - links: the links to the other actors. peers: those that tasks of this actor send to.
    - index_of: the index of each channel, by which messages name it.
    - receiving: what receives the items of a channel, by its index; deliveries: items between tasks of this actor that
      are not yet received. going_round: the receiving ends of the loops within this actor.
    """

    def __init__(self, begin: Begin, mailbox: Mailbox, links: Mapping[str, Link]) -> None:
        self.links = links
        self.receiving: dict[int, Receive] = {}
        self.deliveries: deque[tuple[Receive, Item]] = deque()
        self.going_round: list[Arrivals] = []
        self._attempt = begin.attempt
        self._mailbox = mailbox
        self._channels: list[Channel] = list(begin.deployment.channels.values())
        self.index_of = {channel.id: index for index, channel in enumerate(self._channels)}
        self._actors = {id: task.actor for id, task in begin.deployment.tasks.items()}
        self.peers = {
            self._actors[channel.id.receiver]
            for channel in self._channels
            if self._actors[channel.id.sender] == begin.actor
        }
        self._drivers: Mapping[TaskId, TaskDriver] = {}

    def connect(self, drivers: Mapping[TaskId, TaskDriver]) -> None:
        self._drivers = drivers
        self.receiving = {
            index: partial(drivers[channel.id.receiver].receive, channel.id, self._attempt)
            for index, channel in enumerate(self._channels)
            if channel.id.receiver in drivers
        }
        self.going_round = [
            driver.arrivals[channel.id]
            for driver in drivers.values()
            for channel in driver.core.task.inputs
            if channel.is_back and channel.within_actor
        ]
        for driver in drivers.values():
            driver.connect()

    def way(self, channel: Channel) -> SendItem:
        """The way into the queue of this actor, or over the network to another one."""
        index, attempt = self.index_of[channel.id], self._attempt
        if channel.within_actor:
            deliver, receive = self.deliveries.append, self.receiving[index]
            return lambda item: deliver((receive, item))
        post = self.links[self._actors[channel.id.receiver]].post
        return lambda item: post(pack_item(attempt, index, item))

    def credit_way(self, channel: Channel) -> SendCredit | None:
        """The way over the network to the sender's actor."""
        if channel.within_actor:
            return None
        index, attempt = self.index_of[channel.id], self._attempt
        post = self.links[self._actors[channel.id.sender]].post
        return lambda credit: post(pack_credit(attempt, index, credit))

    def receiving_end(self, channel: Channel) -> Arrivals:
        return self._drivers[channel.id.receiver].arrivals[channel.id]

    def on_credit(self, index: int, number: int, payload: bytes) -> None:
        channel = self._channels[index].id
        self._drivers[channel.sender].outputs[channel].on_credit(unpack_credit(number, payload))

    def deliver(self) -> None:
        """Let the tasks of this actor receive each other's messages."""
        deliveries = self.deliveries
        while deliveries:
            receive, item = deliveries.popleft()
            receive(item)

    def flush(self) -> None:
        self._mailbox.flush()

    def is_going_round(self) -> bool:
        # Most actors have no loop of their own: a loop is faster than a generator.
        for arrivals in self.going_round:  # noqa: SIM110
            if arrivals.batches_waiting() >= GOING_ROUND_BATCHES:
                return True
        return False
