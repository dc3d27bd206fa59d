"""Key groups of entries whose integer keys are known: a store files them without reading a pickle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from recovery.typed_groups import Column


class PickledRows(NamedTuple):
    """Some entries in the order of their groups. `sizes` are the bytes of each in `data`, one behind the other."""

    groups: Column
    keys: Column
    sizes: Column
    data: bytes


class BytesRows(NamedTuple):
    """Some entries in the order of their groups, whose values are bytes. `sizes` are the lengths of the values."""

    groups: Column
    keys: Column
    sizes: Column
    values: list[bytes]


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
