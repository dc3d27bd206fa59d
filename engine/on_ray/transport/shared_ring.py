"""Memory shared by two processes of a host, through which large payloads travel in one direction.

The sender creates the memory and offers it over the link; the receiver opens it and notes that in the memory. From
then on the sender copies each large payload into the memory, and only a note of its place goes over the link, in order
with the other frames. The receiver copies the payload out when it reads the note, and counts that in the memory. So a
payload is copied twice, instead of four times on its way through a socket, and no other thread has to run for it.

Sending never waits: a payload for which there is no room goes over the link itself, as all of them do until the memory
is opened, or for ever if it cannot be. If nothing is in transit, the next payload is put at the beginning, so only as
much memory is used as is in transit at a time, and it stays in the processor's cache.

The memory has no name in any file system (memfd), so processes that are killed leave none behind. That what was read is
what was sent, and nothing that was put there later, is shown by the digest of the channel.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections import deque
from pathlib import Path

RING_BYTES = 16 << 20
_HEAD_BYTES = mmap.PAGESIZE
_IS_OPENED, _TAKEN = 0, 1
"""The words at the beginning, both written by the receiver."""
PREFIX = "backedge-"
"""How the names begin under which the kernel lists the memory."""

Place = tuple[int, int]
"""The beginning and the end of a payload in the memory."""


class _Memory:
    """The mapped memory, and its words."""

    def __init__(self, file: int) -> None:
        self.mapped = mmap.mmap(file, _HEAD_BYTES + RING_BYTES)
        self.words = memoryview(self.mapped)[:_HEAD_BYTES].cast("Q")

    def close(self) -> None:
        self.words.release()
        self.mapped.close()


class RingSender:
    """The sender's end.

    - offer: what the receiver needs to open the memory.

    >>> sender = RingSender()
    >>> receiver = RingReceiver.opened(sender.offer)
    >>> place = sender.put(b"payload")
    >>> receiver.take(place)
    b'payload'
    >>> sender.close()
    >>> receiver.close()
    """

    def __init__(self) -> None:
        name = PREFIX + secrets.token_hex(8)
        self._file = os.memfd_create(name)
        try:
            os.ftruncate(self._file, _HEAD_BYTES + RING_BYTES)
            self._memory = _Memory(self._file)
        except OSError:
            os.close(self._file)
            raise
        self.offer = f"/proc/{os.getpid()}/fd/{self._file} {name}"
        # Where the payloads are that the receiver has not taken yet, in order; and how many it has taken.
        self._places: deque[Place] = deque()
        self._taken = 0

    def put(self, payload: bytes) -> Place | None:
        """Put a payload into the memory; None if there is no room, or if the receiver has not opened the memory."""
        memory, places = self._memory, self._places
        if not memory.words[_IS_OPENED]:
            return None
        taken = memory.words[_TAKEN]
        for _ in range(taken - self._taken):
            places.popleft()
        self._taken = taken
        start = self._room_for(len(payload))
        if start is None:
            return None
        place = start, start + len(payload)
        memory.mapped[place[0] : place[1]] = payload
        places.append(place)
        return place

    def _room_for(self, size: int) -> int | None:
        """Where the next payload begins: behind the last one, or at the beginning if it does not fit there."""
        first, end = _HEAD_BYTES, _HEAD_BYTES + RING_BYTES
        if not self._places:
            return first if size <= RING_BYTES else None
        oldest, latest = self._places[0][0], self._places[-1][1]
        if latest <= oldest:
            return latest if latest + size <= oldest else None
        if latest + size <= end:
            return latest
        return first if first + size <= oldest else None

    def close(self) -> None:
        """Give the memory up. It is free as soon as the receiver has done so, too."""
        self._memory.close()
        os.close(self._file)


class RingReceiver:
    """The receiver's end."""

    def __init__(self, file: int) -> None:
        try:
            self._memory = _Memory(file)
        finally:
            os.close(file)
        self._memory.words[_IS_OPENED] = 1

    @staticmethod
    def opened(offer: str) -> RingReceiver | None:
        """Open what a sender has offered; None if this process cannot, as in another container of the host."""
        file = open_offered(offer, os.O_RDWR)
        try:
            return None if file is None else RingReceiver(file)
        except OSError:
            return None

    def take(self, place: Place) -> bytes:
        """Copy a payload out of the memory. Payloads are taken in the order in which they were put there."""
        memory = self._memory
        payload = memory.mapped[place[0] : place[1]]
        memory.words[_TAKEN] += 1
        return payload

    def close(self) -> None:
        """Give the memory up."""
        self._memory.close()


def open_offered(offer: str, flags: int) -> int | None:
    """Open memory of another process, by the path to it and its name; None if it is not there, as on another host."""
    path, _, name = offer.partition(" ")
    try:
        return os.open(path, flags) if os.readlink(path).startswith(f"/memfd:{name}") else None
    except OSError:
        return None


def can_share_memory() -> bool:
    """Whether this system has memory without a name that other processes can open."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
