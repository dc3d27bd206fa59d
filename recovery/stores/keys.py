"""The key that signs the cuts of a job: where it comes from, and what is derived from it.

A key is never an argument of a command: other users of a machine can read those.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

from backedge.graphs.wording import counted
from backedge.recovery.stores.store_errors import StoreError

KEY_VARIABLE = "BACKEDGE_KEY"
KEY_BYTES_MIN = 16
"""Shorter keys of users are refused, because they could be guessed."""


def signing_key(given: bytes | None = None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The given key, or else the one in the environment; None if there is neither.

    >>> signing_key(b"sixteen bytes..."), signing_key(None, {"BACKEDGE_KEY": "sixteen others.."}), signing_key(None, {})
    (b'sixteen bytes...', b'sixteen others..', None)
    """
    if given is not None:
        return _long_key(given, "key=")
    if KEY_VARIABLE not in environment:
        return None
    return _long_key(os.fsencode(environment[KEY_VARIABLE]), f"the environment variable {KEY_VARIABLE}")


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
    return _long_key(content.rstrip(b"\r\n"), what)


def checked_key(given: object, what: str) -> bytes:
    """Return the key, or raise if it is not one. `what` says where it comes from; no error shows the key."""
    if not isinstance(given, bytes):
        raise StoreError(f"{what} is of type {type(given).__name__}: give the key as bytes")
    if not given:
        raise StoreError(f"{what} is empty: {_MAKE_ONE}")
    return given


def _long_key(given: object, what: str) -> bytes:
    """Return the key, or raise if it is so short that it could be guessed."""
    key = checked_key(given, what)
    if len(key) < KEY_BYTES_MIN:
        raise StoreError(f"{what} has {counted(len(key), 'byte')}, fewer than {KEY_BYTES_MIN}: {_MAKE_ONE}")
    return key


def derived_key(key: bytes | None, use: str) -> bytes:
    """A key of 32 bytes for another use than signing documents; empty if there is no key."""
    return b"" if key is None else hmac.digest(key, b"backedge " + use.encode(), hashlib.sha256)


_FILE_BYTES_MAX = 64 * 1024
_MAKE_ONE = "make a key with `head -c 32 /dev/urandom | base64`, or leave it out"
