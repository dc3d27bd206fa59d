"""Key groups of entries whose integer keys are known: a store files them without reading a pickle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from backedge.recovery.typed_groups import Column


class PickledRows(NamedTuple):
    """Some entries in the order of their groups. `sizes` are the bytes of each in `data`, one behind the other."""

    groups: Column
    keys: Column
    sizes: Column
    data: bytes


class Listed:
    """The values in several lists, one list after the other. They are only looked at as they are used.

    >>> list(Listed([[b"a", b"b"], [], [b"c"]]))
    [b'a', b'b', b'c']
    """

    def __init__(self, lists: Sequence[list[bytes]]) -> None:
        self._lists = lists

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._lists)


class BytesRows(NamedTuple):
    """Some entries in the order of their groups, whose values are bytes. `sizes` are the lengths of the values."""

    groups: Column
    keys: Column
    sizes: Column
    values: Iterable[bytes]


class KeyedPickles(Mapping[int, bytes]):
    """Group -> its entries, as concatenated pickles of (key, value). No value is a plain number or text.

    The values that are bytes come as they are.
    """

    @abstractmethod
    def sizes(self) -> list[int]:
        """The bytes of each key group, from group 0 on, or a little more."""

    @abstractmethod
    def rows(self, first: int, last: int) -> Iterator[PickledRows | BytesRows]:
        """The entries of these groups, both included."""


def chunk_starts(sizes: Column, bytes_max: int) -> list[int]:
    """Where chunks of values of these sizes begin, and the last one ends. None has twice as many bytes as `bytes_max`,
    unless it is a single value.

    >>> chunk_starts(np.array([4, 9, 4, 1, 50, 9]), 10)
    [0, 1, 4, 5, 6]
    """
    ends = np.cumsum(sizes)
    if not len(ends) or ends[-1] <= bytes_max:
        return [0, len(sizes)]
    large = np.flatnonzero(sizes > bytes_max)
    inner = np.unique(np.concatenate([np.flatnonzero(np.diff(ends // bytes_max)) + 1, large, large + 1]))
    return [0, *inner[(inner > 0) & (inner < len(sizes))].tolist(), len(sizes)]
