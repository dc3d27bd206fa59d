"""The two ends of a channel: numbering, rolling digest, and the queue between receipt and processing.

Arrival is receipt: what was received and not processed is in the channel still, and belongs to a loop log, not to a
state. So an inbox keeps two positions: what was received, and what was consumed.

A batch may be processed in parts. Until its last record is done it stays at the front and is not consumed; `skip` says
how many of its records are done, and goes into a log that begins with it.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from graphs.ids import ChannelId, Epoch
from recovery.cut import InputRecord, LogEntry, OutputRecord
from recovery.messages import Barrier, Data, End, Marker, Mode
from recovery.protocol_errors import ChannelIntegrityError, ProtocolError

Encode = Callable[[Any], bytes]


class Stored:
    """A payload that is not in memory, encoded as it travelled. A log refers to it, as a queue does."""

    __slots__ = ()

    def load(self) -> bytes:
        """Its bytes."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is loaded")


ENCODED = (bytes, Stored)  # made once: a union in `isinstance` would be made for every batch


class Queued(NamedTuple):
    """Data that was received, with the channel's digest before and after it."""

    seq: int
    payload: Any
    marker: Marker | None
    before: int
    after: int


class Inbox:
    """The receiving end.

    - queue: what was received and has not been processed, or has not taken effect.
    - received, consumed: the numbers of the last batches, each with the rolling digest up to it. skip: how many records
      of the batch at the front are processed already.
    - in_front: the restored channel that must be drained first. open_logs: how many logs take what is received here.
    - last_barrier: the last epoch whose barrier was received, and (True) the last such probe.
    - end_received: END was received. ended: it has taken effect.
    """

    __slots__ = (
        "consumed",
        "consumed_digest",
        "depth",
        "encode",
        "end_received",
        "ended",
        "id",
        "in_front",
        "is_back",
        "last_barrier",
        "live_id",
        "open_logs",
        "queue",
        "received",
        "received_digest",
        "skip",
        "within_actor",
    )

    def __init__(self, id: ChannelId, *, is_back: bool, depth: int, within_actor: bool, encode: Encode) -> None:
        self.id = id
        self.live_id = id._replace(restored=False)
        self.is_back = is_back
        self.depth = depth
        self.within_actor = within_actor
        self.encode = encode
        self.in_front: Inbox | None = None
        self.open_logs = 0
        self.queue: deque[Queued | Barrier | End] = deque()
        self.received = 0
        self.received_digest = 0
        self.consumed = 0
        self.consumed_digest = 0
        self.skip = 0
        self.last_barrier: dict[bool, Epoch] = {False: Epoch(0), True: Epoch(0)}
        self.end_received = False
        self.ended = False

    def receive(self, data: Data, kept: Any = None) -> Queued:
        """Queue one batch, or what is kept in place of its payload; raises if it is not the next one."""
        if self.end_received:
            raise ProtocolError(f"channel {self.id}: batch {data.seq} came after END")
        if data.seq != self.received + 1:
            raise ChannelIntegrityError(
                f"channel {self.id}: batch {data.seq} came where {self.received + 1} was due: a batch was lost, "
                "doubled or swapped; the attempt must be restored from its last cut"
            )
        before = self.received_digest
        after = before if self.within_actor else zlib.crc32(data.payload, before)
        payload = data.payload if kept is None else kept
        # `_make` costs two thirds of the constructor, which is Python code.
        queued = Queued._make((data.seq, payload, data.marker, before, after))
        self.received = data.seq
        self.received_digest = after
        self.queue.append(queued)
        return queued

    def verify(self, mark: Barrier | End) -> None:
        """Compare what was received with what the sender says it sent."""
        if self.end_received:
            raise ProtocolError(f"channel {self.id}: {type(mark).__name__} came after END")
        if isinstance(mark, Barrier) and mark.epoch <= self.last_barrier[mark.mode.is_probe]:
            raise ProtocolError(
                f"channel {self.id}: barrier {mark.epoch} came after barrier {self.last_barrier[mark.mode.is_probe]}"
            )
        if mark.count != self.received or mark.digest != self.received_digest:
            raise ChannelIntegrityError(
                f"channel {self.id}: {type(mark).__name__} says {mark.count} batches with digest {mark.digest:#010x}, "
                f"received were {self.received} with {self.received_digest:#010x}: a batch was lost or damaged; the "
                "attempt must be restored from its last cut"
            )

    def front(self) -> Queued:
        """The batch that is next; raises if there is none, or something must be processed before it."""
        if self.queue and (self.in_front is None or self.in_front.ended):
            front = self.queue[0]
            if isinstance(front, Queued):
                return front
        raise ProtocolError(f"channel {self.id} is not ready: no batch of it is due")

    def consume(self) -> Queued:
        """Take the batch at the front."""
        queued = self.front()
        self.queue.popleft()
        self.consumed = queued.seq
        self.consumed_digest = queued.after
        self.skip = 0
        return queued

    def has_batch(self) -> bool:
        """Whether the next thing to process is a batch, and nothing must be processed before this channel."""
        if not self.queue or type(self.queue[0]) is not Queued:
            return False
        return self.in_front is None or self.in_front.ended

    def has_marker(self) -> bool:
        """Whether the next thing to process is a round marker."""
        return self.has_batch() and self.front().marker is not None

    def queued_before(self, epoch: Epoch, mode: Mode) -> tuple[list[Queued], bool]:
        """What is queued before that barrier (or before END), and whether one of the two was received."""
        found: list[Queued] = []
        for item in self.queue:
            if isinstance(item, Queued):
                found.append(item)
            elif isinstance(item, End) or (item.epoch == epoch and item.mode is mode):
                return found, True
        return found, self.ended

    def count_before(self, epoch: Epoch) -> int | None:
        """How many batches are queued before the barrier of that snapshot; None if it has not been received."""
        if self.last_barrier[False] < epoch:
            return None
        count = 0
        for item in self.queue:
            if isinstance(item, Barrier) and item.epoch >= epoch and not item.mode.is_probe:
                return count
            count += isinstance(item, Queued)
        return 0

    def log_entry(self, queued: Queued) -> LogEntry:
        """The entry for a loop log, encoded now: user code has not seen the records yet."""
        seq, payload, _, before, after = queued
        is_encoded = isinstance(payload, ENCODED)
        return LogEntry._make((seq, payload if is_encoded else self.encode(payload), before, after, 0))

    def record(self, log: tuple[LogEntry, ...] = ()) -> InputRecord:
        """This end as a cut tells it."""
        return InputRecord(self.id, self.is_back, self.consumed, self.consumed_digest, log, self.ended)


class Outlet:
    """The sending end."""

    __slots__ = ("depth", "digest", "id", "is_back", "loop", "sent", "within_actor")

    def __init__(self, id: ChannelId, *, is_back: bool, loop: str | None, depth: int, within_actor: bool) -> None:
        self.id = id
        self.is_back = is_back
        self.loop = loop
        self.depth = depth
        self.within_actor = within_actor
        self.sent = 0
        self.digest = 0

    def number(self, payload: Any, marker: Marker | None = None) -> Data:
        """Count one batch that is sent now."""
        self.sent += 1
        if not self.within_actor:
            self.digest = zlib.crc32(payload, self.digest)
        return Data(self.sent, payload, marker)

    def record(self) -> OutputRecord:
        """This end as a cut tells it."""
        return OutputRecord(self.id, self.sent, self.digest)
