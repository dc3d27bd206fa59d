"""Parquet files with a column of bytes that is neither compressed nor copied more often than once.

Arrow copies such a column into pages, the pages into a buffer that grows, and that into the result: of a large state of
bytes, this took half of the time of a cut. Here each page is put together from the values themselves, and goes to the
disk before the next one is made. Arrow encodes all other columns; the pages of this one follow behind theirs, and the
footer names them at the place of the column.

A page is a header and, for each value, its length in four bytes and the value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.recovery.stores import thrift
from backedge.recovery.stores.parquet_tables import SAMPLE_BYTES, encode, sample_starts, shrinks
from backedge.recovery.stores.thrift import BINARY, I32, I64, LIST, STRUCT, Struct

LARGE_BYTES = 1 << 20
"""From this size on, a column of bytes is worth pages of its own."""

PAGE_BYTES = 1 << 20
"""Small enough for the processor's cache, and large enough that a page costs little."""

ROWS_MAX = 1 << 20
"""Arrow puts that many rows into one group of rows, which is all that such a file has."""

_VALUE_BYTES_MAX = 1 << 30
_MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_BYTE_ARRAY, _REQUIRED, _PLAIN, _RLE, _UNCOMPRESSED, _DATA_PAGE = 6, 0, 0, 3, 0, 0


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """A column of bytes without nulls: its place among the columns of the file, its values, and their lengths."""

    name: str
    place: int
    values: Iterable[bytes]
    sizes: npt.NDArray[np.int64]


def is_worth_pages(column: BytesColumn) -> bool:
    """Whether a column should be written that way: it is large, and compression makes it no smaller."""
    sizes = column.sizes
    if sizes.sum() < LARGE_BYTES or len(sizes) > ROWS_MAX or sizes.max() > _VALUE_BYTES_MAX:
        return False
    return not shrinks(_sample(list(column.values), sizes))


def _sample(values: Sequence[bytes], sizes: npt.NDArray[np.int64]) -> bytes:
    """Some of the bytes from all over the values, as if they were one behind the other."""
    ends = np.cumsum(sizes)
    parts: list[bytes] = []
    for start in sample_starts(int(ends[-1])):
        end = start + SAMPLE_BYTES
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (start, end))
        skipped = start - int(ends[first] - sizes[first])
        taken = [value[:SAMPLE_BYTES] for value in values[first + 1 : last + 1]]
        parts.append(b"".join([values[first][skipped : skipped + SAMPLE_BYTES], *taken])[:SAMPLE_BYTES])
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class WithBytes:
    """A Parquet file of a table and another column, in pieces. It may be iterated over again."""

    table: Any
    repeating: Sequence[str]
    column: BytesColumn

    def __iter__(self) -> Iterator[bytes]:
        others = encode(self.table, self.repeating)
        footer_bytes = int.from_bytes(others[-8:-4], "little")
        start = len(others) - 8 - footer_bytes
        yield others[:start]
        size = 0
        for page in self._pages():
            size += len(page)
            yield page
        footer = thrift.encoded(self._footer(thrift.decoded(others[start:-8]), start, size))
        yield footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _pages(self) -> Iterator[bytes]:
        values, sizes = iter(self.column.values), self.column.sizes
        if len(sizes) and sizes.max() > _VALUE_BYTES_MAX:
            raise OSError(f"a value has {sizes.max():,} bytes, and a table holds at most {_VALUE_BYTES_MAX:,} of one")
        ends = np.cumsum(sizes + _LENGTH_BYTES)
        starts = [0, *(np.flatnonzero(np.diff(ends // PAGE_BYTES)) + 1).tolist(), len(sizes)]
        lengths = {size: struct.pack("<I", size) for size in np.unique(sizes).tolist()}
        for first, last in pairwise(starts):
            # Often all values are equally long.
            parts = [next(iter(lengths.values()), b"")] * (2 * (last - first) + 1)
            if len(lengths) > 1:
                parts[1::2] = map(lengths.__getitem__, sizes[first:last].tolist())
            parts[2::2] = islice(values, last - first)
            parts[0] = _page_header(last - first, int(ends[last - 1] - (ends[first - 1] if first else 0)))
            yield b"".join(parts)

    def _footer(self, footer: Struct, start: int, size: int) -> Struct:
        """Add the column to a footer. Its pages begin at `start` and take `size` bytes."""
        column = self.column
        name = column.name.encode()
        root, *fields = footer[2][1][1]
        root[5] = I32, root[5][1] + 1
        fields.insert(column.place, {1: (I32, _BYTE_ARRAY), 3: (I32, _REQUIRED), 4: (BINARY, name)})
        if 7 in footer:  # how to compare the values of each column; all alike
            orders = footer[7][1][1]
            orders.insert(column.place, orders[0])
        [group] = footer[4][1][1]
        chunk: Struct = {
            1: (I32, _BYTE_ARRAY),
            2: (LIST, (I32, [_PLAIN, _RLE])),
            3: (LIST, (BINARY, [name])),
            4: (I32, _UNCOMPRESSED),
            5: (I64, len(column.sizes)),
            6: (I64, size),
            7: (I64, size),
            9: (I64, start),
        }
        group[1][1][1].insert(column.place, {2: (I64, 0), 3: (STRUCT, chunk)})
        for total in (2, 6):  # before and after compression
            group[total] = I64, group[total][1] + size
        return {**footer, 2: (LIST, (STRUCT, [root, *fields]))}


def _page_header(values: int, size: int) -> bytes:
    data: Struct = {1: (I32, values), 2: (I32, _PLAIN), 3: (I32, _RLE), 4: (I32, _RLE)}
    return thrift.encoded({1: (I32, _DATA_PAGE), 2: (I32, size), 3: (I32, size), 5: (STRUCT, data)})
