"""The mailbox of an actor, for data and control alike, and the links to the mailboxes of others.

Each process binds a PULL socket and connects a PUSH socket to every process that it sends to. So there is one
connection per pair and direction, the order between two processes is kept, and sending never blocks.

- Within a host, messages travel over Unix sockets in a folder that only this user can enter (`socket_folder.py`). On
  its own host, the supervisor makes one for all actors of an attempt; elsewhere, each actor makes its own. It is
  removed as soon as everyone is connected.
- The actors of a host have direct sockets to each other, without ZeroMQ and its threads (`direct_socket.py`).
- Large payloads travel through shared memory between the actors of a host, which offer it to each other on their links
  (`shared_ring.py`).
- Between hosts, they travel over TCP with CURVE, on the host's own address. A mailbox only admits peers that know the
  key of this attempt, which Ray hands out; without that check CURVE would admit any key.

Each attempt has its own mailboxes, so no message of an earlier attempt can still be in transit.

A connection that breaks loses what was in transit, and ZeroMQ reconnects silently. Therefore the links between two
actors are numbered (`sender`) and never reconnect: a missing frame or a broken connection is noted in `lost`, and the
attempt fails. A heartbeat follows the messages, so that the loss of the last frames is noticed, too. A peer that
vanishes without closing is detected by ZMTP heartbeats, which its I/O thread answers regardless of user code.

Links to and from the supervisor are not numbered: they reconnect, and lost messages are repeated. A link to it may be
watched: its process is silent if it answers no ZMTP heartbeat, as when it is stopped or its host hangs.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import zmq
from msgspec import Struct
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from backedge.engine.on_ray.transport.direct_socket import FrameReader, FrameWriter, listen
from backedge.engine.on_ray.transport.frames import (
    BUNDLE,
    HEADERS_BYTES,
    LINK_BYTES,
    OFFER,
    SHARED,
    WAKE,
    Message,
    bundle,
    pack_heartbeat,
    pack_link,
    pack_offer,
    pack_shared,
    unbundle,
    unpack_link,
    unpack_shared,
)
from backedge.engine.on_ray.transport.shared_ring import RingReceiver, RingSender, can_share_memory
from backedge.engine.on_ray.transport.socket_folder import SocketFolder
from backedge.graphs.ids import Attempt

ONE_FRAME_BYTES_MAX = 65_536
COPIED_BYTES_MAX = 4_000_000
BUNDLED_BYTES_MAX = 4_096
LAST_WORDS_MS = 1_000
AWAKE_NS = 150_000
ZMTP_HEARTBEAT_MS = 5_000
ZMTP_TIMEOUT_MS = 30_000
SILENT_PART_MS_MIN = 1_000
NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Address(Struct, frozen=True):
    """The address of a mailbox: for processes on the same host, and for other hosts if there are any."""

    place: str
    local: str
    remote: str | None = None
    server_key: bytes | None = None

    @property
    def direct(self) -> str:
        return f"{self.local.removeprefix('ipc://')}.direct"


class Keys(Struct, frozen=True):
    """The keys with which a process enters the mailboxes of its attempt."""

    public: bytes
    secret: bytes

    @staticmethod
    def new() -> Keys:
        return Keys(*zmq.curve_keypair())


class _OneKey:
    """Admits peers that have the key of the attempt."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by ZeroMQ for each connection."""
        return key == self._public


