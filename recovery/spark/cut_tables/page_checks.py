"""Checks the pages of a file before Arrow decodes them: a forged file of a few KB may ask for any amount of memory.

A page names a value of a dictionary, or the beginning of an earlier value, in a few bits, and the footer need not tell
of it. So the footer and the header of each page are read here. Our files have neither, except for dictionaries of short
texts, and no compression that makes many bytes of one. So what Arrow decodes takes a multiple of the size of the file.

Arrow is not asked about the footer, because reading some parts of a forged one aborts the process. Its own limits bound
the footer, and not what pages decode to: with all of them set, Arrow made 2.6 GB of a file of 124 KB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from backedge.recovery.stores import thrift
from backedge.recovery.stores.thrift import I32, I64, LIST, STRUCT, Struct

DICTIONARY_BYTES_MAX = 1 << 20
ROWS_PER_BYTE_MAX = 16
ROWS_MIN = 10_000
"""A file may have this number of rows, or some per byte if that is more: integers in a row take less than a byte."""

ROWS_PER_GROUP_MIN = 1 << 20

_FOOTER_BYTES_MAX = 1 << 20
_HEADER_BYTES_MAX = 64 << 10
_MAGIC, _END_BYTES = b"PAR1", 8
_UNCOMPRESSED, _SNAPPY = 0, 1
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_PLAIN, _OF_DICTIONARY, _RLE, _DELTAS = 0, (2, 8), 3, 5
_OF_KIND = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
_ENCODING_AT = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}


class PageError(ValueError):
    """A file is not what our stores write."""


class Leaf(NamedTuple):
    """A column that has pages. `repeats`: its values may be in a dictionary."""

    name: str
    has_bytes: bool
    repeats: bool


class ColumnPages(NamedTuple):
    """The bytes of the pages of a column when they are decompressed, and of those the largest dictionary."""

    size: int
    dictionary: int


def pages_of(file: Any, leaves: Sequence[Leaf]) -> list[ColumnPages]:
    """The pages of each of these columns, in their order. Raises `PageError` if no store writes such a file."""
    end = file.seek(0, 2)
    footer = _footer(file, end)
    groups = _structs(footer, 4)
    rows = [_number(footer, 3), *(_number(group, 3) for group in groups)]
    if min(rows) < 0 or max(rows[0], sum(rows[1:])) > max(ROWS_MIN, ROWS_PER_BYTE_MAX * end):
        raise PageError(f"is to have {max(rows):,} rows in {end:,} bytes")
    if len(groups) > 1 + rows[0] // ROWS_PER_GROUP_MIN:
        raise PageError(f"has {len(groups):,} groups of {rows[0]:,} rows")
    found = [ColumnPages(0, 0)] * len(leaves)
    for group in groups:
        chunks = _structs(group, 1)
        if len(chunks) != len(leaves):
            raise PageError(f"has {len(chunks):,} columns in a group of rows, not {len(leaves)}")
        for place, (leaf, chunk) in enumerate(zip(leaves, chunks, strict=True)):
            pages = list(_pages(leaf, _struct(chunk, 3), file, end))
            dictionary = max((size for kind, size in pages if kind == _DICTIONARY), default=0)
            if dictionary > DICTIONARY_BYTES_MAX:
                raise PageError(f"repeats values of column {leaf.name} that take {dictionary:,} bytes")
            size = found[place].size + sum(size for _, size in pages)
            found[place] = ColumnPages(size, max(found[place].dictionary, dictionary))
    return found


def _footer(file: Any, end: int) -> Struct:
    file.seek(max(0, end - _END_BYTES))
    last = file.read(_END_BYTES)
    size = int.from_bytes(last[:4], "little")
    if last[4:] != _MAGIC or size > min(_FOOTER_BYTES_MAX, end - _END_BYTES):
        raise PageError(f"has no footer, or one of {size:,} bytes")
    file.seek(end - _END_BYTES - size)
    try:
        return thrift.begin_of(file.read(size))[0]
    except ValueError as error:
        raise PageError(f"has a footer that cannot be read: {error}") from error


def _pages(leaf: Leaf, chunk: Struct, file: Any, end: int) -> Iterator[tuple[int, int]]:
    """The type and the decompressed size of each page of a column."""
    if _number(chunk, 4, I32) not in (_UNCOMPRESSED, _SNAPPY):
        raise PageError(f"has a column {leaf.name} in a compression that no store uses")
    at, size, dictionary = (_number(chunk, field) for field in (9, 7, 11))
    if 0 < dictionary < at:
        at = dictionary
    until = at + size
    if at < 0 or size < 0 or until > end:
        raise PageError(f"has a column {leaf.name} that is to be outside of it")
    encodings: tuple[int, ...] = (_PLAIN,) if leaf.has_bytes else (_PLAIN, _RLE, _DELTAS)
    if leaf.repeats:
        encodings += _OF_DICTIONARY
    while at < until:
        file.seek(at)
        try:
            header, length = thrift.begin_of(file.read(min(_HEADER_BYTES_MAX, until - at)))
        except ValueError as error:
            raise PageError(f"has a page of column {leaf.name} whose header cannot be read: {error}") from error
        kind, decompressed, compressed = (_number(header, field, I32) for field in (1, 2, 3))
        at += length + compressed
        if kind not in _OF_KIND or decompressed < 0 or compressed < 0 or at > until:
            raise PageError(f"has a page of column {leaf.name}, of type {kind}, that is to end at {at:,}")
        encoding = _number(_struct(header, _OF_KIND[kind]), _ENCODING_AT[kind], I32)
        if encoding not in encodings or (kind == _DICTIONARY and not leaf.repeats):
            raise PageError(f"has a page of column {leaf.name}, of type {kind} and encoding {encoding}")
        yield kind, decompressed


def _number(struct: Struct, field: int, kind: int = I64) -> int:
    found, value = struct.get(field, (0, -1))
    return value if found == kind else -1


def _struct(struct: Struct, field: int) -> Struct:
    found, value = struct.get(field, (0, {}))
    return value if found == STRUCT else {}


def _structs(struct: Struct, field: int) -> list[Struct]:
    found, value = struct.get(field, (0, None))
    if found != LIST or value[0] != STRUCT:
        return []
    return cast("list[Struct]", value[1])
