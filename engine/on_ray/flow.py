"""Channels as an actor sees them: where they lead, and how much may be on the way in them (rule 9).

- A regular channel is bounded by credit: a task takes nothing, while one of the channels that it sends into is full.
  It goes on receiving, so that barriers, ENDs and control, which need no credit, are never kept from it.
- A back edge is never full: what the receiver cannot take yet waits at the sender, in memory and then on disk, and
  what it has no time for waits at the receiver in the same way.
- Between tasks of one actor a channel is a queue; its batches go by reference.
- Credit says how much was consumed in all, so one message that arrives makes up for any that were lost, and one that is
  late does no harm. It is repeated, at first every 250 ms and then more rarely, for nobody can know what was lost.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.batch import encode
from engine.on_ray.frames import pack_credit, pack_item
from engine.on_ray.mailbox import Link
from engine.on_ray.spill import Spilled, SpillSpace
from graphs.deployment import Channel
from graphs.ids import Attempt, ChannelId
from recovery.channels import Inbox
from recovery.messages import Data, Item

LOCAL_RECORD_BYTES = 64
REPEAT_MS, REPEAT_MS_MAX = 250, 8_000

Delivery = tuple[ChannelId, Item]


class LocalChannel:
    """A channel to a task of the same actor, with the same bound as one to another actor.

    It must hold more than a turn's batches: while its receiver waits for a barrier on another channel, the sender goes
    on for those whom else it sends to.
    """

    __slots__ = ("_arrivals", "_bytes_max", "_deliveries", "id", "is_local")

    def __init__(self, channel: Channel, deliveries: deque[Delivery], arrivals: Arrivals, bytes_max: int) -> None:
        self.id = channel.id
        self.is_local = True
        self._deliveries = deliveries
        self._arrivals = arrivals
        self._bytes_max = bytes_max

    def send(self, item: Item) -> None:
        """Put it into the queue."""
        self._deliveries.append((self.id, item))

    def is_full(self) -> bool:
        """Whether nothing more should be sent for now."""
        return self._arrivals.bytes_waiting >= self._bytes_max


class RemoteChannel:
    """A regular channel to a task of another actor. The receiver tells how much it has consumed."""

    __slots__ = ("_attempt", "_consumed", "_index", "_link", "_sent", "_window", "id", "is_local")

    def __init__(self, channel: Channel, index: int, attempt: Attempt, link: Link, credit_bytes: int) -> None:
        self.id = channel.id
        self.is_local = False
        self._index = index
        self._attempt = attempt
        self._link = link
        self._window = credit_bytes
        self._sent = 0
        self._consumed = 0

    def send(self, item: Item) -> None:
        """Put it on the wire."""
        if type(item) is Data:
            self._sent += len(item.payload)
        self._link.post(pack_item(self._attempt, self._index, item))

    def is_full(self) -> bool:
        """Whether nothing more should be sent for now."""
        return self._sent - self._consumed >= self._window

    def give_credit(self, bytes_consumed: int) -> None:
        """The receiver has consumed so much in all. What arrives late says less than is known."""
        self._consumed = max(self._consumed, bytes_consumed)


class RemoteBackEdge(RemoteChannel):
    """A back edge to a task of another actor: never full.

    The receiver gives credit back for what it has received. What it has not had time to receive waits here: in memory,
    and on disk beyond `memory_bytes_max`.
    """

    __slots__ = ("_memory", "_space", "_waiting", "_waiting_bytes")

    def __init__(
        self,
        channel: Channel,
        index: int,
        attempt: Attempt,
        link: Link,
        credit_bytes: int,
        memory_bytes_max: int,
        space: SpillSpace,
    ) -> None:
        super().__init__(channel, index, attempt, link, credit_bytes)
        self._memory = memory_bytes_max
        self._space = space
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0

    def send(self, item: Item) -> None:
        """Put it on the wire, or behind what waits for that."""
        if not self._waiting and not super().is_full():
            super().send(item)
            return
        if type(item) is Data:
            if self._waiting_bytes + len(item.payload) > self._memory:
                item = item._replace(payload=self._space.store(item.payload))
            else:
                self._waiting_bytes += len(item.payload)
        self._waiting.append(item)

    def is_full(self) -> bool:
        """Never: a loop must not wait for itself."""
        return False

    def give_credit(self, bytes_consumed: int) -> None:
        """The receiver has received so much in all: what waits goes on its way."""
        super().give_credit(bytes_consumed)
        while self._waiting and not super().is_full():
            item = self._waiting.popleft()
            if type(item) is Data:
                if isinstance(item.payload, Spilled):
                    item = item._replace(payload=item.payload.load())
                else:
                    self._waiting_bytes -= len(item.payload)
            super().send(item)


OutChannel = LocalChannel | RemoteChannel


class Arrivals:
    """What has been received on one channel and not yet consumed, in bytes.

    Gives credit where there is a link for it: for what was consumed on a regular channel, for what was received on a
    back edge. On a back edge what exceeds `memory_bytes_max` is put on disk.
    """

    __slots__ = (
        "_attempt",
        "_consumed",
        "_index",
        "_link",
        "_memory",
        "_repeat_at_ms",
        "_repeat_ms",
        "_repeated",
        "_sizes",
        "_space",
        "_told",
        "_total",
        "_window",
        "bytes_waiting",
        "inbox",
    )

    def __init__(
        self,
        inbox: Inbox,
        attempt: Attempt,
        index: int,
        link: Link | None,
        credit_bytes: int,
        memory_bytes_max: int,
        space: SpillSpace,
    ) -> None:
        self.inbox = inbox
        self.bytes_waiting = 0
        self._sizes: deque[int] = deque()
        self._consumed = inbox.consumed
        self._attempt = attempt
        self._index = index
        self._link = link
        self._total = self._told = self._repeated = 0
        self._repeat_at_ms, self._repeat_ms = 0, REPEAT_MS
        self._window = credit_bytes // 4
        self._memory = memory_bytes_max
        self._space = space
        if inbox.is_back:
            inbox.store = self._store

    def _store(self, payload: Any) -> Any:
        """What is kept in place of a payload that has just been received."""
        if self.bytes_waiting <= self._memory:
            return payload
        return self._space.store(payload if isinstance(payload, bytes) else encode(payload))

    def on_received(self, payload: Any) -> None:
        """One batch has arrived."""
        size = len(payload) if isinstance(payload, bytes) else LOCAL_RECORD_BYTES * len(payload)
        self._sizes.append(size)
        self.bytes_waiting += size
        if self._link is not None and self.inbox.is_back:
            self._owe(size)

    def on_consumed(self) -> None:
        """Some batches may have been taken."""
        size = 0
        while self._consumed < self.inbox.consumed:
            self._consumed += 1
            size += self._sizes.popleft()
        self.bytes_waiting -= size
        if self._link is not None and not self.inbox.is_back:
            self._owe(size)

    def _owe(self, size: int) -> None:
        self._total += size
        if self._total - self._told > self._window:
            self._tell()

    def repeat_credit(self, now_ms: int) -> None:
        """Say it again, in case it was lost: while there is news whenever this is called, then more and more rarely."""
        if self._link is None or not self._total:
            return
        if self._total != self._repeated:
            self._repeated, self._repeat_ms = self._total, REPEAT_MS
        elif now_ms < self._repeat_at_ms:
            return
        self._repeat_at_ms = now_ms + self._repeat_ms
        self._repeat_ms = min(2 * self._repeat_ms, REPEAT_MS_MAX)
        self._tell()

    def _tell(self) -> None:
        if self._link is not None:
            self._link.post(pack_credit(self._attempt, self._index, self._total))
            self._told = self._total
