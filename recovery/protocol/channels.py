"""The two ends of a channel: numbering, rolling digest, and the queue between receipt and processing.

Arrival means receipt: a batch that was received and not processed is still in its channel, so it belongs to a loop log,
not to a state. An inbox therefore keeps two positions: the last batch received, and the last one consumed.

A batch may be processed in parts. It stays at the front, unconsumed, until its last record has been processed; `skip`
counts the records processed so far, and is part of a log that begins with the batch.

Digests are the CRC-32 of zlib. zlib-ng computes the same values in a tenth of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec import Struct, field
from zlib_ng.zlib_ng import crc32 as untyped_crc32  # pyright: ignore[reportUnknownVariableType]

from backedge.graphs.ids import ChannelId, Epoch
from backedge.recovery.cut.cut import InputRecord, LogEntry, OutputRecord
from backedge.recovery.protocol.messages import Barrier, Data, End, Marker, Mode, new_data
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError, ProtocolError

Encode = Callable[[Any], bytes]
crc32 = cast("Callable[[bytes, int], int]", untyped_crc32)


class Stored:
    """An encoded payload that is not in memory. Queues and logs refer to it."""

    __slots__ = ()

    def __len__(self) -> int:
        """Its size in bytes."""
        raise NotImplementedError(f"{type(self).__name__} does not say how large it is")

    def load(self) -> bytes:
        raise NotImplementedError(f"{type(self).__name__} has no load(): return the bytes of the payload")


ENCODED = (bytes, Stored)  # a constant, because a union in `isinstance` would be created for every batch


class Queued(NamedTuple):
    """A received batch or marker, with the channel's digest before and after it."""

    seq: int
    payload: Any
    marker: Marker | None
    before: int
    after: int


_new_queued: Callable[[tuple[int, Any, Marker | None, int, int]], Queued] = partial(tuple[Any].__new__, Queued)
"""Like `new_data`."""


class Inbox(Struct, eq=False):
    """The receiving end.

    - queue: items that were received and have not been processed, or have not taken effect.
    - received, consumed: the number of the last batch received and consumed, with the rolling digest up to it. skip:
      the number of records of the front batch that have been processed.
    - in_front: the restored channel that must be drained first. open_logs: the number of logs open on this channel.
    - last_barrier: False -> the last epoch whose barrier was received; True -> the last such probe.
    - end_received: END was received. ended: END has taken effect.
    """

    id: ChannelId
    is_back: bool
    depth: int
    within_actor: bool
    encode: Encode
    in_front: Inbox | None = None
    open_logs: int = 0
    queue: deque[Queued | Barrier | End] = field(default_factory=deque[Any])
    received: int = 0
    received_digest: int = 0
    consumed: int = 0
    consumed_digest: int = 0
    skip: int = 0
    last_barrier: dict[bool, Epoch] = field(default_factory=lambda: {False: Epoch(0), True: Epoch(0)})
    end_received: bool = False
    ended: bool = False

    @property
    def live_id(self) -> ChannelId:
        """The channel, also of its restored log."""
        return self.id._replace(restored=False) if self.id.restored else self.id

    def receive(self, data: Data, kept: Any = None) -> Queued:
        """Queue a batch, or `kept` in place of its payload; raise if it is not the next one."""
        if self.end_received:
            raise ProtocolError(f"channel {self.id}: batch {data.seq} arrived after END")
        seq, payload, marker = data
        if seq != self.received + 1:
            raise ChannelIntegrityError(
                f"channel {self.id}: batch {seq} arrived instead of {self.received + 1}: a batch was lost, "
                "doubled or swapped; the attempt must be restored from its last cut"
            )
        before = self.received_digest
        after = before if self.within_actor else crc32(payload, before)
        queued = _new_queued((seq, payload if kept is None else kept, marker, before, after))
        self.received = seq
        self.received_digest = after
        self.queue.append(queued)
        return queued

    def verify(self, mark: Barrier | End) -> None:
        """Compare the received batches with the sender's count and digest."""
        if self.end_received:
            raise ProtocolError(f"channel {self.id}: {type(mark).__name__} arrived after END")
        if isinstance(mark, Barrier) and mark.epoch <= self.last_barrier[mark.mode.is_probe]:
            raise ProtocolError(
                f"channel {self.id}: barrier {mark.epoch} arrived after barrier {self.last_barrier[mark.mode.is_probe]}"
            )
        if mark.count != self.received or mark.digest != self.received_digest:
            raise ChannelIntegrityError(
                f"channel {self.id}: {type(mark).__name__} says {mark.count} batches with digest {mark.digest:#010x}, "
                f"but {self.received} with digest {self.received_digest:#010x} were received: a batch was lost or "
                "damaged; the attempt must be restored from its last cut"
            )

    def front(self) -> Queued:
        """The next batch; raises if there is none, or if another channel must be drained first."""
        if self.queue and (self.in_front is None or self.in_front.ended):
            front = self.queue[0]
            if type(front) is Queued:
                return front
        raise ProtocolError(f"channel {self.id} is not ready: none of its batches may be processed now")

    def consume(self) -> Queued:
        """Take the batch at the front."""
        queued = self.front()
        self.queue.popleft()
        self.consumed = queued.seq
        self.consumed_digest = queued.after
        self.skip = 0
        return queued

    def has_batch(self) -> bool:
        """Whether the next item is a batch and no other channel must be drained first."""
        if not self.queue or type(self.queue[0]) is not Queued:
            return False
        return self.in_front is None or self.in_front.ended

    def queued_before(self, epoch: Epoch, mode: Mode) -> tuple[list[Queued], bool]:
        """The batches queued before that barrier (or END), and whether the barrier or END was received."""
        found: list[Queued] = []
        for item in self.queue:
            if isinstance(item, Queued):
                found.append(item)
            elif isinstance(item, End) or (item.epoch == epoch and item.mode is mode):
                return found, True
        return found, self.ended

    def count_before(self, epoch: Epoch) -> int | None:
        """The number of batches queued before that barrier; None if it has not been received."""
        if self.last_barrier[False] < epoch:
            return None
        count = 0
        for item in self.queue:
            if isinstance(item, Barrier) and item.epoch >= epoch and not item.mode.is_probe:
                return count
            count += isinstance(item, Queued)
        return 0

    def log_entry(self, queued: Queued) -> LogEntry:
        """The entry for a loop log. Encodes the payload now, because user code has not seen the records yet."""
        seq, payload, _, before, after = queued
        is_encoded = isinstance(payload, ENCODED)
        return LogEntry._make((seq, payload if is_encoded else self.encode(payload), before, after, 0))

    def record(self, log: tuple[LogEntry, ...] = ()) -> InputRecord:
        """The state of this end, for a cut."""
        return InputRecord(self.id, self.is_back, self.consumed, self.consumed_digest, log, self.ended)


class Outlet(Struct, eq=False):
    """The sending end."""

    id: ChannelId
    is_back: bool
    loop: str | None
    depth: int
    within_actor: bool
    sent: int = 0
    digest: int = 0

    def number(self, payload: Any, marker: Marker | None = None) -> Data:
        """Count and digest a batch that is about to be sent."""
        self.sent += 1
        if not self.within_actor:
            self.digest = crc32(payload, self.digest)
        return new_data((self.sent, payload, marker))

    def record(self) -> OutputRecord:
        """The state of this end, for a cut."""
        return OutputRecord(self.id, self.sent, self.digest)
