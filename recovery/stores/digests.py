"""Digests of the files of cuts, as text: the name of a hash, a colon, and its hexadecimal digits.

Files of tasks have BLAKE3, which takes a quarter of the time of SHA-256. Constants have SHA-256, which is in their
names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

from blake3 import blake3
from msgspec import Meta

_SHA256 = "sha256"
_BLAKE3 = "blake3"

Digest = Annotated[str, Meta(pattern=rf"\A({_BLAKE3}|{_SHA256}):[0-9a-f]{{64}}\Z")]
"""The shape of a digest in a document."""


class _Hash(Protocol):
    def update(self, data: Any, /) -> Any: ...

    def hexdigest(self) -> str: ...


_HASHES: Mapping[str, Callable[[], _Hash]] = {_BLAKE3: blake3, _SHA256: hashlib.sha256}


class TaskFileHash:
    """The digest of a task's file, whose content is given piece by piece."""

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)

    @property
    def digest(self) -> str:
        return _text(_BLAKE3, self._hash)


def digest_of_task_file(data: bytes | bytearray) -> str:
    """The digest of a task's file.

    >>> digest_of_task_file(b"")[:15], digest_of_constant(b"")[:15]
    ('blake3:af1349b9', 'sha256:e3b0c442')
    """
    return _text(_BLAKE3, blake3(data))


def digest_of_constant(data: bytes) -> str:
    return _text(_SHA256, hashlib.sha256(data))


def has_digest(data: bytes, digest: str) -> bool:
    """Whether bytes have a digest, with the hash that it names."""
    name = _name_in(digest)
    hashed = _HASHES[name]()
    hashed.update(data)
    return _text(name, hashed) == digest


def file_has_digest(file: Any, digest: str) -> bool:
    """Whether an open file has a digest from here to its end, read piece by piece."""
    name = _name_in(digest)
    make: Any = _HASHES[name]
    return _text(name, hashlib.file_digest(file, make)) == digest


def digits_in(digest: str) -> str:
    return digest.partition(":")[2]


def _name_in(digest: str) -> str:
    return digest.partition(":")[0]


def _text(name: str, hashed: _Hash) -> str:
    return f"{name}:{hashed.hexdigest()}"
