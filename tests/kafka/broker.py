"""A broker of Kafka for tests, in memory, that keeps what transactions promise and can strike at each of its steps.

librdkafka's mock cluster answers the requests of a transaction, but records of an aborted one are read, offsets that
are sent to one are lost, and a second producer of a name fences nobody. Those are what a sink relies on. This broker
has them:

- A producer that takes a transactional id aborts what the one before has left open, and raises the epoch: each request
  of the former producer is refused from then on.
- Who reads what is committed gets records up to the first open transaction, and the list of aborted ones.
- Records, the offsets of groups and the end of a transaction count together or not at all.
- A batch that comes again, with the same sequence number, is not appended again.

It speaks one old version of each request, which librdkafka then uses. Batches of records are opaque but for their
headers. Not here: replicas, authorization, time-outs of transactions, retention by time, compaction.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.gates import HANG_S

OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER, INVALID_MAPPING, TOO_LARGE = 1, 3, 47, 45, 49, 10
NOT_LEADER, TIMED_OUT, LOADING, NOT_COORDINATOR = 6, 7, 14, 16

VERSIONS = {
    "Produce": (0, 3),
    "Fetch": (1, 4),
    "ListOffsets": (2, 2),
    "Metadata": (3, 4),
    "OffsetCommit": (8, 2),
    "OffsetFetch": (9, 3),
    "FindCoordinator": (10, 1),
    "ApiVersions": (18, 3),
    "InitProducerId": (22, 1),
    "AddPartitionsToTxn": (24, 0),
    "AddOffsetsToTxn": (25, 0),
    "EndTxn": (26, 0),
    "TxnOffsetCommit": (28, 0),
}
"""The number of each request, and its version here."""

NAMES = {key: name for name, (key, _) in VERSIONS.items()}
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


def kill_client(client: int) -> None:
    assert client != os.getpid(), "the client is the test itself"
    with suppress(ProcessLookupError):  # it dies at this moment, of another cause
        os.kill(client, signal.SIGKILL)


@dataclass
class Strike:
    """Strikes at the `number`-th request of this name: before it has an effect, or when it has, before the reply.

    With an error the reply is that error; otherwise the action gets the process id of the client, and the connection
    is cut.
    """

    request: str
    side: Literal["before", "after"] = "before"
    action: Callable[[int], object] | None = None
    error: int = 0
    number: int = 1
    has_happened: threading.Event = field(default_factory=threading.Event)
    client: int = 0
    """The process id of the client that it strikes."""


@dataclass
class Partition:
    """Batches of records with their offsets. `max_bytes`: larger batches are refused."""

    max_bytes: int = 1 << 30
    start: int = 0
    end: int = 0
    batches: list[bytes] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """Producer -> the first offset of its open transaction."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset and last offset of each aborted transaction."""
    sequences: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """Producer and epoch -> the next sequence number after each batch of it, and the offset of the batch."""

    def stable_end(self) -> int:
        return min([*self.open.values(), self.end])

    def append(self, batch: bytes) -> tuple[int, int]:
        """Append a batch; its offset, or the error."""
        attributes, last_delta, producer, epoch, sequence, count = struct.unpack_from(">hi16xqhii", batch, 21)
        sequences = self.sequences.setdefault((producer, epoch), {0: -1})
        if len(batch) > self.max_bytes:
            return TOO_LARGE, -1
        if producer >= 0 and not attributes & _CONTROL:
            if sequence + count in sequences:
                return 0, sequences[sequence + count]
            if sequence not in sequences:
                return OUT_OF_ORDER, -1
            sequences[sequence + count] = self.end
            if attributes & _TRANSACTIONAL:
                self.open.setdefault(producer, self.end)
        self.batches.append(struct.pack(">q", self.end) + batch[8:12] + struct.pack(">i", 0) + batch[16:])
        self.firsts.append(self.end)
        self.end += last_delta + 1
        return 0, self.firsts[-1]

    def finish(self, producer: int, epoch: int, committed: bool) -> None:
        """End the transaction of a producer with a marker."""
        first = self.open.pop(producer, None)
        if first is not None:
            if not committed:
                self.aborted.append((producer, first, self.end - 1))
            self.append(_marker(producer, epoch, committed))

    def read(self, offset: int, end: int, bytes_max: int) -> bytes:
        """Whole batches from the one with this offset, at least one."""
        found, size = list[bytes](), 0
        for number in range(max(0, bisect_right(self.firsts, offset) - 1), len(self.batches)):
            if self.firsts[number] >= end or (found and size + len(self.batches[number]) > bytes_max):
                break
            found.append(self.batches[number])
            size += len(found[-1])
        return b"".join(found)

    def values(self) -> list[bytes]:
        """Those of committed records."""
        found: list[bytes] = []
        for first, batch in zip(self.firsts, self.batches, strict=True):
            (attributes,), (producer,) = struct.unpack_from(">h", batch, 21), struct.unpack_from(">q", batch, 43)
            is_open = first >= self.open.get(producer, self.end)
            aborted = any(each == producer and begin <= first <= end for each, begin, end in self.aborted)
            if not is_open and not aborted and not attributes & _CONTROL:
                found += _values(batch)
        return found


