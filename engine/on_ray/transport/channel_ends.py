"""Channels as an actor sees them: where they lead, and how much is on its way in them (`recovery/credit.py`, rule 9).

- A task that has no room goes on receiving, so that barriers, ENDs and control are never kept from it.
- A back edge is never full: what the receiver cannot take yet waits at the sender, in memory and then on disk, and
  what it has no time for waits at the receiver in the same way.
- Between tasks of one actor a channel is a queue; its batches go by reference. Its window is the receiver's.
- A batch is at most half a window. Its sender splits it, and knows how large records are from those that it has sent.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.batch import encode
from engine.on_ray.transport.frames import pack_credit, pack_item
from engine.on_ray.transport.mailbox import Link
from engine.on_ray.transport.spill_space import Spilled, SpillSpace
from graphs.deployment import Channel
from graphs.ids import Attempt, ChannelId
from recovery.channels import Inbox
from recovery.credit import Allowance, Consumption, Credit, Grant
from recovery.messages import Data, Item

LOCAL_RECORD_BYTES = 64
SENT_RECORDS_MAX = 32_768
FIRST_RECORDS_MAX = 64
"""How large a batch may be before the receiver has said anything."""

Delivery = tuple[ChannelId, Item]


class LocalChannel:
    """A channel to a task of the same actor, with the same bound as one to another actor.

    It must hold more than a turn's batches: while its receiver waits for a barrier on another channel, the sender goes
    on for those whom else it sends to.
    """

    __slots__ = ("_arrivals", "_deliveries", "id", "is_local", "records")

    def __init__(self, channel: Channel, deliveries: deque[Delivery], arrivals: Arrivals) -> None:
        self.id = channel.id
        self.is_local = True
        self.records = 0
        self._deliveries = deliveries
        self._arrivals = arrivals

    def send(self, item: Item) -> None:
        """Put it into the queue."""
        self._deliveries.append((self.id, item))

    def is_full(self) -> bool:
        """Whether nothing more should be sent for now."""
        return self._arrivals.bytes_waiting >= self._arrivals.window

    @property
    def batch_records_max(self) -> int:
        """How many records a batch may have."""
        if self._arrivals.inbox.is_back:
            return SENT_RECORDS_MAX
        return min(SENT_RECORDS_MAX, max(1, self._arrivals.window // (2 * LOCAL_RECORD_BYTES)))

    def room_records(self) -> int:
        """How many more records fit into the window."""
        return max(1, (self._arrivals.window - self._arrivals.bytes_waiting) // LOCAL_RECORD_BYTES)


class RemoteChannel(Allowance):
    """A regular channel to a task of another actor.

    - records: how many were sent in this attempt. batch_records_max: how many a batch may have.
    """

    __slots__ = ("_attempt", "_index", "_link", "batch_records_max", "id", "is_local", "records")

    def __init__(self, channel: Channel, index: int, attempt: Attempt, link: Link, window: int) -> None:
        super().__init__(window)
        self.id = channel.id
        self.is_local = False
        self.records = 0
        self.batch_records_max = FIRST_RECORDS_MAX
        self._index = index
        self._attempt = attempt
        self._link = link

    def send(self, item: Item) -> None:
        """Put it on the wire."""
        if type(item) is Data:
            self.sent += len(item.payload)
        self._link.post(pack_item(self._attempt, self._index, item))

    def on_credit(self, credit: Credit) -> bool:
        """The receiver has consumed something."""
        is_news = super().on_credit(credit)
        if is_news:
            self.batch_records_max = min(SENT_RECORDS_MAX, max(1, self._as_records(self.window // 2)))
        return is_news

    def room_records(self) -> int:
        """How many more records fit into the window."""
        return max(1, self._as_records(self.room()))

    def _as_records(self, size: int) -> int:
        return size * self.records // max(1, self.sent)


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
        window: int,
        memory_bytes_max: int,
        space: SpillSpace,
    ) -> None:
        super().__init__(channel, index, attempt, link, window)
        self.batch_records_max = SENT_RECORDS_MAX
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

    def on_credit(self, credit: Credit) -> bool:
        """The receiver has received something: what waits goes on its way."""
        is_news = Allowance.on_credit(self, credit)
        while self._waiting and not super().is_full():
            item = self._waiting.popleft()
            if type(item) is Data:
                if isinstance(item.payload, Spilled):
                    item = item._replace(payload=item.payload.load())
                else:
                    self._waiting_bytes -= len(item.payload)
            super().send(item)
        return is_news


OutChannel = LocalChannel | RemoteChannel


class Arrivals(Grant):
    """What has been received on one channel and not yet consumed, in bytes.

    Gives credit where there is a link for it. On a back edge what exceeds `memory_bytes_max` is put on disk.

    - since_ns: since when something waits here. largest: the size of the largest batch since the window last changed.
    """

    __slots__ = (
        "_attempt",
        "_consumption",
        "_index",
        "_link",
        "_memory",
        "_position",
        "_sizes",
        "_space",
        "_window_max",
        "bytes_waiting",
        "inbox",
        "largest",
        "since_ns",
    )

    def __init__(
        self,
        inbox: Inbox,
        attempt: Attempt,
        index: int,
        link: Link | None,
        window_max: int,
        inputs: int,
        memory_bytes_max: int,
        space: SpillSpace,
    ) -> None:
        super().__init__(window_max if inbox.is_back else 1)
        self.inbox = inbox
        self.bytes_waiting = 0
        self.since_ns = 0
        self.largest = 0
        self._sizes: deque[int] = deque()
        self._position = inbox.consumed
        self._attempt = attempt
        self._index = index
        self._link = link
        self._consumption = None if inbox.is_back else Consumption(inputs)
        self._window_max = window_max
        self._memory = memory_bytes_max
        self._space = space
        if inbox.is_back:
            inbox.store = self._store

    def _store(self, payload: Any) -> Any:
        """What is kept in place of a payload that has just been received."""
        if self.bytes_waiting <= self._memory:
            return payload
        return self._space.store(payload if isinstance(payload, bytes) else encode(payload))

    def on_received(self, payload: Any, now_ns: int) -> None:
        """One batch has arrived."""
        size = len(payload) if isinstance(payload, bytes) else LOCAL_RECORD_BYTES * len(payload)
        if not self._sizes:
            self.since_ns = now_ns
        self._sizes.append(size)
        self.bytes_waiting += size
        if self._link is not None and self._consumption is None:
            self.consumed += size
            if self.is_due():
                self._tell()

    def on_consumed(self, now_ns: int, free_ns: int) -> None:
        """Some batches may have been taken; until `free_ns` none could be."""
        size = 0
        while self._position < self.inbox.consumed:
            self._position += 1
            one = self._sizes.popleft()
            size += one
            if one > self.largest:
                self.largest = one
        self.bytes_waiting -= size
        if self._consumption is None or not size:
            return
        self.consumed += size
        is_over = self._consumption.note(size, max(0, now_ns - max(self.since_ns, free_ns)))
        self.since_ns = now_ns
        if is_over or self.is_due():
            self.window = self._consumption.window(self.window, self.largest, self._window_max)
            self.largest = 0
            if self.is_due():
                self._tell()

    def repeat_credit(self, now_ms: int) -> None:
        """Say it again, in case it was lost."""
        if self._link is not None and self.repeats_at(now_ms):
            self._tell()

    def _tell(self) -> None:
        credit = self.say()
        if self._link is not None:
            self._link.post(pack_credit(self._attempt, self._index, credit))
