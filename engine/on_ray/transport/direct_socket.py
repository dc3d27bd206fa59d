"""Unix sockets between the actors of a host: frames in order, each after its length.

ZeroMQ hands each message to a thread of its own, in the sender and again in the receiver. Where cores are few, waiting
for these threads takes longer than all the rest of a small message's way. Here the sender writes into the socket
itself, and the receiver reads from it.

Sending never waits. What the socket has no room for is kept, and sent when the socket can be written again.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress

CONNECTIONS_WAITING_MAX = 1024
READ_BYTES = 65_536
READ_BYTES_MAX = 4 << 20
NOWAIT = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
_LENGTH = struct.Struct("<Q")
_LENGTH_BYTES = _LENGTH.size
_pack_length: Callable[[int], bytes] = _LENGTH.pack
_unpack_length: Callable[[bytes, int], tuple[int]] = _LENGTH.unpack_from

Frame = tuple[bytes, int, int]
"""Bytes that have arrived, and where in them a frame begins and ends."""


def listen(path: str) -> socket.socket:
    """A socket to which the actors of this host connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(CONNECTIONS_WAITING_MAX)
    listener.setblocking(False)
    return listener


class FrameWriter:
    """The sender's end. If the receiver is gone, frames are dropped: the supervisor learns of its death by itself.

    - _left: what the socket had no room for, in order. _await_room: asks the mailbox to call `flush` when it has room.
    """

    __slots__ = ("_await_room", "_left", "_send", "_socket")

    def __init__(self, path: str, await_room: Callable[[FrameWriter], None]) -> None:
        self._await_room = await_room
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._send = self._socket.send
        self._left: deque[memoryview] = deque()
        with suppress(OSError):  # then the receiver is gone, and so will every frame be
            self._socket.connect(path)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes, payload: bytes = b"") -> bool:
        """Send a frame, whose payload may come apart so that it is not copied."""
        size = len(frame) + len(payload)
        data = _pack_length(size) + frame
        if self._left:
            self._keep(data, payload, 0)
            return True
        try:
            sent = self._socket.sendmsg((data, payload), (), NOWAIT) if payload else self._send(data, NOWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            return True
        if sent < _LENGTH_BYTES + size:
            self._keep(data, payload, sent)
            self._await_room(self)
        return True

    def _keep(self, data: bytes, payload: bytes, sent: int) -> None:
        if sent < len(data):
            self._left.append(memoryview(data)[sent:])
        if payload:
            self._left.append(memoryview(payload)[max(0, sent - len(data)) :])

    def has_broken(self) -> bool:
        """Nothing is lost on the way between two living processes of a host."""
        return False

    def is_silent(self) -> bool:
        """Actors are watched by the supervisor alone."""
        return False

    def flush(self) -> bool:
        """Send what has been kept, as far as there is room; return whether that was all."""
        left = self._left
        try:
            while left:
                sent = self._send(left[0], NOWAIT)
                if sent < len(left[0]):
                    left[0] = left[0][sent:]
                else:
                    left.popleft()
        except BlockingIOError:
            return False
        except OSError:
            left.clear()
        return True

    def close(self, linger_ms: int) -> None:
        """Send nothing more. What is in the socket still arrives."""
        self._socket.close()


class FrameReader:
    """The receiver's end of one connection.

    - _parts: the beginning of a frame of which `_missing` bytes have not arrived yet.
    """

    __slots__ = ("_missing", "_parts", "_receive", "_socket")

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._receive = connection.recv
        self._parts: list[bytes] = []
        self._missing = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[Frame] | None:
        """The frames that have arrived, at most a few; None if the sender has closed the connection."""
        size = min(max(READ_BYTES, self._missing), READ_BYTES_MAX) if self._parts else READ_BYTES
        try:
            data = self._receive(size, NOWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._parts)
            self._parts = []
        frames: list[Frame] = []
        at, end = 0, len(data)
        while at < end:
            start = at + _LENGTH_BYTES
            stop = start + _unpack_length(data, at)[0] if start <= end else start
            if stop > end:
                self._parts.append(data[at:])
                self._missing = stop - end
                break
            frames.append((data, start, stop))
            at = stop
        return frames

    def close(self) -> None:
        self._socket.close()