@dataclass
class Transactions:
    """What is known of a transactional id: its producer and epoch, and what its open transaction has touched."""

    producer: int
    epoch: int = -1
    partitions: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], tuple[int, str | None]] = field(default_factory=dict)


class Broker:
    """Listens on loopback while the block lasts. Strikes come in turn: the next waits until the last has happened."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Partition]] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str | None]] = {}
        """Group, topic and partition -> the committed offset and its metadata."""
        self.transactions: dict[str, Transactions] = {}
        self.strikes: list[Strike] = []
        self.requests: Counter[str] = Counter()
        self._next = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._host, self._port = self._listener.getsockname()
        self.servers = f"{self._host}:{self._port}"
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    # -- what a test does --------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, bytes_max: int = 1 << 30) -> str:
        """Create a topic, or give it more partitions."""
        with self._changed:
            found = self.topics.setdefault(topic, [])
            found += [Partition(bytes_max) for _ in range(partitions - len(found))]
        return topic

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Remove records, as retention does."""
        with self._changed:
            self.topics[topic][partition].start = offset

    def values(self, topic: str) -> list[bytes]:
        """What is there for good, also if it lies behind an open transaction, where nobody reads it yet."""
        with self._changed:
            return [value for partition in self.topics[topic] for value in partition.values()]

    def plan(self, *strikes: Strike) -> None:
        """Strike from here on."""
        with self._changed:
            self.strikes += strikes

    @property
    def happened(self) -> int:
        with self._changed:
            begun = self.strikes[: self._next]
        return sum(strike.has_happened.wait(HANG_S) for strike in begun)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        # A blocked accept ends by a connection.
        socket.create_connection((self._host, self._port)).close()
        self._listening.join(HANG_S)
        self._listener.close()

    # -- connections -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._is_over:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._is_over:
                (size,) = struct.unpack(">i", _exactly(connection, 4))
                request = Request(_exactly(connection, size))
                key, _, correlation = request.take("hhi")
                request.text()  # the name of the client
                reply = self._reply(connection, NAMES[key], request)
                if reply is None:
                    return
                connection.sendall(struct.pack(">ii", len(reply) + 4, correlation) + reply)

    def _reply(self, connection: socket.socket, name: str, request: Request) -> bytes | None:
        """What is answered. None: the connection is cut."""
        with self._changed:
            self.requests[name] += 1
            strike = self._due(name, connection)
        if strike is None or strike.error:
            reply = self._answer(name, request, strike.error if strike else 0)
        else:
            reply = None
            if strike.side == "after":
                self._answer(name, request, 0)
            if strike.action is not None:
                strike.action(strike.client)
        if strike is not None:
            strike.has_happened.set()
        return reply

    def _due(self, name: str, connection: socket.socket) -> Strike | None:
        strike = self.strikes[self._next] if self._next < len(self.strikes) else None
        if strike is None or strike.request != name:
            return None
        strike.client = _process_behind(connection)
        if not strike.client:
            return None  # it has died, and this is what it had sent
        strike.number -= 1
        if strike.number > 0:
            return None
        self._next += 1
        return strike

    def _answer(self, name: str, request: Request, error: int) -> bytes:
        if name == "ApiVersions":
            known = b"".join(pack("hhhb", key, 0, most, 0) for key, most in VERSIONS.values())
            return pack("hb", 0, len(VERSIONS) + 1) + known + pack("ib", 0, 0)
        if name == "Fetch":
            return self._fetch(request, error)
        with self._changed:
            reply = getattr(self, f"_{name}")(request, error)
            self._changed.notify_all()
        return reply

    # -- requests: each takes what it is asked and the error to answer with, if it is to fail -----------------------

    def _Metadata(self, request: Request, error: int) -> bytes:
        asked = request.array(request.text, none=sorted(self.topics))
        broker = pack("i", 1) + text(self._host) + pack("i", self._port) + text(None)
        topics = array(
            pack("h", error or (0 if name in self.topics else UNKNOWN_TOPIC))
            + text(name)
            + pack("b", 0)
            + array(pack("hiiiiii", 0, number, 1, 1, 1, 1, 1) for number in range(len(self.topics.get(name, ()))))
            for name in asked
        )
        return pack("i", 0) + array([broker]) + text("tests") + pack("i", 1) + topics

    def _FindCoordinator(self, request: Request, error: int) -> bytes:
        return pack("ih", 0, error) + text(None) + pack("i", 1) + text(self._host) + pack("i", self._port)

    def _ListOffsets(self, request: Request, error: int) -> bytes:
        _, isolation = request.take("ib")

        def answer(topic: str) -> bytes:
            number, time = request.take("iq")
            partition = self._partition(topic, number)
            if error or partition is None:
                return pack("ihqq", number, error or UNKNOWN_TOPIC, -1, -1)
            end = partition.stable_end() if isolation else partition.end
            return pack("ihqq", number, 0, -1, partition.start if time == -2 else end)

        return pack("i", 0) + request.by_topic(answer)

    def _fetch(self, request: Request, error: int) -> bytes:
        _, wait_ms, _, _, isolation = request.take("iiiib")
        asked = dict[tuple[str, int], tuple[int, int]]()

        def note(topic: str) -> bytes:
            number, offset, bytes_max = request.take("iqi")
            asked[topic, number] = offset, bytes_max
            return b""

        request.by_topic(note)

        def answer(topic: str, number: int, offset: int, bytes_max: int) -> tuple[bytes, bool]:
            partition = self._partition(topic, number)
            if partition is None or error:
                return pack("ihqqii", number, error or UNKNOWN_TOPIC, -1, -1, 0, 0), True
            end = partition.stable_end() if isolation else partition.end
            if not partition.start <= offset <= partition.end:
                return pack("ihqqii", number, OUT_OF_RANGE, partition.end, end, 0, 0), True
            found = partition.read(offset, end, bytes_max) if offset < end else b""
            aborted = array(pack("qq", *each[:2]) for each in partition.aborted if each[2] >= offset)
            head = pack("ihqq", number, 0, partition.end, end) + aborted
            return head + pack("i", len(found)) + found, bool(found)

        def answers() -> list[tuple[str, bytes, bool]]:
            return [(topic, *answer(topic, number, *what)) for (topic, number), what in asked.items()]

        with self._changed:
            self._changed.wait_for(lambda: any(is_due for _, _, is_due in answers()), wait_ms / 1000)
            found = answers()
        return pack("i", 0) + array(
            text(topic) + array(each for name, each, _ in found if name == topic)
            for topic in dict.fromkeys(topic for topic, _, _ in found)
        )

    def _Produce(self, request: Request, error: int) -> bytes:
        name, _, _ = request.text(), *request.take("hi")

        def answer(topic: str) -> bytes:
            number, size = request.take("ii")
            failed, offset, partition = error, -1, self._partition(topic, number)
            if partition is None:
                failed = failed or UNKNOWN_TOPIC
            for batch in request.batches(size):
                producer, epoch = struct.unpack_from(">qh", batch, 43)
                failed = failed or self._refusal(name, producer, epoch)
                if partition is not None and not failed:
                    failed, offset = partition.append(batch)
            return pack("ihqq", number, failed, offset, -1)

        return request.by_topic(answer) + pack("i", 0)

    def _InitProducerId(self, request: Request, error: int) -> bytes:
        name = request.text()
        if error or name is None:
            return pack("ihqh", 0, error, -1 if error else 1000 + self.requests["InitProducerId"], 0)
        known = self.transactions.setdefault(name, Transactions(len(self.transactions) + 1))
        self._end(known, committed=False)
        known.epoch += 1
        return pack("ihqh", 0, 0, known.producer, known.epoch)

    def _AddPartitionsToTxn(self, request: Request, error: int) -> bytes:
        name, producer, epoch = request.text(), *request.take("qh")
        error = error or self._refusal(name, producer, epoch)

        def answer(topic: str) -> bytes:
            (number,) = request.take("i")
            if not error:
                self.transactions[name or ""].partitions.add((topic, number))
            return pack("ih", number, error)

        return pack("i", 0) + request.by_topic(answer)

    def _AddOffsetsToTxn(self, request: Request, error: int) -> bytes:
        return pack("ih", 0, error or self._refusal(request.text(), *request.take("qh")))

    def _TxnOffsetCommit(self, request: Request, error: int) -> bytes:
        name, group, producer, epoch = request.text(), request.text(), *request.take("qh")
        error = error or self._refusal(name, producer, epoch)

        def answer(topic: str) -> bytes:
            number, offset = request.take("iq")
            metadata = request.text()
            if not error:
                self.transactions[name or ""].offsets[group or "", topic, number] = offset, metadata
            return pack("ih", number, error)

        return pack("i", 0) + request.by_topic(answer)

    def _EndTxn(self, request: Request, error: int) -> bytes:
        name, producer, epoch, committed = request.text(), *request.take("qhb")
        error = error or self._refusal(name, producer, epoch)
        if not error:
            self._end(self.transactions[name or ""], committed=bool(committed))
        return pack("ih", 0, error)

    def _OffsetCommit(self, request: Request, error: int) -> bytes:
        group, _, _, _ = request.text(), *request.take("i"), request.text(), *request.take("q")

        def answer(topic: str) -> bytes:
            number, offset = request.take("iq")
            self.offsets[group or "", topic, number] = offset, request.text()
            return pack("ih", number, error)

        return request.by_topic(answer)

    def _OffsetFetch(self, request: Request, error: int) -> bytes:
        group = request.text()

        def answer(topic: str) -> bytes:
            (number,) = request.take("i")
            offset, metadata = self.offsets.get((group or "", topic, number), (-1, ""))
            return pack("iq", number, offset) + text(metadata) + pack("h", error)

        return pack("i", 0) + request.by_topic(answer) + pack("h", error)

    # -- what they share ---------------------------------------------------------------------------------------------

    def _partition(self, topic: str, number: int) -> Partition | None:
        partitions = self.topics.get(topic, [])
        return partitions[number] if number < len(partitions) else None

    def _refusal(self, name: str | None, producer: int, epoch: int) -> int:
        """Why a producer may not do this, 0 if it may."""
        if name is None:
            return 0
        known = self.transactions.get(name)
        if known is None or known.producer != producer:
            return INVALID_MAPPING
        return INVALID_PRODUCER_EPOCH if epoch != known.epoch else 0

    def _end(self, known: Transactions, *, committed: bool) -> None:
        for topic, number in known.partitions:
            self.topics[topic][number].finish(known.producer, known.epoch, committed)
        if committed:
            self.offsets.update(known.offsets)
        known.partitions.clear()
        known.offsets.clear()


