"""Readers of the words on a command line: each returns the value, or raises what `argparse` prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from backedge.flows import WrongCallError
from backedge.recovery.stores.keys import KEY_VARIABLE, key_in_file, signing_key
from backedge.recovery.stores.store_errors import StoreError

PORT_MAX = 65_535


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, without the dozen lines of usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists all options\n")


def digits(text: str) -> int | None:
    """The integer of at least 0 that a text spells; None for any other text.

    >>> digits("12"), digits("-1"), digits("²"), digits("9" * 5000)
    (12, None, None, None)
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def number(text: str) -> int:
    """An integer of at least 0."""
    found = digits(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give an integer of at least 0")
    return found


def port(text: str) -> int:
    """The number of a TCP port; 0 stands for one that is free."""
    found = digits(text)
    if found is None or found > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: give an integer from 0 to {PORT_MAX}")
    return found


def count(text: str) -> int:
    """An integer of at least 1."""
    found = digits(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give an integer of at least 1")
    return found


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds above 0")
    return found


def place(text: str) -> str:
    """A path or a URI."""
    # An empty path would mean the current folder.
    if not text:
        raise argparse.ArgumentTypeError("'': give a path, . for the current folder")
    return text


def check_page(path: Path) -> None:
    """Raise unless a page can be written there, before what it shows is found, which may take minutes."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}: create it, or write elsewhere")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it")


def check_folder(path: Path) -> None:
    """Raise if a file is in the way of a folder, before what goes into that is found."""
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is a file: name a folder")


def key_from(key_file: str | None) -> bytes | None:
    """The key of the cuts: from the file, or else from the environment, or None."""
    try:
        return signing_key() if key_file is None else key_in_file(key_file, f"--key-file {key_file}")
    except StoreError as error:
        raise WrongCallError(str(error)) from error


def add_key_file(add_argument: Callable[..., object]) -> None:
    """Add --key-file, which names the file with the key of the cuts."""
    told = f"file with the key that signs the cuts; default: the environment variable {KEY_VARIABLE}, if it is set"
    add_argument("--key-file", type=place, metavar="FILE", help=told)
