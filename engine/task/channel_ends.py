"""The two ends of a channel as tasks use them: what may be sent, what waits where, what is spilled (rule 9).

Pure: an end gets a function that transmits items, and is told what arrived and when. `recovery/protocol/credit.py` has
the rules of credit; this file applies them to batches.

- Credit is spent in one place, `RemoteChannel.send`, and by data alone. Barriers, ENDs and control messages pass a full
  channel; otherwise an alignment could wait for the very channel that it holds.
- A back edge is never full: batches that the receiver cannot accept yet wait at the sender, in memory and then on disk,
  and batches that it has no time for wait at the receiver in the same way. Barriers and END wait behind earlier data.
- Between tasks of one actor a channel is a queue that passes batches by reference; its window is the receiver's.
- A batch fills at most half a window, unless a function emits many windows at once (`TaskDriver.emit`). The sender
  splits larger ones, and estimates the size of records from those it has sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns
from backedge.graphs.deployment import Channel
from backedge.recovery.protocol.channels import Stored
from backedge.recovery.protocol.credit import REPEAT_MS, Allowance, Consumption, Credit, Grant
from backedge.recovery.protocol.messages import Data, Item

LOCAL_RECORD_BYTES = 64
SENT_RECORDS_MAX, SENT_ROWS_MAX = 32_768, 65_536
"""The most that travels in one batch: records, or rows of columns, which cost less each than records do."""
FIRST_RECORDS_MAX = 64
"""The maximum records of a batch before the receiver has granted any credit."""

SendItem = Callable[[Item], None]
SendCredit = Callable[[Credit], None]


class SpillSpace(Protocol):
    """Stores payloads for which memory has no room."""

    def store(self, payload: bytes) -> Stored:
        """Store a payload; return the handle that loads it again. Raises `LoopOverflowError` if there is no room."""
        ...


def largest_batch(batch: Batch) -> int:
    """The number of records in the largest batch of this kind."""
    return SENT_ROWS_MAX if isinstance(batch.records, Columns) else SENT_RECORDS_MAX


def local_size(batch: Batch) -> int:
    """The size in bytes of a batch that does not leave its actor: that of its columns, or an estimate for records.

    Each row counts, or nulls alone would never fill a window.
    """
    records = batch.records
    return max(len(records), records.size) if isinstance(records, Columns) else LOCAL_RECORD_BYTES * len(records)


class LocalChannel:
    """A channel to a task of the same actor, bounded like one to another actor.

    It must hold more than one turn's batches: while its receiver waits for a barrier on another channel, the sender
    goes on for its other receivers.

    - send: puts an item into the queue. records: the number sent in this attempt.
    """

    __slots__ = ("_arrivals", "id", "records", "send")

    is_local = True
    bytes_waiting = 0
    """Nothing waits at this end."""

    def __init__(self, channel: Channel, send: SendItem, arrivals: Arrivals) -> None:
        self.id = channel.id
        self.records = 0
        self.send = send
        self._arrivals = arrivals

    def is_full(self) -> bool:
        """Whether nothing more may be sent now."""
        return self._arrivals.bytes_waiting >= self._arrivals.window

    def batch_max(self, batch: Batch) -> int:
        """How many records of this batch may travel together."""
        largest = largest_batch(batch)
        if self._arrivals.is_back:
            return largest
        return min(largest, max(1, self._arrivals.window * len(batch) // max(1, 2 * local_size(batch))))

    def room_records(self) -> int:
        """The number of records for which the window has room."""
        sent = self._arrivals.bytes_taken + self._arrivals.bytes_waiting
        return max(1, self.room() * self.records // sent if sent else self.room() // LOCAL_RECORD_BYTES)

    def room(self) -> int:
        """The number of bytes for which the window has room."""
        return max(0, self.window - self._arrivals.bytes_waiting)

    @property
    def window(self) -> int:
        return self._arrivals.window

    def records_waiting(self) -> int:
        return 0

    def on_credit(self, credit: Credit) -> bool:
        """Credit within an actor is read from the receiver, never sent."""
        return False


class RemoteChannel(Allowance):
    """A regular channel to a task of another actor.

    - records: the number sent in this attempt. half_window: how many records fill half a window.
    - bytes_waiting: the size of what waits at this end; only a back edge has any.
    """

    __slots__ = ("_send", "bytes_waiting", "half_window", "id", "records")

    is_local = False

    def __init__(self, channel: Channel, send: SendItem, window: int, half_window: int = FIRST_RECORDS_MAX) -> None:
        super().__init__(window)
        self.id = channel.id
        self.records = 0
        self.bytes_waiting = 0
        self.half_window = half_window
        self._send = send

    def send(self, item: Item) -> None:
        """Transmit an item. This is where credit is spent."""
        if type(item) is Data:
            self.sent += len(item.payload)
        self._send(item)

    def batch_max(self, batch: Batch) -> int:
        """How many records of this batch may travel together."""
        return min(largest_batch(batch), self.half_window)

    def on_credit(self, credit: Credit) -> bool:
        """The receiver has reported what it has consumed; return whether that was new."""
        is_news = super().on_credit(credit)
        if is_news:
            self.half_window = max(1, self._as_records(self.window // 2))
        return is_news

    def room_records(self) -> int:
        """The number of records for which the window has room."""
        return max(1, self._as_records(self.room()))

    def records_waiting(self) -> int:
        """An estimate of the number of records that wait at this end."""
        return self.bytes_waiting * self.records // max(1, self.sent + self.bytes_waiting)

    def _as_records(self, size: int) -> int:
        return size * self.records // max(1, self.sent)


class RemoteBackEdge(RemoteChannel):
    """A back edge to a task of another actor: never full.

    The receiver grants credit for what it has received. Items that it has not received yet wait here: in memory, and in
    the spill space beyond `memory_bytes_max`.

    - waiting: items to transmit, in order.
    """

    __slots__ = ("_memory", "_memory_max", "_space", "waiting")

    def __init__(self, channel: Channel, send: SendItem, window: int, memory_bytes_max: int, space: SpillSpace) -> None:
        super().__init__(channel, send, window, SENT_ROWS_MAX)
        self._memory_max = memory_bytes_max
        self._space = space
        self.waiting: deque[Item] = deque()
        self._memory = 0

    def send(self, item: Item) -> None:
        """Transmit an item, or queue it behind waiting ones."""
        if not self.waiting and not Allowance.is_full(self):
            RemoteChannel.send(self, item)
            return
        if type(item) is Data:
            size = len(item.payload)
            self.bytes_waiting += size
            if self._memory + size > self._memory_max:
                item = item._replace(payload=self._space.store(item.payload))
            else:
                self._memory += size
        self.waiting.append(item)

    def is_full(self) -> bool:
        """Never: a loop must not wait for itself."""
        return False

    def on_credit(self, credit: Credit) -> bool:
        """The receiver has reported what it has received: transmit waiting items."""
        is_news = Allowance.on_credit(self, credit)
        while self.waiting and not Allowance.is_full(self):
            item = self.waiting.popleft()
            if type(item) is Data:
                if isinstance(item.payload, Stored):
                    item = item._replace(payload=item.payload.load())
                else:
                    self._memory -= len(item.payload)
                self.bytes_waiting -= len(item.payload)
            RemoteChannel.send(self, item)
        return is_news


OutChannel = LocalChannel | RemoteChannel


class Arrivals(Grant):
    """The receiving end: what has been received on one channel and not yet consumed, in bytes.

    Sends credit through `tell`; None if the sender reads it here, or if nothing is bounded.

    - bytes_waiting: the size of received, unconsumed batches. since_ns: the time since which something has been
      waiting and nothing was consumed.
    - largest: the size in bytes of the largest batch since the window last changed.
    - records, bytes_taken: the number of records that were processed, and the size of their batches.
    """

    __slots__ = (
        "_consumed_seq",
        "_consumption",
        "_memory",
        "_tell",
        "_waiting",
        "_window_max",
        "bytes_taken",
        "bytes_waiting",
        "is_back",
        "largest",
        "records",
        "since_ns",
    )

    def __init__(
        self,
        tell: SendCredit | None,
        *,
        is_back: bool,
        window_max: int,
        inputs: int,
        memory_bytes_max: int,
        repeat_ms: int = REPEAT_MS,
    ) -> None:
        super().__init__(window_max if is_back else 1, repeat_ms)
        self.is_back = is_back
        self.bytes_waiting = 0
        self.since_ns = 0
        self.largest = 0
        self.records = 0
        self.bytes_taken = 0
        # The size of each batch, and when it arrived.
        self._waiting: deque[tuple[int, int]] = deque()
        self._consumed_seq = 0
        self._tell = tell
        self._consumption = None if is_back else Consumption(inputs)
        self._window_max = window_max
        self._memory = memory_bytes_max

    def is_to_spill(self) -> bool:
        """Whether to spill the next batch: a loop that holds more than fits into memory must not stop."""
        return self.is_back and self.bytes_waiting > self._memory

    def batches_waiting(self) -> int:
        """The number of received, unconsumed batches."""
        return len(self._waiting)

    def records_waiting(self) -> int:
        """An estimate of the number of received, unconsumed records: from the size of those before."""
        if not self.bytes_taken:
            return len(self._waiting)
        return max(len(self._waiting), self.bytes_waiting * self.records // self.bytes_taken)

    def waiting_since_ns(self) -> int | None:
        """When the first unconsumed batch has arrived."""
        return self._waiting[0][1] if self._waiting else None

    def on_received(self, payload: Any, now_ns: int) -> None:
        size = len(payload) if type(payload) is bytes else local_size(payload)
        if not self._waiting:
            self.since_ns = now_ns
        self._waiting.append((size, now_ns))
        self.bytes_waiting += size
        if self._consumption is None and self._tell is not None:
            self.consumed += size
            self.tell_if_due()

    def on_consumed(self, seq: int, now_ns: int, free_ns: int) -> None:
        """All batches up to number `seq` have been taken; until `free_ns` none could be taken."""
        size = 0
        while self._consumed_seq < seq:
            self._consumed_seq += 1
            one, _ = self._waiting.popleft()
            size += one
            if one > self.largest:
                self.largest = one
        self.bytes_waiting -= size
        self.bytes_taken += size
        if self._consumption is None or not size:
            return
        self.consumed += size
        is_over = self._consumption.note(size, max(0, now_ns - max(self.since_ns, free_ns)))
        self.since_ns = now_ns
        if is_over or self.is_due():
            self.window = self._consumption.window(self.window, self.largest, self._window_max)
            self.largest = 0
            self.tell_if_due()

    def tell_if_due(self) -> None:
        """Send credit if there is news."""
        if self.is_due():
            credit = self.say()
            if self._tell is not None:
                self._tell(credit)

    def repeat_credit(self, now_ms: int) -> bool:
        """Send credit again in case it was lost; return whether it was time to."""
        if self._tell is None or not self.repeats_at(now_ms):
            return False
        self._tell(self.say())
        return True
