"""The value of a constant as bytes, from which arrays and Arrow tables are read without a copy.

    number of buffers and length of each, as 8-byte integers; then the buffers, each at a multiple of 64

The first buffer is a pickle, the others are the memory of arrays, which it refers to. So a process that maps the bytes
has arrays that are views of them. They cannot be written to.
"""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

ALIGNED = 64
"""What Arrow and vector instructions expect of the place of an array."""


def constant_bytes(value: Any) -> bytearray:
    """Encode the value of a constant.

    >>> value = {"names": ["a", "b"], "prices": np.arange(3.0)}
    >>> constant_in(memoryview(constant_bytes(value)))["prices"]
    array([0., 1., 2.])
    """
    taken: list[pickle.PickleBuffer] = []
    head: bytes = cloudpickle.dumps(value, 5, taken.append)  # pyright: ignore[reportUnknownMemberType]
    buffers = [memoryview(head), *(buffer.raw() for buffer in taken)]
    sizes = np.array([len(buffers), *map(len, buffers)], "<i8").tobytes()
    starts = _starts(len(sizes), [len(buffer) for buffer in buffers])
    data = bytearray(starts[-1])
    data[: len(sizes)] = sizes
    for start, buffer in zip(starts, buffers, strict=False):
        data[start : start + len(buffer)] = buffer
    return data


def constant_in(data: memoryview) -> Any:
    """Decode the value of a constant. Its arrays are views of the bytes."""
    data = data.toreadonly()
    count = int(np.frombuffer(data, "<i8", 1)[0])
    sizes = np.frombuffer(data, "<i8", count, 8).tolist()
    starts = _starts(8 * (count + 1), sizes)
    head, *buffers = (data[start : start + size] for start, size in zip(starts, sizes, strict=False))
    return pickle.loads(head, buffers=buffers)


def _starts(position: int, sizes: list[int]) -> list[int]:
    """Where each buffer starts, and where another one would."""
    aligned = [-(-size // ALIGNED) * ALIGNED for size in (position, *sizes)]
    return list(accumulate(aligned))