class _ZmqBox:
    """The ZeroMQ socket of a mailbox, for the supervisor and other hosts, and what connects to others.

    - has_more: whether it has messages. Its descriptor becomes readable only when that changes.
    """

    def __init__(self, local: str, host: str | None, keys: Keys) -> None:
        self._context = zmq.Context()
        # One for each actor of a run, or three: its own limit is 1,023.
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        self._keys = keys
        self._authenticator: ThreadAuthenticator | None = None
        self.socket = self._context.socket(zmq.PULL)
        self.socket.rcvhwm = 0
        self.server_key = None if host is None else self._let_in_members()
        self.socket.bind(local)
        self.remote = None if host is None else self._bind(host)
        self.descriptor = self.socket.FD
        self.has_more = False

    def _let_in_members(self) -> bytes:
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _OneKey(self._keys.public))
        public, secret = zmq.curve_keypair()
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = public, secret
        return public

    def _bind(self, host: str) -> str:
        self.socket.ipv6 = ":" in host
        address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        return f"{address}:{self.socket.bind_to_random_port(address)}"

    def way(self, address: str, server_key: bytes | None, *, is_numbered: bool, silence_ms: int | None) -> _ZmqWay:
        """Connect to another box."""
        socket = self._context.socket(zmq.PUSH)
        socket.sndhwm = 0
        socket.linger = 0
        if server_key is not None:
            socket.curve_serverkey = server_key
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
        socket.ipv6 = "[" in address
        is_remote = address.startswith("tcp")
        if is_remote:
            socket.heartbeat_ivl, socket.heartbeat_timeout = ZMTP_HEARTBEAT_MS, ZMTP_TIMEOUT_MS
            if is_numbered:
                socket.reconnect_ivl = -1
        way = _ZmqWay(socket, may_break=is_remote and is_numbered, silence_ms=silence_ms)
        socket.connect(address)
        return way

    def look(self) -> None:
        """Its descriptor has changed: ZeroMQ also says by it that a peer has connected."""
        self.has_more = bool(cast(int, self.socket.EVENTS) & zmq.POLLIN)

    def close(self) -> None:
        """Release everything, once all ways are closed."""
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()


