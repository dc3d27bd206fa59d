"""From MODULE:NAME, as it stands on the command line, to a flow."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from inspect import Parameter, isfunction, signature
from types import FunctionType, ModuleType
from typing import Any

from graphs.flow import Flow


class WrongCallError(Exception):
    """What the caller wrote means nothing; the message is one line."""


def flow_at(where: str, settings: Mapping[str, Any] | None = None) -> Flow:
    """The flow that MODULE:NAME means: a Flow, or what a function gives that is called with the settings.

    >>> flow_at("shop")
    Traceback (most recent call last):
    backedge.flows.WrongCallError: 'shop' names no flow: write MODULE:NAME, for example shop.orders:flow
    """
    module_name, colon, name = where.partition(":")
    if not (module_name and colon and name):
        raise WrongCallError(f"{where!r} names no flow: write MODULE:NAME, for example shop.orders:flow")
    module = module_at(module_name)
    found = getattr(module, name, None)
    if isfunction(found):
        flow = found(**_accepted(found, where, settings or {}))
    else:
        flow = found
        if isinstance(found, Flow) and settings:
            raise WrongCallError(f"{where} is a Flow, not a function, and takes no --set {next(iter(settings))}=")
    if isinstance(flow, Flow):
        return flow
    verb = "gives something" if isfunction(found) else "is"
    fault = "is not there" if found is None else f"{verb} of type {type(flow).__name__}, not a Flow"
    flows = sorted(other for other, value in vars(module).items() if isinstance(value, Flow))
    others = f"its flows are {', '.join(flows)}" if flows else "it holds no Flow at all"
    raise WrongCallError(f"{name!r} in {module_name} {fault}; {others}")


def settings_in(pairs: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments that --set gives: JSON where it is JSON, else text.

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
        except ValueError:
            settings[key] = text
    return settings


def module_at(name: str) -> ModuleType:
    """The module of that name, which may be one of the current folder."""
    # A command installed into bin/ finds the modules of the current folder no sooner than it is told to.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        # The module is there and lacks one of its own: its author needs the traceback.
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
        raise WrongCallError(
            f"no module {missing.name!r} here or among the installed ones: "
            "run the command in the folder that holds it, and write a.b for a/b.py"
        ) from None


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
