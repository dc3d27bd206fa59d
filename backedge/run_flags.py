"""The options of a run as flags of a command: one for each field of `RunOptions`, with its default and docstring."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from backedge.arguments import add_key_file, key_from
from backedge.engine.on_ray import run_options
from backedge.engine.on_ray.run_options import RunOptions, expected_instead, option_docs
from backedge.flows import WrongCallError
from backedge.graphs.wording import one_line

NO_FLAG = ("key", "progress")
"""A key is named by --key-file, for other users can read arguments. A command always shows its progress."""
REPEATED = {"drop": "OPERATOR", "rename": "OLD=NEW", "keep_inputs": "OPERATOR"}
"""Flags that may be given again, with what each of them takes."""


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option of a run, --key-file, and --kill for planned faults."""
    group = parser.add_argument_group("options of the run")
    hints = _types()
    for option in fields(RunOptions):
        if option.name in NO_FLAG:
            continue
        if option.name in REPEATED:
            add_repeated(group.add_argument, option.name)
            continue
        told = option_docs()[option.name]
        if option.default is False:
            group.add_argument(flag(option.name), dest=option.name, action="store_true", help=told)
            continue
        is_shown = option.default is not MISSING and option.default is not None
        group.add_argument(
            flag(option.name),
            dest=option.name,
            type=_reader(option.name, hints[option.name]),
            default=option.default,
            metavar=_metavar(option.name, hints[option.name]),
            help=(told + (f" Default: {option.default}" if is_shown else "")).replace("%", "%%"),
        )
    add_key_file(group.add_argument)
    kill = (
        "End a process with SIGKILL: head@epoch=3, body@records=1000, head@loop=2, random@every=2s. May be given again."
    )
    faults = parser.add_argument_group("planned faults")
    faults.add_argument("--kill", action="append", default=[], metavar="WHO@WHEN", dest="kills", help=kill)


def add_repeated(add_argument: Callable[..., object], name: str) -> None:
    told = f"{option_docs()[name]} May be given again."
    add_argument(flag(name), action="append", default=[], dest=name, metavar=REPEATED[name], help=told)


def new_names(pairs: Sequence[str]) -> dict[str, str]:
    """The operators that --rename OLD=NEW names.

    >>> new_names(["count=counts"])
    {'count': 'counts'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        former, is_given, name = pair.partition("=")
        if not (former and is_given and name):
            raise WrongCallError(f"--rename {one_line(pair)}: give the former name and the new one, as OLD=NEW")
        if former in found:
            raise WrongCallError(f"--rename gives {one_line(former)} twice: leave out one of them")
        found[former] = name
    return found


@cache
def _types() -> dict[str, Any]:
    """The type of each option. Python compiles the annotations for it: once for all calls of a command."""
    return get_type_hints(RunOptions, run_options.__dict__)


def options_from(given: argparse.Namespace) -> RunOptions:
    """The options of a run, from the flags that `add_run_flags` adds."""
    values = {option.name: getattr(given, option.name) for option in fields(RunOptions) if option.name not in NO_FLAG}
    if given.snapshots is None:
        if given.resume != "never":
            raise WrongCallError(f"--resume {given.resume} continues from a cut: name its folder with --snapshots")
        if given.key_file is not None:
            raise WrongCallError("--key-file names a key that signs cuts: name their folder with --snapshots")
        for name in REPEATED:
            if values[name]:
                raise WrongCallError(f"{flag(name)} is about cuts: name their folder with --snapshots")
    values |= {"drop": tuple(given.drop), "rename": new_names(given.rename) or None}
    values["keep_inputs"] = tuple(given.keep_inputs)
    return RunOptions(**values, key=key_from(given.key_file))


def flag(name: str) -> str:
    """The flag of an option.

    >>> flag("cut_timeout")
    '--cut-timeout'
    """
    return "--" + name.replace("_", "-")


def _reader(name: str, hint: Any) -> Callable[[str], Any]:
    return partial(_value, name, _kinds(hint))


def _value(name: str, kinds: Sequence[Any], text: str) -> Any:
    value: Any = text
    if text == "none" and type(None) in kinds:
        value = None
    elif int in kinds and re.fullmatch("-?[0-9]{1,18}", text):
        value = int(text)
    elif float in kinds:
        try:
            value = float(text)
        except ValueError:
            value = text  # which the option does not take, as it says below
    if (expected := expected_instead(name, value)) is not None:
        raise argparse.ArgumentTypeError(f"{one_line(repr(text))}: give {expected}")
    return value


def _metavar(name: str, hint: Any) -> str:
    if name == "resume":
        return "latest|never|EPOCH"
    kinds = _kinds(hint)
    if kinds and kinds[0] in (int, float):
        number = "SECONDS" if float in kinds else "N"
        return f"{number}|none" if type(None) in kinds else number
    return "URI" if str in kinds else "|".join(kinds)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types and literal values that a hint allows.

    >>> _kinds(float | None), _kinds(Literal["a", "b"] | int)
    ((<class 'float'>, <class 'NoneType'>), ('a', 'b', <class 'int'>))
    """
    kinds = get_args(hint)
    if not kinds or get_origin(hint) is Literal:
        return kinds or (hint,)
    return tuple(inner for kind in kinds for inner in _kinds(kind))
