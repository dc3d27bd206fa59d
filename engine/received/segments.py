"""How a log of what was received lies in a store. Everything is read by name.

    log.json                   there is a log here
    segments/0000000042.log    a sealed document of one line, and then the records, one line of JSON each

A segment is created exclusively, and is durable then. The list of files is used to find the last segment after a
restart, and to remove what a crash has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, json

from backedge.engine.received.log_state import Header
from backedge.recovery.stores.documents import opened_content, sealed, sealed_content
from backedge.recovery.stores.shapes import Count, Sha256, converted, shape_of
from backedge.recovery.stores.store_calls import create_exclusively, exists, full_name
from backedge.recovery.stores.store_errors import OutcomeUnknownError, SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store

LOG = "log.json"
SEGMENTS = "segments"


class _Document(Struct, forbid_unknown_fields=True):
    format: Count
    header: Header
    sha256: Sha256


_SEGMENT = shape_of(_Document)
_decoder = json.Decoder()
_encoder = json.Encoder()


class IncompleteListError(OSError):
    """The store lists no segment of a log that exists."""


def segment_file(segment: int) -> str:
    """
    >>> segment_file(42)
    'segments/0000000042.log'
    """
    return f"{SEGMENTS}/{segment:010d}.log"


def encoded(records: Iterable[Any]) -> bytes:
    """Records as lines of JSON.

    >>> encoded([{"a": 1}, [2]])
    b'{"a":1}\\n[2]\\n'
    """
    return _encoder.encode_lines(records)


def decoded(lines: bytes) -> list[Any]:
    """The records in lines of JSON. Raises `msgspec.DecodeError`, or a `RecursionError`."""
    return _decoder.decode_lines(lines)


def create_segment(store: Store, header: Header, lines: bytes) -> bool:
    """Create a segment durably. False if another writer has taken its number."""
    document = {"header": {name: getattr(header, name) for name in header.__struct_fields__}}
    is_ours = create_exclusively(store, segment_file(header.segment), sealed_content(document, lines, None, _SEGMENT))
    if is_ours and header.segment == 1:
        note_log(store)
    return is_ours


def note_log(store: Store) -> None:
    """Note that there is a log, so that a store that lists no segment is not taken for an empty one."""
    try:
        create_exclusively(store, LOG, sealed({}, None))
    except OSError as error:
        raise OutcomeUnknownError(error.errno, f"the log is not noted yet: {error}") from error


def read_segment(store: Store, segment: int) -> tuple[Header, bytes]:
    """A verified segment. Raises `FileNotFoundError` if there is none of this number (yet, or any more)."""
    name = segment_file(segment)
    content = store.read(name)
    path = full_name(store, name)
    document, lines = opened_content(content, None, path, _SEGMENT)
    header = converted(document["header"], Header)
    if header.segment != segment:
        raise SnapshotCorruptError(f"{path} was written as segment {header.segment}: restore the original file")
    return header, lines


def last_header(store: Store) -> Header | None:
    """The header of the last segment; None if there is no log. The list says where to begin to look for it."""
    segment = max(listed(store), default=0)
    while exists(store, segment_file(segment + 1)):
        segment += 1
    if segment:
        return read_segment(store, segment)[0]
    if exists(store, LOG):
        raise IncompleteListError(f"{store.location} holds a log, and the store lists no segment of it: try again")
    return None


def listed(store: Store) -> list[int]:
    names = (name.rsplit("/", 1)[-1].removesuffix(".log") for name in store.list(SEGMENTS))
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def remove_segments(store: Store, segments: Iterable[int]) -> None:
    store.remove([segment_file(segment) for segment in segments])
