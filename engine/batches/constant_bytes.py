"""The value of a constant as bytes, from which arrays and Arrow tables are read without a copy.

    number of buffers and length of each, as 8-byte integers; then the buffers, each at a multiple of 64

The first buffer is a pickle, the others are the memory of arrays, which it refers to. So a process that maps the bytes
has arrays that are views of them. They cannot be written to.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

ALIGNED = 64
"""What Arrow and vector instructions expect of the place of an array."""


def constant_pieces(value: Any) -> list[memoryview]:
    """The bytes of a constant in pieces that follow one another. The arrays of the value are not copied."""
    taken: list[pickle.PickleBuffer] = []
    head: bytes = cloudpickle.dumps(value, 5, taken.append)  # pyright: ignore[reportUnknownMemberType]
    buffers = [memoryview(head), *(buffer.raw() for buffer in taken)]
    sizes = memoryview(np.array([len(buffers), *map(len, buffers)], "<i8").tobytes())
    return [piece for part in (sizes, *buffers) for piece in (part, memoryview(bytes(_padding(len(part)))))]


def constant_bytes(value: Any) -> bytes:
    """Encode the value of a constant.

    >>> value = {"names": ["a", "b"], "prices": np.arange(3.0)}
    >>> constant_in(memoryview(constant_bytes(value)))["prices"]
    array([0., 1., 2.])
    """
    return b"".join(constant_pieces(value))


def constant_in(data: memoryview) -> Any:
    """Decode the value of a constant. Its arrays are views of the bytes."""
    data = data.toreadonly()
    count = int(np.frombuffer(data, "<i8", 1)[0])
    pieces, start = list[memoryview](), 8 * (count + 1) + _padding(8 * (count + 1))
    for size in np.frombuffer(data, "<i8", count, 8).tolist():
        pieces.append(data[start : start + size])
        start += size + _padding(size)
    head, *buffers = pieces
    return pickle.loads(head, buffers=buffers)


def _padding(size: int) -> int:
    """The number of bytes that align what follows `size` bytes."""
    return -size % ALIGNED
