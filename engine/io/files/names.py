"""Converts names to file names and back, and parses the names of transactions.

Every name that comes from a user or a cut becomes part of a path through `path_name` alone.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from backedge.engine.io.files.file_errors import DamagedOutputError
from backedge.graphs.ids import Attempt, Turn, turn_in

_BYTES_MAX = 210
"""File systems allow 255; the prefix and ending of a part are added."""

_FORBIDDEN = frozenset("/\\=:%*?\"'<>|#{}")

_OF_ATTEMPT = re.compile(r"attempt-(\d+)\.\d+-[0-9a-f]+")

_STAGED = re.compile(r"(.+\.epoch-\d+)(\.[^/]*)?", re.DOTALL)


@lru_cache(maxsize=1024)
def path_name(name: str) -> str:
    """One component of a path, unique for each name; never hidden, never leading out of its folder.

    >>> path_name("late orders"), path_name("../x"), path_name("_a%")
    ('late orders', '%2E.%2Fx', '%5Fa%25')
    """
    if not name:
        raise ValueError("an empty name cannot be a file name: give at least one character")
    encoded = "".join(map(_encoded, name))
    if encoded[0] in "._":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded.encode()) > _BYTES_MAX:
        raise ValueError(f"name {name!r} is too long for a file name: give one of at most {_BYTES_MAX} bytes")
    return encoded


def name_of(path_name: str) -> str:
    """The name from which `path_name` made this.

    >>> name_of(path_name("../x"))
    '../x'
    """
    return unquote(path_name, errors="surrogatepass")


def new_name(attempt: Attempt, index: int) -> str:
    """A name that no file or folder has had, for something that this task of an attempt writes."""
    return f"attempt-{attempt}.{index}-{secrets.token_hex(8)}"


def attempt_in(name: str) -> int | None:
    """The attempt in a name that `new_name` made; None for any other name.

    >>> attempt_in(new_name(Attempt(3), 0)), attempt_in("lost+found")
    (3, None)
    """
    found = _OF_ATTEMPT.fullmatch(name)
    return None if found is None else int(found[1])


class StagedName(NamedTuple):
    """The name of a staged file: its transaction, and the ending of the format that it is written in."""

    transaction: str
    ending: str


def staged_name(file: str) -> StagedName:
    """Parse the name of a staged file.

    >>> staged_name("done.0.attempt-1.epoch-12.jsonl")
    StagedName(transaction='done.0.attempt-1.epoch-12', ending='.jsonl')
    >>> staged_name("lost+found")
    StagedName(transaction='lost+found', ending='')
    """
    found = _STAGED.fullmatch(file)
    return StagedName(name_of(file), "") if found is None else StagedName(name_of(found[1]), found[2] or "")


def _encoded(character: str) -> str:
    if character.isprintable() and character not in _FORBIDDEN:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def turn_of(transaction: str) -> Turn:
    """Parse the name of a transaction.

    >>> turn_of("done.3.attempt-1.epoch-12")
    Turn(epoch=12, attempt=1, index=3)
    """
    turn = turn_in(transaction)
    if turn is None:
        raise DamagedOutputError(
            f"{transaction!r} is not the name of a transaction, SINK.INDEX.attempt-A.epoch-E: "
            "something else has written into the output folder of this sink; move it away"
        )
    return turn
