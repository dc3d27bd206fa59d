"""`backedge completion SHELL`: a script that completes the command in a shell, made from the command's own parser.

0: printed. 2: the package that makes it is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from backedge.arguments import place

DONE, WRONG_CALL = 0, 2


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    try:
        shtab: Any = import_module("shtab")
    except ModuleNotFoundError:
        print("backedge completion: needs shtab: pip install 'backedge[completion]'", file=sys.stderr)
        return WRONG_CALL
    for action in _actions(parser):
        if action.type is place:
            action.complete = shtab.FILE
    print(shtab.complete(parser, shell))
    return DONE


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """The arguments of a parser, and of the commands below it. `argparse` has no public way to list them."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for command in cast(Any, action).choices.values():
                yield from _actions(command)
