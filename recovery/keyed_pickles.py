"""Key groups of pickled entries whose integer keys are known: a store can file them without reading a pickle."""

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


class KeyedPickles(Mapping[int, bytes]):
    """Group -> its entries, as concatenated pickles of (key, value). No value is a plain number or text."""

    @abstractmethod
    def sizes(self) -> list[int]:
        """The bytes of each key group, from group 0 on, or a little more."""

    @abstractmethod
    def rows(self, first: int, last: int) -> Iterator[PickledRows]:
        """The entries of these groups, both included."""
