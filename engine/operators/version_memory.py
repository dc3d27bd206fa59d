"""Memory that versions are published in: filled by one process, read where it is, and used again (rule 17)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from backedge.engine.batches.constant_bytes import constant_pieces
from backedge.graphs.task_errors import MisuseError, describe
from backedge.graphs.versions import Versions
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import Memory, Shelf


class Fillable(Memory, Protocol):
    """Memory that can be filled and read."""

    def fill(self, pieces: Sequence[memoryview]) -> memoryview:
        """Fill memory that was taken or made. Like `hold`, it returns its content."""
        ...

    def hold(self) -> memoryview:
        """What is in it. It is not taken for another version as long as there is a view of this."""
        ...


AnyFillable = TypeVar("AnyFillable", bound=Fillable)


class OwnMemory:
    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes: Any = np.zeros(size, np.uint8)
        self._used = 0
        self._held: Callable[[], Any] = lambda: None

    def take(self) -> bool:
        return self._held() is None

    def fill(self, pieces: Sequence[memoryview]) -> memoryview:
        self._used = fill(memoryview(self._bytes), pieces)
        return self.hold()

    def hold(self) -> memoryview:
        held: Any = self._held()
        if held is None:
            held = np.frombuffer(self._bytes, np.uint8, self._used)
            held.flags.writeable = False
            self._held = weakref.ref(held)
        return memoryview(held)


def fill(memory: memoryview, pieces: Sequence[memoryview]) -> int:
    """Copy pieces to the beginning of memory, one behind the other; return how many bytes."""
    end = 0
    for piece in pieces:
        memory[end : end + len(piece)] = piece
        end += len(piece)
    return end


def held_on(shelf: Shelf[AnyFillable], number: int) -> memoryview | None:
    """The content of a version that is on a shelf, which another thread may fill."""
    memory = shelf.find(number)
    data = None if memory is None else memory.hold()
    return data if shelf.find(number) is memory else None


def put_on_shelf(
    shelf: Shelf[AnyFillable],
    make: Callable[[int], AnyFillable],
    versions: Versions,
    number: int,
    value: Any,
    kept: Collection[int],
) -> tuple[AnyFillable, Version]:
    """Publish a value: encode it into memory, and put this on the shelf. `kept`: the numbers of those before it."""
    try:
        pieces = constant_pieces(value)
    except Exception as error:
        raise MisuseError(
            f"ctx.publish: a value for {versions!r} does not pickle ({describe(error)}): make it of arrays, tables and "
            "plain values"
        ) from error
    size = _rounded(sum(map(len, pieces)))
    memory = shelf.room(size) or make(size)
    data = memory.fill(pieces)
    shelf.put(number, memory, kept)
    return memory, Version(versions.name, number, data)


def _rounded(size: int) -> int:
    """The size of the memory for so many bytes. Values of about the same size fit into the memory of each other.

    >>> _rounded(100), _rounded(20_000_000)
    (4096, 20971520)
    """
    unit = max(4096, 1 << (size.bit_length() - 4))
    return -(-size // unit) * unit
