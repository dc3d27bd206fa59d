"""Finds the flow that MODULE:NAME on the command line names."""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from backedge.graphs.flow import Flow
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.public import public

NAMED_MAX = 10
_INSTALLED = (os.path.dirname(__file__), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_NOT_THE_USERS = ("<frozen", *(os.path.join(folder, "") for folder in _INSTALLED))


@public
class WrongCallError(Exception):
    """A wrong call; the message is one line.

    Fix: correct the call; `--help` shows its options.
    """


def flow_at(where: str, settings: Mapping[str, Any] | None = None) -> Flow:
    """Return the flow that MODULE:NAME names: a Flow, or the result of a function called with the settings.

    >>> flow_at("shop")
    Traceback (most recent call last):
    backedge.WrongCallError: 'shop' names no flow: write MODULE:NAME, for example shop.orders:flow
    """
    module_name, colon, name = where.partition(":")
    if not (module_name and colon and name):
        raise WrongCallError(f"{where!r} names no flow: write MODULE:NAME, for example shop.orders:flow")
    module = module_at(module_name)
    found = getattr(module, name, None)
    if isfunction(found):
        accepted = _accepted(found, where, settings or {})
        with told_in_a_line(f"{where} raises"):
            flow = found(**accepted)
    else:
        flow = found
        if isinstance(found, Flow) and settings:
            raise WrongCallError(f"{where} is a Flow, not a function, and takes no --set {next(iter(settings))}=")
    if isinstance(flow, Flow):
        return flow
    verb = "returns something" if isfunction(found) else "is"
    fault = "is not there" if found is None else f"{verb} of type {type(flow).__name__}, not a Flow"
    raise WrongCallError(f"{name!r} in {module_name} {fault}; {_others(module)}")


def settings_in(pairs: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments that --set gives: parsed as JSON if possible, else text.

    >>> settings_in(["size=3", "name=apples", "rates=[1, 2.5]", 'id="3"'])
    {'size': 3, 'name': 'apples', 'rates': [1, 2.5], 'id': '3'}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise WrongCallError(f"--set {pair!r} sets nothing: write key=value, such as --set size=3")
        if key in settings:
            raise WrongCallError(f"--set gives {key} twice: leave out one of them")
        try:
            settings[key] = json.loads(text)
        except (ValueError, RecursionError):
            settings[key] = text
    return settings


def module_at(given: str) -> ModuleType:
    """Import the module of that name or path, from the current folder or an installed package."""
    name = given.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not all(name.split(".")):
        raise WrongCallError(
            f"{given!r} names no module: run the command in the folder that holds it, and write a.b for a/b.py"
        )
    # A command installed into bin/ finds the modules of the current folder no sooner than it is told to.
    if "" not in sys.path:
        sys.path.insert(0, "")
    with told_in_a_line(f"{name} cannot be imported: it raises"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as missing:
            # Else the module is there, and lacks one of its own.
            if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
                raise
            raise WrongCallError(
                f"no module {missing.name!r} here or among the installed ones: "
                "run the command in the folder that holds it, and write a.b for a/b.py"
            ) from None


def _others(module: ModuleType) -> str:
    """Name the flows and functions of a module, as suggestions."""
    values = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    flows = sorted(name for name, value in values.items() if isinstance(value, Flow))
    own = sorted(n for n, value in values.items() if isfunction(value) and value.__module__ == module.__name__)
    said = [
        f"its {what}{'s are' if len(names) > 1 else ' is'} {', '.join(names[:NAMED_MAX])}"
        for what, names in (("flow", flows), ("function", own))
        if names
    ]
    return " and ".join(said) or "it holds no Flow and no function that could return one"


def _accepted(function: FunctionType, where: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    names = [parameter.name for parameter in named]
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    for key in settings:
        if key not in names and not takes_any:
            takes = f"it takes {', '.join(names)}" if names else "it takes nothing"
            raise WrongCallError(f"{where} has no parameter {key!r}, which --set gives: {takes}")
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_ONLY and p.default is p.empty]
    needed = positional + [p.name for p in named if p.default is p.empty and p.name not in settings]
    if needed:
        raise WrongCallError(
            f"{where} is a function that needs {', '.join(needed)}: give --set {needed[0]}=VALUE, or name a Flow"
        )
    return settings


# -- what the user's own code raises -------------------------------------------------------------------------------


@contextmanager
def told_in_a_line(what: str, *passed: type[Exception]) -> Generator[None]:
    """Turn what user code raises into one line with the place; errors that are one line already pass, and those."""
    try:
        yield
    except (WrongCallError, GraphError, *passed):
        raise
    except (Exception, SystemExit) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        line = " ".join(f"{type(error).__name__}: {said}".split()).removesuffix(":")
        raise WrongCallError(f"{what} {line}, at {_place(error)}: fix the module or its arguments") from error


def _place(error: BaseException) -> str:
    """The innermost line of the user's code."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return _shown(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return _shown((own or frames)[-1].filename, (own or frames)[-1].lineno)


def _shown(file: str, line: int | None) -> str:
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line or 1}"
