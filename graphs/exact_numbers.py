"""Finds numbers that a type cannot hold, and sums that have exceeded theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def converted(numbers: Array, kind: np.dtype[Any]) -> tuple[Array, Array]:
    """The numbers as this type, and those of them that it cannot hold. Floats are rounded, but not to infinity.

    >>> converted(np.array([2**53 + 1, 1]), np.dtype(np.float64))[1].tolist()
    [9007199254740993]
    >>> converted(np.array([1e300, 0.1]), np.dtype(np.float32))[1].tolist()
    [1e+300]
    """
    source = numbers.dtype
    # To NumPy, a float holds all integers with as many bits.
    is_rounded = source.kind in "iu" and kind.kind == "f" and source.itemsize >= kind.itemsize
    if np.can_cast(source, kind) and not is_rounded:
        return numbers.astype(kind, copy=False), np.empty(0, source)
    with np.errstate(all="ignore"):
        made = numbers.astype(kind)
        if source.kind == kind.kind == "f":
            is_lost = np.isinf(made)
            is_lost &= ~np.isinf(numbers)
        else:
            is_lost = (made.astype(source) != numbers) | ((made < 0) != (numbers < 0))
            # On some processors the way back from a number that is too large ends at the largest integer.
            if kind.kind == "f":
                is_lost |= made.astype(np.float64) >= _end(source)
            elif source.kind == "f":
                is_lost |= numbers >= _end(kind)
    return made, numbers[is_lost]


def _end(integers: np.dtype[Any]) -> float:
    """The first number beyond these integers, or truth values."""
    return 2.0 if integers.kind == "b" else float(np.iinfo(integers).max) + 1.0


def largest(integers: Array) -> int:
    """The largest magnitude of these integers.

    >>> largest(np.array([3, 5])), largest(np.array([-7, 5]))
    (5, 7)
    """
    if not len(integers):
        return 0
    # One look at them is enough if none is negative: without a sign, such a number is larger than all others.
    found = int(integers.view(f"u{integers.itemsize}").max())
    return found if found <= np.iinfo(integers.dtype).max else max(-int(integers.min()), int(integers.max()))


def check_sums(sums: Array, as_floats: Array) -> None:
    """Raise OverflowError if sums of integers have exceeded their type: those of floats are then far away from them.

    >>> check_sums(np.array([-128], np.int8), np.array([128.0]))
    Traceback (most recent call last):
    OverflowError: a sum of int8 is about 128
    """
    is_wrong = np.abs(sums.astype(np.float64) - as_floats) > float(np.iinfo(sums.dtype).max) / 2
    if is_wrong.any():
        raise OverflowError(f"a sum of {sums.dtype} is about {as_floats[is_wrong][0]:.16g}")
