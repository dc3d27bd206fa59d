"""Sealed documents: JSON with a digest of its content and, if there is a key, a signature.

A document is one line of JSON with sorted names, so its encoding is unique: if decoding and encoding a file gives other
bytes, the file was changed. `seal` covers all other fields. With a key it also holds an HMAC-SHA256; then unsigned
documents and documents signed with another key are refused. Without a key signed documents are refused, because the run
would add unsigned ones to the job. The caller names the required shape (`schema.py`); other documents are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from backedge.recovery.stores.manifests_of_format_12 import FIRST_FORMAT
from backedge.recovery.stores.schema import DOCUMENT_BYTES_MAX
from backedge.recovery.stores.shapes import Shape, ShapeError, shown
from backedge.recovery.stores.store_errors import SnapshotAuthError, SnapshotCorruptError, StoreError

FORMAT = 13
"""Version of the layout. What changes the layout gives it another number, and reads the earlier ones from 12 on."""

Document = dict[str, Any]

_SEAL = re.compile(rb',"seal":\{(?:"hmac_sha256":"([0-9a-f]{64})",)?"sha256":"([0-9a-f]{64})"\}')
"""The seal in an encoded document. It is never the first field, and no text can hold it: there, quotes are escaped."""


def sealed(document: Document, key: bytes | None, shape: Shape | None = None) -> bytes:
    """Seal a document and encode it. With the shape that its readers require, refuse what they would refuse.

    >>> from backedge.recovery.stores.shapes import shape_of
    >>> shape = shape_of(dict[str, int])
    >>> opened(sealed({"epoch": 7}, b"secret", shape), b"secret", "manifest.json", shape)
    {'epoch': 7, 'format': 13}
    """
    if shape is not None:
        try:
            shape({**document, "format": FORMAT})
        except ShapeError as error:
            raise StoreError(f"a document is not written, because it could not be read back: {error}") from error
    # Each field is encoded once: most of the work for a manifest is to encode it.
    fields = {name: _json(value) for name, value in {**document, "format": FORMAT}.items()}
    data = _joined({**fields, "seal": _json(_seal(_joined(fields), key))})
    if len(data) > DOCUMENT_BYTES_MAX:
        raise StoreError(
            f"a document would have {len(data):,} bytes, and no more than {DOCUMENT_BYTES_MAX:,} are read back: run "
            "with fewer tasks or fewer files"
        )
    return data


def opened(data: bytes, key: bytes | None, path: str, shape: Shape) -> Document:
    """Decode a document, and check its digest, signature and shape.

    >>> from backedge.recovery.stores.shapes import shape_of
    >>> opened(b"{", None, "manifest.json", shape_of(dict[str, int]))
    Traceback (most recent call last):
    backedge.SnapshotCorruptError: manifest.json is torn or was changed: restore it from a backup
    """
    torn = f"{path} is torn or was changed: restore it from a backup"
    seal = _SEAL.search(data)
    if seal is None:
        raise SnapshotCorruptError(torn)
    # Nothing is parsed before its seal is verified: what nobody has signed could take a lot of memory.
    _check_seal(seal, data[: seal.start()] + data[seal.end() :], key, path)
    try:
        document: Any = json.loads(data.decode("ascii"))
        readable = isinstance(document, dict) and _encoded(cast(Document, document)) == data
    except (ValueError, RecursionError):
        readable, document = False, None
    if not readable:
        raise SnapshotCorruptError(torn)
    body = cast(Document, document)
    if body.pop("seal", None) is None:
        raise SnapshotCorruptError(torn)
    if body.get("format") not in (FIRST_FORMAT, FORMAT):
        raise StoreError(
            f"{path} has format {shown(body.get('format'))}, and this version reads {FIRST_FORMAT} and {FORMAT}: use "
            "the version that wrote it, or a later one"
        )
    try:
        shape(body)
    except ShapeError as error:
        raise SnapshotCorruptError(
            f"{path} has a valid seal but not the fields that this version writes: {error}; read it with the version "
            "that wrote it, or restore it from a backup"
        ) from error
    return body


def sealed_content(document: Document, data: bytes, key: bytes | None, shape: Shape) -> bytes:
    """A document of one line that names the SHA-256 of the bytes behind it."""
    return sealed({**document, "sha256": sha256(data)}, key, shape) + data


def opened_content(content: bytes, key: bytes | None, path: str, shape: Shape) -> tuple[Document, bytes]:
    """Such a document, and the bytes behind it: neither is decoded before it is verified."""
    line, end, data = content.partition(b"\n")
    document = opened(line + end, key, path, shape)
    check_content(data, document["sha256"], path)
    return document, data


def check_content(data: bytes, digest: str, path: str) -> None:
    if sha256(data) != digest:
        raise SnapshotCorruptError(
            f"{path} was changed: its SHA-256 is another one, so nothing of it is decoded; restore it from a backup"
        )


def sha256(data: bytes) -> str:
    """SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _check_seal(seal: re.Match[bytes], body: bytes, key: bytes | None, path: str) -> None:
    right = _seal(body, key)
    signature, digest = (None if given is None else given.decode() for given in seal.groups())
    if key is None and signature is not None:
        raise SnapshotAuthError(f"{path} is signed, and no key is given: give the key that the job was started with")
    if key is not None and signature is None:
        raise SnapshotAuthError(
            f"{path} is not signed, and a key is given: it is forged, or the job was started without a key; nothing "
            "of it is read"
        )
    if signature is not None and not hmac.compare_digest(signature, right["hmac_sha256"]):
        raise SnapshotAuthError(
            f"{path} is not signed with this key: it is forged, or the key is another one; nothing of it is read"
        )
    if digest != right["sha256"]:
        raise SnapshotCorruptError(f"{path} was changed: its digest is wrong; restore it from a backup")


def _seal(data: bytes, key: bytes | None) -> dict[str, str]:
    seal = {"sha256": sha256(data)}
    if key is not None:
        seal["hmac_sha256"] = hmac.new(key, data, hashlib.sha256).hexdigest()
    return seal


def _encoded(document: Document) -> bytes:
    return f"{_json(document)}\n".encode()


def _joined(fields: Mapping[str, str]) -> bytes:
    """The encoding of a document whose fields are encoded."""
    return f"{{{','.join(f'{_json(name)}:{fields[name]}' for name in sorted(fields))}}}\n".encode()


# Made once: a manifest has tens of fields, and to make another encoder for each takes longer than to encode it.
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
