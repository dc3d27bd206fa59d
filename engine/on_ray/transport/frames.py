"""The frames between two actors: a header of fixed size, then the payload, as one or two frames.

    sender | link number | kind | attempt | channel | number        then the payload

Small messages that are sent to one actor together travel as one bundle: each after its length. The payload of a large
one travels through shared memory (`shared_ring.py`), and a note of its place in the bundle.

`sender` and `link number` count the frames of a link, so that its receiver notices missing ones. Both are 0 on the
links to and from the supervisor, which may lose frames (`recovery/protocol/reliable_line.py`).

`channel` is the channel's index in the deployment, which is the same in every actor. `number` is the batch's number for
data, and the message's number for credit. Messages of another attempt are dropped by their header alone.
Barriers, ENDs, orders and reports are pickled; they only come from actors of this run (`mailbox.py`).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, marker_in, new_data

_LINK = struct.Struct("<IQ")
pack_link: Callable[[int, int], bytes] = _LINK.pack
unpack_link: Callable[[bytes, int], tuple[int, int]] = _LINK.unpack_from
_HEADER = struct.Struct("<BIIQ")
pack_header: Callable[[int, int, int, int], bytes] = _HEADER.pack
unpack_header: Callable[[bytes], tuple[int, Attempt, int, int]] = _HEADER.unpack


class Kind(IntEnum):
    """The kind of a message."""

    BATCH = 0
    MARKER = 1
    BARRIER = 2
    END = 3
    CREDIT = 4
    HELLO = 5
    ORDERS = 6
    REPORT = 7
    WAKE = 8
    BUNDLE = 9
    HEARTBEAT = 10
    OFFER = 11
    SHARED = 12


NO_CHANNEL = 0xFFFFFFFF
BATCH = int(Kind.BATCH)

LINK_BYTES = _LINK.size
HEADER_BYTES = _HEADER.size
HEADERS_BYTES = LINK_BYTES + HEADER_BYTES
Message = tuple[bytes, bytes]
WAKE: Message = (_HEADER.pack(Kind.WAKE, 0, NO_CHANNEL, 0), b"")
BUNDLE = int(Kind.BUNDLE)
_BUNDLE_HEADER = _HEADER.pack(Kind.BUNDLE, 0, NO_CHANNEL, 0)
OFFER = int(Kind.OFFER)
SHARED = int(Kind.SHARED)
_OFFER_HEADER = _HEADER.pack(Kind.OFFER, 0, NO_CHANNEL, 0)
_SHARED_HEADER = _HEADER.pack(Kind.SHARED, 0, NO_CHANNEL, 0)
_PLACE = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")
_CREDIT = struct.Struct("<QQ")


def pack_item(attempt: Attempt, channel: int, item: Item) -> Message:
    """Pack an item that a core sends into a channel.

    >>> unpack_item(Kind.END, 0, pack_item(Attempt(1), 3, End(7, 1))[1])
    End(count=7, digest=1)
    """
    if type(item) is Data:
        seq, payload, marker = item
        return pack_header(BATCH if marker is None else Kind.MARKER, attempt, channel, seq), payload
    kind = Kind.BARRIER if isinstance(item, Barrier) else Kind.END
    return pack_header(kind, attempt, channel, 0), pickle.dumps(tuple(item), 5)


def unpack_item(kind: int, number: int, payload: bytes) -> Item:
    if kind == BATCH:
        return new_data((number, payload, None))
    if kind == Kind.MARKER:
        return Data(number, payload, marker_in(payload))
    if kind == Kind.BARRIER:
        return Barrier(*pickle.loads(payload))
    return End(*pickle.loads(payload))


def bundle(frames: list[bytes]) -> bytes:
    """Combine several messages, each a header and its payload, into one.

    >>> bundled = bundle([b"h" * 17 + b"a", b"h" * 17])
    >>> list(unbundle(bundled, HEADER_BYTES, len(bundled))) == [(b"h" * 17, b"a"), (b"h" * 17, b"")]
    True
    """
    return _BUNDLE_HEADER + b"".join([part for frame in frames for part in (_LENGTH.pack(len(frame)), frame)])


def unbundle(data: bytes, at: int, end: int) -> Iterator[Message]:
    """The messages of a bundle, in order. Its payload is this part of the data."""
    while at < end:
        start = at + _LENGTH.size
        header_end, at = start + HEADER_BYTES, start + _LENGTH.unpack_from(data, at)[0]
        yield data[start:header_end], data[header_end:at]


def pack_offer(offer: str) -> bytes:
    return _OFFER_HEADER + offer.encode()


def pack_shared(header: bytes, place: tuple[int, int]) -> bytes:
    """Pack the header of a message and the place of its payload in shared memory.

    >>> unpack_shared(pack_shared(b"h" * 17, (1, 2))[HEADER_BYTES:])
    (b'hhhhhhhhhhhhhhhhh', (1, 2))
    """
    return _SHARED_HEADER + header + _PLACE.pack(*place)


def unpack_shared(payload: bytes) -> tuple[bytes, tuple[int, int]]:
    """Unpack the header of a message and the place of its payload."""
    start, end = _PLACE.unpack_from(payload, HEADER_BYTES)
    return payload[:HEADER_BYTES], (start, end)


def pack_note(kind: Kind, attempt: Attempt, value: Any = None) -> Message:
    """Pack a message between the supervisor and an actor, or between two actors, that belongs to no channel."""
    return pack_header(kind, attempt, NO_CHANNEL, 0), pickle.dumps(value, 5)


def pack_heartbeat(attempt: Attempt) -> Message:
    """A frame without content: its link number shows whether all frames before it have arrived."""
    return pack_header(Kind.HEARTBEAT, attempt, NO_CHANNEL, 0), b""


def pack_credit(attempt: Attempt, channel: int, credit: Credit) -> Message:
    """Pack how much of a channel was consumed in total, and how much may be in transit.

    >>> unpack_credit(1, pack_credit(Attempt(1), 3, Credit(1, 2_000, 4_000))[1])
    Credit(number=1, consumed=2000, window=4000)
    """
    number, consumed, window = credit
    return pack_header(Kind.CREDIT, attempt, channel, number), _CREDIT.pack(consumed, window)


def unpack_credit(number: int, payload: bytes) -> Credit:
    return Credit(number, *_CREDIT.unpack(payload))
