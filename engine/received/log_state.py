"""The rules of a log of what was received: what is acknowledged, who has read it, and what may be removed.

The log is a sequence of segments, numbered without a gap. A segment is a group of requests that were written together.

1. A request is acknowledged when its segment is durable. The next segment is begun only then: readers go by number, and
   would wait at a gap for ever.
2. The header of a segment holds the whole state of the log: the first segment that is left, and what each reader needs.
   So there is one writer (a segment is created exclusively), and the last segment is all that a restart has to know.
3. Where it is unknown whether a segment was created, the same one is created again until that is known. One that was
   certainly not created is given up: its requests are refused, and may be sent again.
4. If the number of a segment is taken, another process writes to the log. Nothing is acknowledged any more.
5. A reader joins before it reads, and begins at the first segment. It has joined when a durable header names it. One
   that joins again, as a new run of its flow, begins at what the last header says that it needs, and needs that again:
   what its former cuts have freed since may still be there, and would go while the new run reads it.
6. A reader needs what lies behind its position in the oldest cut that it may restore. Segments that no reader needs are
   removed once a durable header says so: a restart would otherwise look for them. Where no flow has joined, nothing is.
7. A request for which there is no room is refused: nothing that was acknowledged makes room for it.
8. A reader that finds a segment of another log stops: somebody has removed the one that it read, and what is in the new
   one before its position would never be read.
9. What readers no longer need is written with the next request. A segment of its own is written for it only if the log
   is half full, or a request has found no room: otherwise each cut would cause a segment, and reading that another
   position in the next cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

R = TypeVar("R")

SEGMENT_BYTES = 4096
"""What a segment takes on a disk beside its records."""


class Header(Struct, frozen=True):
    """What a segment says of the log: the state once it is durable.

    - segment: its number, from 1. first: the first segment that is left. bytes: what these take up, itself included.
    - readers: the first segment that each reader needs.
    - log: the name of the log, by which a reader knows that it is the same one; "" if an earlier version began it.
    """

    segment: int
    first: int
    bytes: int
    readers: Mapping[str, int]
    log: str = ""


class Group(NamedTuple, Generic[R]):
    """A segment to be written, with the requests in it. `size`: the bytes that it adds to the log."""

    header: Header
    requests: list[R]
    size: int


class Durable(NamedTuple, Generic[R]):
    """What follows when a segment is durable: requests to acknowledge, and the numbers of segments to remove."""

    acknowledged: list[R]
    removed: range


class LogState(Generic[R]):
    """The log of one writer, of at most `bytes_max`. `last`: the header of the last segment of a log that exists.

    - header: that of the last durable segment.
    - sizes: the bytes of each segment that is left. Those from before a restart count as one, until all are removed.
    - needs: the first segment that each reader needs, newer than in the header, and of readers that are joining.
    - waiting: requests for the next segment. waiting_bytes: what they take up.
    - writing: the segment that is being written. is_lost: another process writes to the log.
    - is_due: a segment is to be written even if no request waits. is_short: a request has found no room.
    """

    def __init__(self, bytes_max: int, last: Header | None = None) -> None:
        self.bytes_max = bytes_max
        self.header = last or Header(0, 1, 0, {})
        self.sizes = {self.header.segment: self.header.bytes}
        self.needs = dict(self.header.readers)
        self.waiting: list[R] = []
        self.waiting_bytes = 0
        self.writing: Group[R] | None = None
        self.is_due = False
        self.is_short = False
        self.is_lost = False

    @property
    def next(self) -> int:
        """The number of the next segment, or of the one that is being written."""
        return self.header.segment + 1

    def offer(self, request: R, size: int) -> bool:
        """Take a request of this many bytes, to be acknowledged later. False if the log is full, or lost."""
        if self.is_lost or self._bytes_to_come() + size + SEGMENT_BYTES > self.bytes_max:
            self.is_short = True
            self._free()
            return False
        self.waiting.append(request)
        self.waiting_bytes += size
        return True

    def join(self, reader: str, request: R) -> bool:
        """Whether a reader has joined, to begin at what it needs. If not, it has when this request is acknowledged."""
        # What the segment that is being written frees goes when that is durable.
        latest = self._latest
        self.needs[reader] = max(latest.first, latest.readers.get(reader, 0))
        if reader in self.header.readers and reader in latest.readers:
            return True
        self.waiting.append(request)
        return False

    def settle(self, reader: str, segment: int) -> None:
        """Note that a reader needs nothing before a segment. A late note changes nothing, nor one of a stranger."""
        if segment > self.needs.get(reader, segment):
            self.needs[reader] = min(segment, self.next)
        self._free()

    def forget(self, reader: str) -> None:
        """Let a reader go that reads no more."""
        if self.needs.pop(reader, None) is not None:
            self.is_due = True

    def next_group(self) -> Group[R] | None:
        """The next segment to write. None if one is being written, or if there is nothing to write."""
        if self.writing is not None or self.is_lost or not (self.waiting or self.is_due):
            return None
        size, first = self.waiting_bytes + SEGMENT_BYTES, self._first()
        left = self.header.bytes - sum(self.sizes.get(segment, 0) for segment in range(self.header.first, first))
        header = Header(self.next, first, left + size, dict(self.needs), self.header.log)
        self.writing = Group(header, self.waiting, size)
        self.waiting, self.waiting_bytes, self.is_due = [], 0, False
        self.is_short = self.is_short and first == self.header.first
        return self.writing

    def on_durable(self) -> Durable[R]:
        header, requests, size = self._end_writing()
        removed = range(self.header.first, header.first)
        for segment in removed:
            self.sizes.pop(segment, None)
        self.sizes[header.segment] = size
        self.header = header
        return Durable(requests, removed)

    def on_refused(self) -> list[R]:
        """The segment was certainly not created. Returns the requests to refuse."""
        return self._end_writing().requests

    def on_taken(self) -> list[R]:
        """The number of the segment is taken by another writer. Returns the requests to refuse, now and for good."""
        refused = [*self._end_writing().requests, *self.waiting]
        self.waiting = []
        self.is_lost = True
        return refused

    def _end_writing(self) -> Group[R]:
        if self.writing is None:
            raise RuntimeError("no segment is being written: call next_group() first")
        group, self.writing = self.writing, None
        return group

    @property
    def _latest(self) -> Header:
        """The header of the segment that is being written, or of the last one."""
        return self.header if self.writing is None else self.writing.header

    def _free(self) -> None:
        """Have a segment written if one would free what the log needs."""
        needs_room = self.is_short or self._bytes_to_come() > self.bytes_max // 2
        if needs_room and self._first() > self._latest.first:
            self.is_due = True

    def _bytes_to_come(self) -> int:
        """What the log takes up when all that it has taken is written."""
        return self.header.bytes + (0 if self.writing is None else self.writing.size) + self.waiting_bytes

    def _first(self) -> int:
        """The first segment that some reader needs."""
        return max(self.header.first, min(self.needs.values(), default=0))
