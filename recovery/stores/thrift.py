"""The compact protocol of Thrift, in which the pages and the footer of a Parquet file are described.

A struct is a dict: the number of a field -> its type and value. A list is the type of its items, and the items. Numbers
are ints, texts are bytes. The types are those of the protocol; maps and doubles do not occur in Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

TRUE, FALSE, I32, I64, BINARY, LIST, STRUCT = 1, 2, 5, 6, 8, 9, 12
_I8, _I16 = 3, 4
_INTEGERS = (_I16, I32, I64)

Struct = dict[int, tuple[int, Any]]


def encoded(struct: Struct) -> bytes:
    """Encode a struct.

    >>> decoded(encoded({1: (I32, -7), 3: (LIST, (BINARY, [b"a"])), 40: (STRUCT, {2: (TRUE, True)})}))
    {1: (5, -7), 3: (9, (8, [b'a'])), 40: (12, {2: (1, True)})}
    """
    return b"".join(_of_struct(struct))


def decoded(data: bytes) -> Struct:
    return begin_of(data)[0]


def begin_of(data: bytes) -> tuple[Struct, int]:
    """Decode the struct that some bytes begin with; return it and where it ends.

    Raises `ValueError` if there is none, also for bytes that were forged: they make nothing larger than they are.
    """
    reader = _Reader(data)
    try:
        return reader.struct(), reader.at
    except (IndexError, RecursionError) as error:
        raise ValueError("it is no struct of the compact protocol") from error


def _of_struct(struct: Struct) -> Iterator[bytes]:
    last = 0
    for number in sorted(struct):
        kind, value = struct[number]
        step = number - last
        yield bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _varint(_zigzag(number))
        yield from _of_value(kind, value)
        last = number
    yield b"\0"


def _of_value(kind: int, value: Any) -> Iterator[bytes]:
    if kind in _INTEGERS:
        yield _varint(_zigzag(value))
    elif kind == _I8:
        yield bytes([value])
    elif kind == BINARY:
        yield _varint(len(value)) + value
    elif kind == STRUCT:
        yield from _of_struct(value)
    elif kind == LIST:
        of, items = cast("tuple[int, list[Any]]", value)
        count = len(items)
        yield bytes([count << 4 | of]) if count < 15 else bytes([0xF0 | of]) + _varint(count)
        for item in items:
            yield from [bytes([TRUE if item else FALSE])] if of in (TRUE, FALSE) else _of_value(of, item)
    elif kind not in (TRUE, FALSE):  # these are in the type
        raise ValueError(f"the compact protocol has no values of type {kind} in a Parquet file")


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._integer()
            if number in found or not 0 < number < 1 << 15:
                # Readers differ in which one they take.
                raise ValueError(f"a struct has the field {number} twice, or it is too large")
            found[number] = kind, self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in _INTEGERS:
            return self._integer()
        if kind == _I8:
            return self._byte()
        if kind == BINARY:
            size = self._no_more_than_left(self._varint())
            self.at += size
            return self._data[self.at - size : self.at]
        if kind == LIST:
            head = self._byte()
            count = self._no_more_than_left(head >> 4 if head >> 4 < 15 else self._varint())
            # In a list, a boolean is a byte; as a field, it is in the type.
            if head & 15 in (TRUE, FALSE):
                return head & 15, [self._byte() == TRUE for _ in range(count)]
            return head & 15, [self._value(head & 15) for _ in range(count)]
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"the compact protocol has no values of type {kind} in a Parquet file")

    def _no_more_than_left(self, number: int) -> int:
        """A number of bytes, or of items, each of which takes one byte at least."""
        if number > len(self._data) - self.at:
            raise ValueError(f"{number} bytes are to follow, and there are {len(self._data) - self.at}")
        return number

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) > 127:
            if shift >= 63:
                # To read one of a million bytes would take their square.
                raise ValueError("a number has more than 64 bits")
            found |= (byte & 127) << shift
            shift += 7
        return found | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
