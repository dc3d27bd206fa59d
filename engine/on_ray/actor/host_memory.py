"""Memory that the processes of a host share: a process publishes versions in it, and others read them where they are.

Each version is in memory of its own, which has no name in any file system (memfd), so processes that are killed leave
none behind. A board, in such memory as well, says which memory holds which number. A reader opens the board once, and
finds a version without asking anyone.

Whoever holds a version has opened its memory for that alone, and has locked it together with others. The lock ends with
the last view of the content, or with the process. The publisher fills memory again if it can lock it alone. A reader
that has the lock looks at the board again: until then, the memory may have got another version.

Mappings are kept and memory is used again, because to clear and map its pages takes longer than to copy a version.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from backedge.engine.on_ray.transport.shared_ring import PREFIX, open_offered
from backedge.engine.operators.version_memory import fill

_FIRST, _LATEST, _ENTRIES = 0, 1, 4
"""The first words of a board: the numbers that are kept. Then entries: number, file, bytes and inode of the memory."""
_ENTRY = 4


class HostMemory:
    """Memory that this process fills, and others map.

    >>> memory = HostMemory(4096)
    >>> content = memory.fill([memoryview(b"content")])
    >>> bytes(content), memory.take()
    (b'content', False)
    >>> del content
    >>> memory.take()
    True
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.file = os.memfd_create(PREFIX + "version")
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, size)
        self.inode = os.fstat(self.file).st_ino
        self._mapped = mmap.mmap(self.file, size)
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def take(self) -> bool:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fill(self, pieces: Sequence[memoryview]) -> memoryview:
        self.used = fill(memoryview(self._mapped), pieces)
        fcntl.flock(self.file, fcntl.LOCK_UN)
        return self.hold()

    def hold(self) -> memoryview:
        lock = os.open(f"/proc/self/fd/{self.file}", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return _held(self._mapped, self.used, lock)


def _held(mapped: mmap.mmap, size: int, lock: int) -> memoryview:
    """What is in memory that is locked until there is no view of this."""
    held: Any = np.frombuffer(mapped, np.uint8, size)
    held.flags.writeable = False
    weakref.finalize(held, os.close, lock).atexit = False
    return memoryview(held)


class Board:
    """The publisher's end: which memory holds which number. `offer`: what a reader needs to open it.

    >>> board, memory = Board(2), HostMemory(4096)
    >>> reader = BoardReader.opened(board.offer)
    >>> content = memory.fill([memoryview(b"content")])
    >>> board.put(1, memory, (1,))
    >>> bytes(reader.hold(1)), reader.hold(2), reader.kept
    (b'content', None, (1,))
    """

    def __init__(self, keep: int) -> None:
        name = PREFIX + secrets.token_hex(8)
        self._keep = keep
        self._file = os.memfd_create(name)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, 8 * (_ENTRIES + _ENTRY * keep))
        self._words = memoryview(mmap.mmap(self._file, 0)).cast("Q")
        self.offer = f"/proc/{os.getpid()}/fd/{self._file} {name}"

    def put(self, number: int, memory: HostMemory, kept: Sequence[int]) -> None:
        """A version is in this memory; `kept` are the numbers that the task keeps now, one after the other."""
        words, at = self._words, _place_of(number, self._keep)
        words[at] = 0  # nobody reads half an entry
        words[at + 1], words[at + 2], words[at + 3] = memory.file, memory.used, memory.inode
        words[at] = number
        words[_FIRST], words[_LATEST] = kept[0], kept[-1]


def _place_of(number: int, keep: int) -> int:
    return _ENTRIES + _ENTRY * (number % keep)


class BoardReader:
    """The readers' end. Threads of a process use one together."""

    def __init__(self, offer: str, file: int) -> None:
        self._files = offer.partition(" ")[0].rpartition("/")[0]
        try:
            self._words = memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ)).cast("Q")
        finally:
            os.close(file)
        self._keep = (len(self._words) - _ENTRIES) // _ENTRY
        # What this process has mapped, by inode; what was used last is at the end.
        self._mapped: dict[int, mmap.mmap] = {}

    @staticmethod
    def opened(offer: str) -> BoardReader | None:
        """Open a board; None if this process cannot: on another host, or in another container."""
        file = open_offered(offer, os.O_RDONLY)
        return None if file is None else BoardReader(offer, file)

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the versions that the task keeps, those of the cut included; none if it has published none."""
        return tuple(range(self._words[_FIRST] or 1, self._words[_LATEST] + 1))

    def hold(self, number: int) -> memoryview | None:
        """The content of a version; None if it is not on the board, or not any more. It stays while there is a view."""
        entry = self._entry(number)
        if entry is None:
            return None
        _, file, size, inode = entry
        try:
            lock = os.open(f"{self._files}/{file}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None  # the publisher has died
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == inode and self._entry(number) == entry:
                found = _held(self._map(lock, inode), size, lock)
                lock = -1
                return found
        except OSError:
            return None  # it is being filled
        finally:
            if lock >= 0:
                os.close(lock)
        return None

    def _entry(self, number: int) -> tuple[int, ...] | None:
        at = _place_of(number, self._keep)
        entry = tuple(self._words[at : at + _ENTRY])
        return entry if entry[0] == number else None

    def _map(self, lock: int, inode: int) -> Any:
        mapped = self._mapped.pop(inode, None)
        if mapped is None:
            # A mapping keeps the file open that it was made of, and with it the lock: so another one.
            file = os.open(f"/proc/self/fd/{lock}", os.O_RDONLY)
            try:
                mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
            finally:
                os.close(file)
        self._mapped[inode] = mapped
        if len(self._mapped) > 2 * self._keep + 2:
            del self._mapped[next(iter(self._mapped))]
        return mapped