class Request:
    """Takes the parts of a request in their order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kinds: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f">{kinds}", self._data, self._at)
        self._at += struct.calcsize(f">{kinds}")
        return found

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> Any:
        (size,) = self.take("h")
        return None if size < 0 else self.bytes(size).decode()

    def array(self, read: Callable[[], Any], none: Any = ()) -> Any:
        (count,) = self.take("i")
        return none if count < 0 else [read() for _ in range(count)]

    def by_topic(self, answer: Callable[[str], bytes]) -> bytes:
        """The answer for each partition of each topic, for which `answer` takes what is asked."""

        def of_topic() -> bytes:
            topic = self.text()
            return text(topic) + array(self.array(lambda: answer(topic)))

        return array(self.array(of_topic))

    def batches(self, size: int) -> list[bytes]:
        end, found = self._at + size, list[bytes]()
        while self._at < end:
            (length,) = struct.unpack_from(">i", self._data, self._at + 8)
            found.append(self.bytes(12 + length))
        return found


def pack(kinds: str, *values: Any) -> bytes:
    return struct.pack(f">{kinds}", *values)


def text(value: str | None) -> bytes:
    return pack("h", -1) if value is None else pack("h", len(value.encode())) + value.encode()


def array(items: Any) -> bytes:
    found = list(items)
    return pack("i", len(found)) + b"".join(found)


def _marker(producer: int, epoch: int, committed: bool) -> bytes:
    """The control batch that ends a transaction. Its checksum is left out: nobody looks at it."""
    record = bytes([0, 0, 0, 8]) + pack("hh", 0, int(committed)) + bytes([12]) + pack("hi", 0, 0) + bytes([0])
    record = bytes([len(record) * 2]) + record
    head = pack("bihiqqqhii", 2, 0, _TRANSACTIONAL | _CONTROL, 0, 0, 0, producer, epoch, -1, 1)
    return pack("qii", 0, 4 + len(head) + len(record), 0) + head + record


def _values(batch: bytes) -> list[bytes]:
    """The values of an uncompressed batch."""
    (count,), at, found = struct.unpack_from(">i", batch, 57), 61, list[bytes]()

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = batch[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    for _ in range(count):
        end = number()
        end, at = end + at, at + 1  # behind the length, and behind the attributes
        _, _, key_size = number(), number(), number()  # times and offsets are from those of the batch
        at += max(0, key_size)
        size = number()
        found.append(batch[at : at + size])
        at = end
    return found


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise EOFError("the client is gone")
        found += piece
    return bytes(found)


def _process_behind(connection: socket.socket) -> int:
    """The id of the process at the other end of a connection on this host; 0 if it has died."""
    port = connection.getpeername()[1]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = {f"socket:[{line.split()[9]}]" for line in lines if int(line.split()[1].split(":")[1], 16) == port}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(descriptor) in sockets:
                return int(descriptor.parts[2])
    return 0
