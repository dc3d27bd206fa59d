"""Digests of the files of cuts, as text: the name of a hash, a colon, and its hexadecimal digits.

Files of tasks have BLAKE3, which takes a quarter of the time of SHA-256. Constants have SHA-256, which is in their
names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from blake3 import blake3
from msgspec import Meta

Digest = Annotated[str, Meta(pattern=r"\A(blake3|sha256):[0-9a-f]{64}\Z")]
"""The shape of a digest in a document."""

TaskFileHash = blake3
"""The hash of a task's file, for content that is given piece by piece. Then `digest_from` has its digest."""

_HASHES: Mapping[str, Callable[..., Any]] = {"blake3": blake3, "sha256": hashlib.sha256}


def digest_of_task_file(data: bytes | bytearray) -> str:
    """The digest of a task's file.

    >>> digest_of_task_file(b"")[:15], digest_of_constant(b"")[:15]
    ('blake3:af1349b9', 'sha256:e3b0c442')
    """
    return digest_from(blake3(data))


def digest_of_constant(data: bytes) -> str:
    return digest_from(hashlib.sha256(data))


def digest_from(hashed: Any) -> str:
    return f"{hashed.name}:{hashed.hexdigest()}"


def has_digest(data: bytes, digest: str) -> bool:
    """Whether bytes have a digest, with the hash that it names."""
    return digest_from(_hash_in(digest)(data)) == digest


def file_has_digest(file: Any, digest: str) -> bool:
    """Whether an open file has a digest from here to its end, read piece by piece."""
    return digest_from(hashlib.file_digest(file, _hash_in(digest))) == digest


def digits_in(digest: str) -> str:
    return digest.partition(":")[2]


def _hash_in(digest: str) -> Callable[..., Any]:
    return _HASHES[digest.partition(":")[0]]
