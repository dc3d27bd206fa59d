"""The key that signs the cuts of a job: where it comes from, and what is derived from it.

A key is never an argument of a command: other users of a machine can read those.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

from recovery.stores.store_errors import StoreError

KEY_VARIABLE = "BACKEDGE_KEY"


def signing_key(given: bytes | None = None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The given key, or else the one in the environment; None if there is neither.

    >>> signing_key(b"secret"), signing_key(None, {"BACKEDGE_KEY": "other"}), signing_key(None, {})
    (b'secret', b'other', None)
    """
    if given is not None:
        return checked_key(given, "key=")
    if KEY_VARIABLE not in environment:
        return None
    return checked_key(os.fsencode(environment[KEY_VARIABLE]), f"the environment variable {KEY_VARIABLE}")


def key_in_file(path: str, what: str) -> bytes:
    """The content of a key file, without line ends at its end. `what` names the file in errors."""
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise StoreError(
            f"{what} cannot be read ({error.strerror}): give the file with the key that the run was given"
        ) from error
    if len(content) > _FILE_BYTES_MAX:
        raise StoreError(f"{what} is larger than {_FILE_BYTES_MAX:,} bytes: give a file that holds a key only")
    return checked_key(content.rstrip(b"\r\n"), what)


def checked_key(given: object, what: str) -> bytes:
    """The key, if it can be one; `what` says where it comes from. The error does not show it."""
    if not isinstance(given, bytes):
        raise StoreError(f"{what} is of type {type(given).__name__}: give the key as bytes")
    if not given:
        raise StoreError(f"{what} is empty: give some bytes that nobody else knows, or leave it out")
    return given


def derived_key(key: bytes | None, use: str) -> bytes:
    """A key of 32 bytes for another use than signing documents; empty if there is no key."""
    return b"" if key is None else hmac.digest(key, b"backedge " + use.encode(), hashlib.sha256)


_FILE_BYTES_MAX = 64 * 1024