class Mailbox:
    """Receives the messages of a process in one attempt.

    `host` is the process's address on the network if other hosts must reach it, else None. `place` names the host.
    `folder` is where its sockets go; None: into a folder of its own. `stays_awake`: whether to poll for answers for a
    moment before sleeping.

    - _folder: the mailbox's own folder, if it has one.
    - _listener, _readers: the direct socket, and the actors that have connected to it. _writers: the direct sockets of
      links with frames for which there was no room. Both by descriptor.
    - _poll: everything that messages arrive on. posted: the links with messages that wait for `flush`.
    - _heard: the number of the last frame of each actor. lost: what was missing. _rings: the shared memory of each
      sender that this process could open.
    """

    def __init__(
        self, place: str, host: str | None, keys: Keys, folder: Path | None = None, *, stays_awake: bool = True
    ) -> None:
        self._place = place
        self._stays_awake = stays_awake
        self._is_awake = False
        self._folder: SocketFolder | None = None
        if folder is None:
            self._folder = SocketFolder()
            folder = self._folder.path
        local = f"ipc://{folder}/{secrets.token_hex(4)}"
        self._box = _ZmqBox(local, host, keys)
        self.address = Address(place, local, self._box.remote, self._box.server_key)
        self._listener = listen(self.address.direct)
        self._readers: dict[int, FrameReader] = {}
        self._writers: dict[int, FrameWriter] = {}
        self._poll = select.poll()
        self._poll.register(self._box.descriptor, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        self._links: list[Link] = []
        self.posted: list[Link] = []
        self._heard: dict[int, int] = {}
        self._rings: dict[int, RingReceiver] = {}
        self.lost: list[str] = []
        self._closing = threading.Lock()
        self._is_closed = False
        self._own = self.link(self.address)

    def link(self, to: Address, sender: int = 0, name: str = "", silence_ms: int | None = None) -> Link:
        """Create a link to another mailbox, called `name` here. `sender` is this actor's number there, or 0.

        `silence_ms`: after how long the other process counts as silent; None: it is not watched.
        """
        address = to.local if to.place == self._place else to.remote
        if address is None:
            raise ValueError(f"the mailbox at {to.place} only accepts its own host, but this is {self._place}")
        is_direct = bool(sender) and address == to.local
        if is_direct:
            way = FrameWriter(to.direct, self._await_room)
        else:
            way = self._box.way(address, to.server_key, is_numbered=bool(sender), silence_ms=silence_ms)
        link = Link(way, self.posted, sender, name, self.lost, shares_memory=is_direct and can_share_memory())
        self._links.append(link)
        return link

    def _await_room(self, writer: FrameWriter) -> None:
        """Send on, as soon as there is room again."""
        self._writers[writer.fileno()] = writer
        self._poll.register(writer, select.POLLOUT)

    def links(
        self, addresses: Mapping[str, Address], sender: int = 0, silence_ms: int | None = None
    ) -> dict[str, Link]:
        return {name: self.link(address, sender, name, silence_ms) for name, address in addresses.items()}

    def look_after_links(self, attempt: Attempt) -> None:
        """Send due heartbeats, and note broken connections."""
        for link in self._links:
            link.look_after(attempt)

    def receive(self, messages_max: int, timeout_ms: int = 0) -> list[Message]:
        """Return about `messages_max` messages at most; wait for the first until the timeout or `wake`.

        What arrives after the first message is left for the next call, so that a message costs one look.
        """
        found: list[Message] = []
        events = self._poll.poll(0)
        if events or self._box.has_more:
            self._take_what_came(events, messages_max, found)
        if not found and timeout_ms > 0:
            until_ns = time.monotonic_ns() + timeout_ms * 1_000_000
            while not found and (events := self._wait(until_ns)):
                self._take_what_came(events, messages_max, found)
        if found or timeout_ms > 0:
            self._is_awake = self._stays_awake and bool(found)
        return found

    def _wait(self, until_ns: int) -> list[tuple[int, int]]:
        """Wait for something to arrive, awake at first; return where it did.

        Falling asleep and waking up takes longer than most answers: without this, a hop takes twice as long.
        """
        poll = self._poll.poll
        now_ns = time.monotonic_ns()
        awake_until_ns = now_ns + AWAKE_NS if self._is_awake else now_ns
        while now_ns < awake_until_ns:
            if events := poll(0):
                return events
            os.sched_yield()
            now_ns = time.monotonic_ns()
        while now_ns < until_ns:
            if events := poll(-((now_ns - until_ns) // 1_000_000)):
                return events
            now_ns = time.monotonic_ns()
        return []

    def _take_what_came(self, events: list[tuple[int, int]], messages_max: int, found: list[Message]) -> None:
        """Look once at everything that has something, so that no sender keeps others from being heard."""
        for descriptor, _ in events:
            reader = self._readers.get(descriptor)
            if reader is not None:
                frames = reader.read()
                if frames is None:
                    self._forget(reader)
                for data, start, end in frames or ():
                    self._take(data, start, end, found)
            elif descriptor == self._box.descriptor:
                self._box.look()
            elif descriptor == self._listener.fileno():
                self._admit()
            else:
                self._send_on(self._writers[descriptor])
        if self._box.has_more:
            self._take_from_box(len(found) + messages_max, found)

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        reader = FrameReader(connection)
        self._readers[reader.fileno()] = reader
        self._poll.register(reader, select.POLLIN)

    def _forget(self, reader: FrameReader) -> None:
        self._poll.unregister(reader)
        del self._readers[reader.fileno()]
        reader.close()

    def _send_on(self, writer: FrameWriter) -> None:
        if writer.flush():
            self._poll.unregister(writer)
            del self._writers[writer.fileno()]

    def _take_from_box(self, messages_max: int, found: list[Message]) -> None:
        box = self._box.socket
        while len(found) < messages_max:
            try:
                frame = box.recv(NOBLOCK)
            except zmq.Again:
                self._box.has_more = False
                return
            if len(frame) == HEADERS_BYTES and box.get(zmq.RCVMORE):
                self._note_frame(frame, 0)
                found.append((frame[LINK_BYTES:], box.recv()))
            else:
                self._take(frame, 0, len(frame), found)

    def _note_frame(self, data: bytes, start: int) -> int:
        """Note which frame of which link this is; return the number of its sender."""
        sender, number = unpack_link(data, start)
        if sender:
            before = self._heard.get(sender, 0)
            if number != before + 1:
                story = f"frame {number} of actor number {sender} arrived after frame {before}"
                self.lost.append(f"{story}: those between are lost")
            self._heard[sender] = number
        return sender

    def _take(self, data: bytes, start: int, end: int, found: list[Message]) -> None:
        """Take the messages of a frame, which is this part of the data."""
        sender = self._note_frame(data, start)
        header_start, payload_start = start + LINK_BYTES, start + HEADERS_BYTES
        kind = data[header_start]
        if kind == BUNDLE:
            bundled = unbundle(data, payload_start, end)
            ring = self._rings.get(sender)
            found += bundled if ring is None else (_whole(message, ring) for message in bundled)
        elif kind == OFFER:
            ring = RingReceiver.opened(data[payload_start:end].decode())
            if ring is not None:
                self._rings[sender] = ring
        else:
            message = data[header_start:payload_start], data[payload_start:end]
            found.append(_whole(message, self._rings[sender]) if kind == SHARED else message)

    def flush(self) -> None:
        """Send what was posted on the links of this mailbox."""
        for link in self.posted:
            link.flush()
        self.posted.clear()

    def wake(self) -> None:
        """Make `receive` return, from any thread; has no effect after `close`."""
        with self._closing:
            if not self._is_closed:
                self._own.send(WAKE)

    def all_are_connected(self) -> None:
        """Remove the mailbox's own folder: everyone is connected."""
        if self._folder is not None:
            self._folder.remove()

    def close(self, last: Link | None = None) -> None:
        """Release everything. Messages on `last` have a second to leave; other unsent messages are dropped."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self.all_are_connected()
        for link in self._links:
            link.close(LAST_WORDS_MS if link is last else 0)
        for reader in self._readers.values():
            reader.close()
        self._listener.close()
        for ring in self._rings.values():
            ring.close()
        self._box.close()


def _whole(message: Message, ring: RingReceiver) -> Message:
    """The message, with its payload if that is in shared memory."""
    header, payload = message
    if header[0] != SHARED:
        return message
    header, place = unpack_shared(payload)
    return header, ring.take(place)


class _Watch:
    """Finds out whether the process at the other end of a socket answers ZMTP heartbeats, connected or not.

    A third of the time it takes until the next heartbeat, a third until its answer is missed and the connection is
    given up, and a third is left for another connection.
    """

    def __init__(self, socket: zmq.Socket[bytes], silence_ms: int) -> None:
        part_ms = max(SILENT_PART_MS_MIN, silence_ms // 3)
        socket.heartbeat_ivl = socket.heartbeat_timeout = part_ms
        self._grace_s = part_ms / 1000
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._lost_at_s: float | None = time.monotonic()

    def is_silent(self) -> bool:
        """Whether the connection was lost, or never made, and has not come back in time."""
        while self._monitor.poll(0):
            is_back = recv_monitor_message(self._monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._lost_at_s = None if is_back else time.monotonic()
        return self._lost_at_s is not None and time.monotonic() - self._lost_at_s >= self._grace_s

    def close(self) -> None:
        self._monitor.close(0)


class _ZmqWay:
    """Over ZeroMQ. `may_break`: a connection that breaks is not made again, which is noted.

    `silence_ms`: after how long the other process counts as silent; None: it is not watched.
    """

    __slots__ = ("_monitor", "_send", "_socket", "_watch")

    def __init__(self, socket: zmq.Socket[bytes], *, may_break: bool, silence_ms: int | None) -> None:
        self._socket = socket
        self._send = socket.send
        self._monitor = socket.get_monitor_socket(BROKEN) if may_break else None
        self._watch = None if silence_ms is None else _Watch(socket, silence_ms)

    def send(self, frame: bytes, payload: bytes = b"") -> bool:
        """Send a frame. Only a very large payload is not copied.

        ZeroMQ releases its memory through a thread of its own, and waiting for that thread's turn in Python takes
        longer than the copy.
        """
        try:
            if payload:
                self._send(frame, NOBLOCK_MORE)
                self._send(payload, NOBLOCK, copy=len(payload) < COPIED_BYTES_MAX)
            else:
                self._send(frame, NOBLOCK)
        except zmq.Again:
            return False
        return True

    def has_broken(self) -> bool:
        return self._monitor is not None and bool(self._monitor.poll(0))

    def is_silent(self) -> bool:
        return self._watch is not None and self._watch.is_silent()

    def close(self, linger_ms: int) -> None:
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        if self._watch is not None:
            self._socket.disable_monitor()
            self._watch.close()
        self._socket.close(linger_ms)


Way = FrameWriter | _ZmqWay
"""Carries the frames of a link. Sending never waits."""


class Link:
    """A connection to one mailbox. Sending never blocks.

    `lost` receives notes of broken connections. `shares_memory`: whether large payloads may travel through memory that
    the receiver can open. It is offered with the first of them at the latest (`offer_memory`).
    """

    __slots__ = (
        "_beaten",
        "_frames",
        "_lost",
        "_name",
        "_number",
        "_posted",
        "_ring",
        "_sender",
        "_shares_memory",
        "_way",
    )

    def __init__(
        self, way: Way, posted: list[Link], sender: int, name: str, lost: list[str], *, shares_memory: bool
    ) -> None:
        self._way = way
        self._frames: list[bytes] = []
        self._posted = posted
        self._sender = sender
        self._number = 0
        self._beaten = 0
        self._name = name
        self._lost = lost
        self._shares_memory = shares_memory
        self._ring: RingSender | None = None

    def send(self, message: Message) -> None:
        """Send one message: small ones in one piece, which takes half the time."""
        header, payload = message
        if len(payload) < ONE_FRAME_BYTES_MAX:
            self._send_frame(header + payload)
        else:
            self._send_frame(header, payload)

    def _send_frame(self, frame: bytes, payload: bytes = b"") -> None:
        if self._sender:
            self._number += 1
        if not self._way.send(pack_link(self._sender, self._number) + frame, payload):
            self._note_broken()

    def _note_broken(self) -> None:
        self._lost.append(f"the connection to actor {self._name} has broken")

    def look_after(self, attempt: Attempt) -> None:
        """Send a heartbeat if anything was sent since the last one, and check whether the connection has broken."""
        if self._sender and self._number > self._beaten:
            self.send(pack_heartbeat(attempt))
            self._beaten = self._number
        if self._way.has_broken():
            self._note_broken()

    def is_silent(self) -> bool:
        return self._way.is_silent()

    def post(self, message: Message) -> None:
        """Send a message when the mailbox is flushed, together with others posted until then.

        A large one is sent at once, unless its payload finds a place in shared memory.
        """
        header, payload = message
        if len(payload) > BUNDLED_BYTES_MAX:
            place = self._put(payload)
            if place is None:
                self.flush()
                self.send(message)
                return
            frame = pack_shared(header, place)
        else:
            frame = header + payload
        if not self._frames:
            self._posted.append(self)
        self._frames.append(frame)

    def offer_memory(self) -> None:
        """Offer shared memory to the receiver, unless that was done or is impossible. All can travel without it."""
        if not self._shares_memory or self._ring is not None:
            return
        try:
            self._ring = RingSender()
        except OSError:
            self._shares_memory = False
            return
        self._send_frame(pack_offer(self._ring.offer))

    def _put(self, payload: bytes) -> tuple[int, int] | None:
        """Put a payload into shared memory, if the receiver has opened it and there is room."""
        self.offer_memory()
        return None if self._ring is None else self._ring.put(payload)

    def flush(self) -> None:
        """Send the posted messages."""
        frames, self._frames = self._frames, []
        if len(frames) == 1:
            self._send_frame(frames[0])
        elif frames:
            self._send_frame(bundle(frames))

    def close(self, linger_ms: int) -> None:
        """Stop sending; messages already sent have this long to leave."""
        if self._ring is not None:
            self._ring.close()
        self._way.close(linger_ms)
